"""Metrics as pure functions of counts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_counts
from torchmultiset._precision import full_precision
from torchmultiset.multiset import cardinality, equal, intersection

__all__ = ["class_f1", "count_mae", "count_rmse", "exact_match", "f1", "precision", "recall", "step_entropy"]


def exact_match(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the exact match, :math:`\mathbb{I}[\hat{\mathcal{Y}} = \mathcal{Y}]`: 1 or 0 for each example (B,).

    Example:
        >>> exact_match(torch.tensor([[2, 0, 1], [1, 0, 1]]), torch.tensor([[2, 0, 1], [2, 0, 1]]))
        tensor([1., 0.])
    """
    _check_pair(counts, target)
    return equal(counts, target).to(torch.get_default_dtype())


def precision(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the fraction of the predicted labels that are correct, for each example (B,).

    .. math:: 1 - \frac{\sum_c \max(\mu_{\hat Y}(c) - \mu_Y(c), 0)}{|\hat{\mathcal{Y}}|}

    An empty prediction has precision 1 if the target is empty too, otherwise 0.

    Example:
        >>> precision(torch.tensor([[2, 1]]), torch.tensor([[1, 1]]))  # {a, a, b} for {a, b}
        tensor([0.6667])
    """
    return _share(counts, target, of=counts)


def recall(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the fraction of the true labels that are predicted, for each example (B,).

    .. math:: 1 - \frac{\sum_c \max(\mu_Y(c) - \mu_{\hat Y}(c), 0)}{|\mathcal{Y}|}

    For an empty target the recall is 1 if the prediction is empty too, otherwise 0.

    Example:
        >>> recall(torch.tensor([[2, 0]]), torch.tensor([[1, 1]]))  # {a, a} for {a, b}
        tensor([0.5000])
    """
    return _share(counts, target, of=target)


def f1(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the harmonic mean of precision and recall, for each example (B,) (Appendix A).

    .. math:: \frac{2 \cdot \text{Prec} \cdot \text{Rec}}{\text{Prec} + \text{Rec}}
        = \frac{2\, |\hat{\mathcal{Y}} \cap \mathcal{Y}|}{|\hat{\mathcal{Y}}| + |\mathcal{Y}|}

    Two empty multisets have F1 = 1.

    Example:
        >>> f1(torch.tensor([[2, 1]]), torch.tensor([[1, 1]]))  # {a, a, b} for {a, b}
        tensor([0.8000])
    """
    _check_pair(counts, target)
    both = cardinality(counts) + cardinality(target)
    shared = cardinality(intersection(counts, target))
    return torch.where(both > 0, 2 * shared / both.clamp(min=1), 1.0)


def class_f1(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, ""]:
    r"""Compute F1 averaged over classes, as the paper's tables appear to (see `docs/paper-map.md`).

    Over the examples whose target contains class c, :math:`P_c` is the mean of
    :math:`\min(\mu_{\hat Y}(c), \mu_Y(c)) / \max(\mu_{\hat Y}(c), 1)` and :math:`R_c` the mean of
    :math:`\min(\mu_{\hat Y}(c), \mu_Y(c)) / \mu_Y(c)`. Their harmonic mean is averaged over the classes that occur in
    the data set; it is NaN if there are none.

    Example:
        >>> class_f1(torch.tensor([[2, 1], [0, 1]]), torch.tensor([[1, 1], [1, 1]]))
        tensor(0.6667)
    """
    return class_f1_from_sums(class_f1_parts(counts, target).sum(0)).to(torch.get_default_dtype())


def count_mae(counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> Float[Tensor, " b"]:
    r"""Compute the mean absolute count error over the classes, for each example (B,); lower is better.

    .. math:: \frac{1}{C} \sum_c \left| \mu_{\hat Y}(c) - \mu_Y(c) \right|

    Example:
        >>> count_mae(torch.tensor([[2, 1], [0, 3]]), torch.tensor([[1, 1], [0, 0]]))
        tensor([0.5000, 1.5000])
    """
    _check_pair(counts, target)
    return (counts - target).abs().to(torch.get_default_dtype()).mean(-1)


def count_rmse(
    counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"], *, nonzero: bool = False, relative: bool = False
) -> Float[Tensor, ""]:
    r"""Compute the root mean squared count error of each class, averaged over classes (mRMSE).

    .. math:: \frac{1}{C} \sum_c \sqrt{\frac{1}{N} \sum_{i=1}^N
        \left(\mu_{\hat Y_i}(c) - \mu_{Y_i}(c)\right)^2}

    Chattopadhyay et al., "Counting Everyday Objects in Everyday Scenes" (CVPR 2017), use it in four forms. With
    `nonzero`, the inner mean is over the examples that contain class c, :math:`\mu_{Y_i}(c) > 0`, and the outer one
    over the classes that occur. With `relative`, each squared error is divided by :math:`\mu_{Y_i}(c) + 1`, so that
    errors of large counts have less weight.

    Args:
        counts: Predicted counts (B, C) of the whole data set.
        target: True counts (B, C).
        nonzero: Use only true counts above 0: most counts are 0, and predicting 0 everywhere has a small mRMSE.
        relative: Divide each squared error by the true count plus 1.

    Returns:
        Scalar; lower is better. NaN without examples, or with `nonzero` if no target contains any label.

    Example:
        >>> counts, target = torch.tensor([[2, 1], [0, 1]]), torch.tensor([[3, 1], [0, 0]])
        >>> count_rmse(counts, target)
        tensor(0.7071)
        >>> count_rmse(counts, target, nonzero=True), count_rmse(counts, target, nonzero=True, relative=True)
        (tensor(0.5000), tensor(0.2500))
    """
    parts = count_rmse_parts(counts, target, nonzero=nonzero, relative=relative)
    return count_rmse_from_sums(parts.sum(0)).to(torch.get_default_dtype())


def step_entropy(logits: Float[Tensor, "*b c"]) -> Float[Tensor, "*b"]:
    r"""Compute the Shannon entropy of the policy at each step, in nats: :math:`\mathcal{H}(\pi_\theta^{(t)})`.

    Example:
        >>> step_entropy(torch.tensor([[[0.0, 0.0], [0.0, float("-inf")]]]))
        tensor([[0.6931, 0.0000]])
    """
    check(
        logits.ndim >= 1 and logits.is_floating_point(), "logits", "a floating-point tensor of shape (..., C)", logits
    )
    entropy: Tensor = torch.special.entr(full_precision(logits).softmax(-1)).sum(-1)
    return entropy


def class_f1_parts(counts: Tensor, target: Tensor) -> Tensor:
    """Return what `class_f1` sums over examples, (B, 3, C): precisions, recalls and occurrences."""
    _check_pair(counts, target)
    shared = intersection(counts, target).double()
    # An example without the class has an empty intersection, so it adds 0.
    return torch.stack([shared / counts.clamp(min=1), shared / target.clamp(min=1), (target > 0).double()], 1)


def class_f1_from_sums(sums: Tensor) -> Tensor:
    """Compute the class-averaged F1 from sums (..., 3, C) over all examples."""
    precisions, recalls, occurrences = sums.unbind(-2)
    # Harmonic mean of precisions / n and recalls / n, where n = occurrences.
    both = (precisions + recalls) * occurrences
    per_class = 2 * precisions * recalls / torch.where(both > 0, both, 1)
    return per_class.sum(-1) / (occurrences > 0).sum(-1)


def count_rmse_parts(counts: Tensor, target: Tensor, *, nonzero: bool, relative: bool) -> Tensor:
    """Return what `count_rmse` sums over examples, (B, 2, C): squared errors, and which of them are used."""
    _check_pair(counts, target)
    squares = (counts - target).double() ** 2
    if relative:
        squares = squares / (target + 1)
    used = target > 0 if nonzero else torch.ones_like(target, dtype=torch.bool)
    return torch.stack([squares * used, used.double()], 1)


def count_rmse_from_sums(sums: Tensor) -> Tensor:
    """Compute the mRMSE from sums (2, C) over all examples."""
    squares, examples = sums
    used = examples > 0
    mean: Tensor = (squares[used] / examples[used]).sqrt().mean()
    return mean


def _share(counts: Tensor, target: Tensor, *, of: Tensor) -> Tensor:
    _check_pair(counts, target)
    size = cardinality(of)
    share = cardinality(intersection(counts, target)) / size.clamp(min=1)
    both_empty = (cardinality(counts) + cardinality(target)) == 0
    return torch.where(both_empty, 1.0, share)


def _check_pair(counts: Tensor, target: Tensor) -> None:
    check_counts("target", target)
    check_counts("counts", counts, like=(target.shape[0], target.shape[1]))
