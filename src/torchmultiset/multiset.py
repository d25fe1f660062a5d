r"""Multisets of class labels as rows of counts (Appendix A of the paper).

A multiset :math:`\mathcal{Y} = (\mathcal{C}, \mu)` is stored as its multiplicity function: an int64 tensor of counts
``(..., C)`` whose entry c is :math:`\mu(c)`. Counts have no order, so no order can leak from a target into a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check, check_counts, check_integers, check_labels, check_mask
from torchmultiset._numbering import from_index, how_many, index_of

__all__ = [
    "cardinality",
    "difference",
    "equal",
    "free_labels",
    "from_index",
    "from_labels",
    "hits",
    "how_many",
    "index_of",
    "intersection",
    "to_labels",
    "unfinished",
    "union",
]

WIDE_ROWS = 32
"""Number of classes from which steps are added row by row: on CPUs, `cumsum` over steps adds class by class."""


def from_labels(
    labels: Int64[Tensor, "*b t"] | Sequence[Sequence[int]],
    num_classes: int,
    *,
    where: Bool[Tensor, "*b t"] | None = None,
) -> Int64[Tensor, "*b c"]:
    """Convert labels to counts.

    Args:
        labels: Labels (..., T) from 0 to C - 1, or a list of lists of any lengths. Negative labels are padding and
            are not counted.
        num_classes: Number of classes, C.
        where: Mask (..., T) of the labels to count; the other labels are ignored.

    Returns:
        Counts (..., C), int64.

    Example:
        >>> from_labels(torch.tensor([[2, 0, 2], [1, -1, -1]]), num_classes=3)
        tensor([[1, 0, 2],
                [0, 1, 0]])
        >>> from_labels([[2, 0, 2], []], num_classes=3)
        tensor([[1, 0, 2],
                [0, 0, 0]])
    """
    check(num_classes >= 1, "num_classes", "at least 1", num_classes)
    if not isinstance(labels, Tensor):
        nested = all(isinstance(row, Sequence) and all(isinstance(label, int) for label in row) for row in labels)
        check(nested, "labels", "an int64 tensor of shape (..., T) or a list of lists of integers", labels)
        labels = pad_rows(labels, -1)
    check_integers("labels", labels, "(..., T)")
    if where is not None:
        check_mask("where", where, "(..., T)", like=tuple(labels.shape))
        labels = labels.masked_fill(~where, -1)
    check_labels("labels", labels, num_classes, like=tuple(labels.shape), padding=True)
    # Padding is counted in an extra column, which is then dropped.
    column = torch.where(labels < 0, num_classes, labels)
    counts = column.new_zeros(*labels.shape[:-1], num_classes + 1)
    return counts.scatter_add_(-1, column, torch.ones_like(column))[..., :num_classes].contiguous()


def to_labels(counts: Int64[Tensor, "*b c"]) -> Int64[Tensor, "*b m"]:
    """List the labels of each multiset in ascending order, with repetitions, padded with -1 to the largest size M.

    Example:
        >>> to_labels(torch.tensor([[1, 0, 2], [0, 1, 0]]))
        tensor([[ 0,  2,  2],
                [ 1, -1, -1]])
    """
    check_counts("counts", counts, like=tuple(counts.shape))
    sizes = counts.sum(-1, keepdim=True)
    largest = int(sizes.max()) if sizes.numel() else 0
    positions = torch.arange(largest, device=counts.device).expand(*counts.shape[:-1], largest).contiguous()
    # The label at position p is the first class whose running count exceeds p.
    labels = torch.searchsorted(counts.cumsum(-1), positions, right=True)
    return labels.masked_fill(positions >= sizes, -1)


def cardinality(counts: Int64[Tensor, "*b c"]) -> Int64[Tensor, "*b"]:
    r"""Return the size of each multiset, :math:`|\mathcal{Y}| = \sum_c \mu(c)`.

    Example:
        >>> cardinality(torch.tensor([[1, 0, 2], [0, 0, 0]]))
        tensor([3, 0])
    """
    check_integers("counts", counts, "(..., C)")
    return counts.sum(-1)


def difference(a: Int64[Tensor, "*#b c"], b: Int64[Tensor, "*#b c"]) -> Int64[Tensor, "*shape c"]:
    r"""Return the multiset difference of `a` and `b`, :math:`\max(\mu_a(c) - \mu_b(c), 0)`.

    Example:
        >>> difference(torch.tensor([1, 0, 2]), torch.tensor([0, 5, 1]))
        tensor([1, 0, 1])
    """
    _check_pair(a, b)
    return (a - b).clamp(min=0)


def intersection(a: Int64[Tensor, "*#b c"], b: Int64[Tensor, "*#b c"]) -> Int64[Tensor, "*shape c"]:
    r"""Return the multiset intersection, :math:`\min(\mu_a(c), \mu_b(c))`.

    Example:
        >>> intersection(torch.tensor([1, 0, 2]), torch.tensor([0, 5, 1]))
        tensor([0, 0, 1])
    """
    _check_pair(a, b)
    return torch.minimum(a, b)


def union(a: Int64[Tensor, "*#b c"], b: Int64[Tensor, "*#b c"]) -> Int64[Tensor, "*shape c"]:
    r"""Return the multiset union, :math:`\max(\mu_a(c), \mu_b(c))`; the sum is ``a + b``.

    Example:
        >>> union(torch.tensor([1, 0, 2]), torch.tensor([0, 5, 1]))
        tensor([1, 5, 2])
    """
    _check_pair(a, b)
    return torch.maximum(a, b)


def equal(a: Int64[Tensor, "*#b c"], b: Int64[Tensor, "*#b c"]) -> Bool[Tensor, "*shape"]:
    """Return whether two multisets are equal, row by row.

    Example:
        >>> equal(torch.tensor([[1, 0, 2], [0, 1, 0]]), torch.tensor([[1, 0, 2], [1, 1, 0]]))
        tensor([ True, False])
    """
    _check_pair(a, b)
    return (a == b).all(-1)


def free_labels(
    target: Int64[Tensor, "b c"], labels: Int64[Tensor, "b t"], *, end: bool = False
) -> Int64[Tensor, "b t k"]:
    r"""Return the free label multiset before each step of a trajectory (Definition 1).

    .. math::
        \mathcal{Y}_t = \mathcal{Y} \setminus \{\hat y_1, \ldots, \hat y_{t-1}\}, \qquad
        \mu_t(c) = \max\Big(\mu(c) - \sum_{s<t} \mathbb{1}[\hat y_s = c],\; 0\Big)

    Args:
        target: Counts (B, C).
        labels: Emitted labels (B, T).
        end: Whether there is an END class, with label C (Appendix E, "Special Class"). END becomes free when no
            other label is, and stays free until it is emitted. An END emitted earlier is an ordinary mistake and
            removes nothing.

    Returns:
        Counts (B, T, C), or (B, T, C + 1) with END as the last class.

    Example:
        >>> target = from_labels([[0, 0, 2]], num_classes=3)
        >>> free_labels(target, torch.tensor([[0, 1, 0, 2]]))  # 1 is a mistake
        tensor([[[2, 0, 1],
                 [1, 0, 1],
                 [1, 0, 1],
                 [0, 0, 1]]])
    """
    _check_trajectory(target, labels, end)
    return free_counts(target, labels, end=end)


def distinct_classes(target: Tensor, *, end: bool = False) -> Tensor:
    """Return the classes (B, K) of each target, then END if `end`; rows with fewer are padded with other classes."""
    most = max(int((target > 0).sum(-1).max()), 1) if target.shape[0] else 1
    classes = target.topk(most, dim=-1).indices
    return pad(classes, (0, 1), value=target.shape[1]) if end else classes


def free_counts(
    target: Tensor,
    labels: Tensor,
    classes: Tensor | None = None,
    *,
    end: bool = False,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Compute `free_labels` in any dtype, for the given `classes` (B, K) or all, without checking the arguments."""
    counts = pad(target, (0, 1)) if end else target
    if classes is not None:
        counts = counts.gather(1, classes)
    # Cumulative sums of the target at the first step and -1 for each label after it; they may become negative.
    free = torch.zeros(*labels.shape, counts.shape[1], dtype=dtype, device=target.device)
    if labels.shape[1]:
        free[:, 0] = counts
    earlier, later = labels[:, :-1, None], free[:, 1:]
    if classes is None:
        later.scatter_(2, earlier, -1)
    else:
        later.masked_fill_(earlier == classes[:, None], -1)
    _add_up(free)
    free.relu_()
    if end:
        free[..., -1] = _end_is_free(~free.any(-1), labels == target.shape[1])
    return free


