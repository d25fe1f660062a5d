"""The oracle policy (Definition 2) and its entropy (Remark 4)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check_integers, check_one_of

__all__ = ["oracle", "oracle_entropy"]


def oracle(free: Int64[Tensor, "*b c"], *, dtype: torch.dtype | None = None) -> Float[Tensor, "*b c"]:
    r"""Compute the oracle policy: the uniform distribution over the free items (Definition 2).

    .. math:: \pi_*(c \mid \mathcal{Y}_t) = \mu_t(c) / |\mathcal{Y}_t|

    This is the paper's :math:`1/|\mathcal{Y}_t|` per item, summed over the items of class c. Where nothing is free,
    all entries are 0, so that a finished step contributes nothing to a loss.

    Example:
        >>> oracle(torch.tensor([[2, 0, 1], [0, 0, 0]]))
        tensor([[0.6667, 0.0000, 0.3333],
                [0.0000, 0.0000, 0.0000]])
    """
    check_integers("free", free, "(..., C)")
    weights = free.to(dtype or torch.get_default_dtype())
    return weights / weights.sum(-1, keepdim=True).clamp(min=1)


def oracle_entropy(
    free: Int64[Tensor, "*b c"], *, of: Literal["instances", "classes"] = "instances"
) -> Float[Tensor, "*b"]:
    r"""Compute the Shannon entropy of the oracle in nats; 0 where nothing is free.

    Args:
        free: Free label multisets as counts (..., C).
        of: ``"instances"`` distinguishes items of the same class, as the paper's proof does:
            :math:`\log |\mathcal{Y}_t|`, which decreases with every correct label (Remark 4). ``"classes"`` is the
            entropy of the distribution over classes, comparable with a policy's; it can increase: from {a, a, b}
            to {a, b}.

    Example:
        >>> free = torch.tensor([[2, 0, 1], [1, 0, 1]])
        >>> oracle_entropy(free)
        tensor([1.0986, 0.6931])
        >>> oracle_entropy(free, of="classes")
        tensor([0.6365, 0.6931])
    """
    check_integers("free", free, "(..., C)")
    check_one_of("of", of, ("instances", "classes"))
    if of == "instances":
        return free.sum(-1).clamp(min=1).to(torch.get_default_dtype()).log()
    entropy: Tensor = torch.special.entr(oracle(free)).sum(-1)
    return entropy
