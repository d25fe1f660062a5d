"""The multiset loss with a coach: an oracle that starts from what the policy itself prefers."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_float
from torchmultiset.losses._common import Reduction, log_policy, reduce, weighted
from torchmultiset.multiset import free_labels
from torchmultiset.oracle import oracle

__all__ = ["coached_loss"]


def coached_loss(
    logits: Float[Tensor, "b t k"],
    labels: Int64[Tensor, "b t"],
    target: Int64[Tensor, "b c"],
    *,
    coaching: int | float,
    end: bool = False,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*r"]:
    r"""The multiset loss towards a mixture of the oracle and the policy itself over the free labels.

    .. math::
        \pi_\beta(c) = (1 - \beta)\, \pi_*(c) + \beta\, \frac{\pi_\theta(c)\, \mathbb{1}[c \in \mathcal{Y}_t]}
        {\sum_{c' \in \mathcal{Y}_t} \pi_\theta(c')}, \qquad
        -\sum_t \sum_c \pi_\beta(c) \log \pi_\theta(c)

    No gradient goes through the mixture. With :math:`\beta = 0` it is `multiset_loss`; with 1 the policy may name the
    free labels in the order that it likes.

    Args:
        logits: Scores (B, T, C), or (B, T, C + 1) with END.
        labels: Labels named (B, T).
        target: Counts (B, C).
        coaching: :math:`\beta`, from 0 to 1.
        end: Whether the policy has an END class, with label C.
        reduction: Over the batch.

    Returns:
        Scalar, or (B,) for ``reduction="none"``.

    Example:
        >>> import torch
        >>> from torchmultiset.losses import multiset_loss
        >>> logits, labels, target = torch.randn(1, 2, 4), torch.tensor([[1, 0]]), torch.tensor([[1, 1, 0, 0]])
        >>> torch.isclose(coached_loss(logits, labels, target, coaching=0.0), multiset_loss(logits, labels, target))
        tensor(True)

    Reference:
        He, Daumé III, Eisner, "Imitation Learning by Coaching", NeurIPS 2012.
    """
    check(0 <= coaching <= 1, "coaching", "from 0 to 1", coaching)
    check_float("logits", logits, "(B, T, C)", like=(*labels.shape, target.shape[1] + end))
    free = free_labels(target, labels, end=end)
    log_pi = log_policy(logits)
    wanted = oracle(free, dtype=log_pi.dtype)
    if coaching:
        preferred = log_pi.detach().masked_fill(free == 0, -torch.inf)
        # Where all that is free is ruled out there is nothing to prefer, nor where nothing is free.
        none = preferred.isneginf().all(-1, keepdim=True)
        preferred = torch.where(none, wanted, preferred.softmax(-1))
        wanted = (1 - coaching) * wanted + coaching * preferred
    return reduce(-weighted(wanted, log_pi).sum((1, 2)), reduction)