def _add_up(steps: Tensor) -> None:
    """Compute cumulative sums over the steps (B, T, K), in place."""
    if steps.device.type == "cpu" and steps.shape[2] >= WIDE_ROWS and not torch.compiler.is_compiling():
        for before, after in pairwise(steps.unbind(1)):
            after += before
    else:
        steps.cumsum_(1)


def hits(target: Int64[Tensor, "b c"], labels: Int64[Tensor, "b t"], *, end: bool = False) -> Bool[Tensor, "b t"]:
    """Return whether each label was free when it was emitted; see `free_labels` for `end`.

    Example:
        >>> hits(from_labels([[0, 0, 2]], num_classes=3), torch.tensor([[0, 1, 0, 0, 2]]))
        tensor([[ True, False,  True, False,  True]])
    """
    _check_trajectory(target, labels, end)
    found = _hits(target, labels)
    if not end:
        return found
    is_end = labels == target.shape[1]
    return found | (_end_is_free(_complete(target, found), is_end) & is_end)


def unfinished(target: Int64[Tensor, "b c"], labels: Int64[Tensor, "b t"], *, end: bool = False) -> Bool[Tensor, "b t"]:
    """Return whether any label was free at each step: the steps that contribute to a loss. See `free_labels` for `end`.

    Example:
        >>> unfinished(from_labels([[0, 2]], num_classes=3), torch.tensor([[0, 1, 2, 0]]))
        tensor([[ True,  True,  True, False]])
    """
    _check_trajectory(target, labels, end)
    complete = _complete(target, _hits(target, labels))
    return ~complete | _end_is_free(complete, labels == target.shape[1]) if end else ~complete


