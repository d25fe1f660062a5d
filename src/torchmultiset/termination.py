"""Where a multiset ends: at a known size, where a stop head says so, or at the END class.

Each function gives a mask (B, T) of the labels that belong to the prediction:
``from_labels(labels, num_classes, where=mask)`` are its counts.

A data set whose largest multiset has n labels needs T = n steps for a known size, and T = n + 1 otherwise: slot t
asks "are t labels enough?" before label t is named, for t from 0 (the empty multiset) to n. The last slot can
only end.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_float

__all__ = ["append_end", "until_end", "until_size", "until_stop"]


def until_size(size: Int64[Tensor, " b"], steps: int) -> Bool[Tensor, "b t"]:
    """Keep the first `size` labels: the way to end where the size is known.

    Args:
        size: Number of labels of each example (B,).
        steps: T.

    Example:
        >>> until_size(torch.tensor([2, 0]), steps=3)
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    check(steps >= 1, "steps", "at least 1", steps)
    check(size.ndim == 1 and size.dtype == torch.int64, "size", "an int64 tensor of shape (B,)", size)
    return torch.arange(steps, device=size.device) < size[:, None]


def until_stop(stop_logits: Float[Tensor, "b t"], *, threshold: float = 0.5) -> Bool[Tensor, "b t"]:
    r"""Keep the labels before the termination policy :math:`\pi_s` first says stop (section 4).

    Args:
        stop_logits: Scores (B, T) of a stop head; slot t asks "are t labels enough?".
        threshold: Stop where the probability is above this.

    Example:
        >>> until_stop(torch.tensor([[-2.0, -1.0, 3.0, -1.0], [5.0, 0.0, 0.0, 0.0]]))
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check_float("stop_logits", stop_logits, "(B, T)", like=(None, None))
    check(0 < threshold < 1, "threshold", "between 0 and 1", threshold)
    return _before_first(stop_logits > math.log(threshold / (1 - threshold)))


def until_end(labels: Int64[Tensor, "b t"], end: int) -> Bool[Tensor, "b t"]:
    """Keep the labels before the first END (Appendix E, "Special Class").

    Args:
        labels: Labels (B, T).
        end: The label of END.

    Example:
        >>> until_end(torch.tensor([[0, 2, 3, 1], [3, 3, 3, 3]]), end=3)
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check(labels.ndim == 2 and labels.dtype == torch.int64, "labels", "an int64 tensor of shape (B, T)", labels)
    return _before_first(labels == end)


def append_end(sequence: Int64[Tensor, "b t"], end: int) -> Int64[Tensor, "b t+1"]:
    """Put END after the last label of each sequence, so that the sequence loss teaches it.

    Args:
        sequence: Labels (B, T), padded with -1 at the end.
        end: The label of END.

    Example:
        >>> append_end(torch.tensor([[2, 0], [1, -1]]), end=3)
        tensor([[ 2,  0,  3],
                [ 1,  3, -1]])
    """
    check(
        sequence.ndim == 2 and sequence.dtype == torch.int64,
        "sequence",
        "an int64 tensor of shape (B, T)",
        sequence,
    )
    size = (sequence >= 0).sum(-1, keepdim=True)
    longer = torch.nn.functional.pad(sequence, (0, 1), value=-1)
    return longer.scatter(1, size, end)


def _before_first(ends: Tensor) -> Tensor:
    keep = ends.cumsum(-1) == 0
    keep[:, -1] = False
    return keep