def pad_rows(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> Int64[Tensor, "n longest"]:
    """Return rows of any lengths as a tensor, padded on the right or on the left."""
    longest = max(map(len, rows), default=0)
    filled = [[value] * (longest - len(row)) for row in rows]
    joined = [[*more, *row] if left else [*row, *more] for row, more in zip(rows, filled, strict=True)]
    return torch.tensor(joined, dtype=torch.int64).reshape(len(rows), longest)


def _hits(target: Tensor, labels: Tensor) -> Tensor:
    # A label is free if it was emitted fewer times than its count in the target; END (label C) has count 0.
    counts = torch.cat([target, torch.zeros_like(target[:, :1])], -1)
    same = labels[:, :, None] == labels[:, None, :]
    before = same.tril(-1).sum(-1)
    return before < counts.gather(1, labels)


def _complete(target: Tensor, found: Tensor) -> Tensor:
    return count_earlier(found) == cardinality(target)[:, None]


def _end_is_free(complete: Tensor, is_end: Tensor) -> Tensor:
    return complete & (count_earlier(complete & is_end) == 0)


def count_earlier(true: Tensor) -> Tensor:
    """Count the earlier steps at which the condition held, along dimension 1."""
    return true.cumsum(1) - true.long()


def _check_pair(a: Tensor, b: Tensor) -> None:
    check_integers("a", a, "(..., C)")
    check_integers("b", b, f"(..., {a.shape[-1]}), with the same classes as a", last=a.shape[-1])


def _check_trajectory(target: Tensor, labels: Tensor, end: bool) -> None:
    check_counts("target", target)
    check_labels("labels", labels, target.shape[1] + end, like=(target.shape[0], None))
