"""Metrics as `torchmetrics.Metric` classes, correct for any batch size and across processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchmultiset._checks import check, check_counts, check_float, check_mask
from torchmultiset.metrics import _functions

try:
    from torchmetrics import Metric
except ImportError as error:
    from torchmultiset._install import pip_install

    raise ImportError(f"metric classes require torchmetrics: {pip_install('metrics')}") from error


class _Metric(Metric):
    """Base class of the metrics."""

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False


class _Mean(_Metric):
    """Mean of a per-example function over all examples."""

    total: Tensor
    examples: Tensor
    per_example: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("examples", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> None:
        """Add examples: predicted counts (B, C) and true counts (B, C)."""
        self.total += self.per_example(counts, target).double().sum()
        self.examples += len(target)

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean over all examples so far."""
        return (self.total / self.examples).to(torch.get_default_dtype())


class ExactMatch(_Mean):
    """Mean of `exact_match` over all examples.

    Example:
        >>> metric = ExactMatch()
        >>> metric.update(torch.tensor([[2, 0, 1], [1, 0, 1]]), torch.tensor([[2, 0, 1], [2, 0, 1]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    per_example = staticmethod(_functions.exact_match)


class Precision(_Mean):
    """Mean of `precision` over all examples; `ExactMatch` has an example."""

    per_example = staticmethod(_functions.precision)


class Recall(_Mean):
    """Mean of `recall` over all examples; `ExactMatch` has an example."""

    per_example = staticmethod(_functions.recall)


class F1(_Mean):
    """Mean of `f1` over all examples; `ExactMatch` has an example."""

    per_example = staticmethod(_functions.f1)


class CountMAE(_Mean):
    """Mean of `count_mae` over all examples; `ExactMatch` has an example."""

    higher_is_better = False
    per_example = staticmethod(_functions.count_mae)


class _ClassSums(_Metric):
    """Sums (S, C) over all examples, from which a metric of the whole data set is computed."""

    sums: Tensor
    parts: Callable[[Tensor, Tensor], Tensor]
    from_sums: Callable[[Tensor], Tensor]

    def __init__(self, num_classes: int, number: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        self.num_classes = num_classes
        self.add_state("sums", torch.zeros(number, num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, counts: Int64[Tensor, "b c"], target: Int64[Tensor, "b c"]) -> None:
        """Add examples: predicted counts (B, C) and true counts (B, C)."""
        check_counts("target", target, like=(None, self.num_classes))
        self.sums += self.parts(counts, target).sum(0)

    def compute(self) -> Float[Tensor, ""]:
        """Return the metric of all examples so far."""
        return self.from_sums(self.sums).to(torch.get_default_dtype())


class ClassF1(_ClassSums):
    """`class_f1` over all examples.

    Args:
        num_classes: Number of classes, C.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = ClassF1(num_classes=2)
        >>> metric.update(torch.tensor([[2, 1]]), torch.tensor([[1, 1]]))
        >>> metric.update(torch.tensor([[0, 1]]), torch.tensor([[1, 1]]))
        >>> metric.compute()
        tensor(0.6667)
    """

    parts = staticmethod(_functions.class_f1_parts)
    from_sums = staticmethod(_functions.class_f1_from_sums)

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, 3, **kwargs)


class CountRMSE(_ClassSums):
    """`count_rmse` over all examples: mRMSE.

    Args:
        num_classes: Number of classes, C.
        nonzero: Use only true counts above 0.
        relative: Divide each squared error by the true count plus 1.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = CountRMSE(num_classes=2)
        >>> metric.update(torch.tensor([[2, 1]]), torch.tensor([[3, 1]]))
        >>> metric.update(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]))
        >>> metric.compute()
        tensor(0.7071)
    """

    higher_is_better = False
    from_sums = staticmethod(_functions.count_rmse_from_sums)

    def __init__(self, num_classes: int, *, nonzero: bool = False, relative: bool = False, **kwargs: Any) -> None:
        super().__init__(num_classes, 2, **kwargs)
        self.parts = partial(_functions.count_rmse_parts, nonzero=nonzero, relative=relative)


class EntropyCurve(NamedTuple):
    """Mean and standard deviation of the entropy at each step."""

    mean: Float[Tensor, " t"]
    std: Float[Tensor, " t"]
    """Population standard deviation over the examples."""


class StepEntropy(_Metric):
    """Mean and standard deviation of `step_entropy` over all examples, at each step.

    Args:
        steps: Number of steps, T.
        kwargs: Passed to `torchmetrics.Metric`.

    Example:
        >>> metric = StepEntropy(steps=2)
        >>> metric.update(torch.tensor([[[0.0, 0.0], [0.0, float("-inf")]]]))
        >>> metric.compute()
        EntropyCurve(mean=tensor([0.6931, 0.0000]), std=tensor([0., 0.]))
    """

    higher_is_better = None
    sums: Tensor

    def __init__(self, steps: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check(steps >= 1, "steps", "at least 1", steps)
        self.steps = steps
        self.add_state("sums", torch.zeros(3, steps, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Float[Tensor, "b t c"], where: Bool[Tensor, "b t"] | None = None) -> None:
        """Add trajectories: scores (B, T, C), and a mask (B, T) of the steps that count, all if None."""
        check_float("logits", logits, "(B, T, C)", like=(None, self.steps, None))
        entropy = _functions.step_entropy(logits).double()
        if where is None:
            where = torch.ones_like(entropy, dtype=torch.bool)
        check_mask("where", where, "(B, T)", like=tuple(entropy.shape))
        entropy = entropy.masked_fill(~where, 0)
        self.sums += torch.stack([entropy.sum(0), (entropy**2).sum(0), where.sum(0).double()])

    def compute(self) -> EntropyCurve:
        """Return the mean and standard deviation at each step; NaN where no example counts."""
        total, squares, examples = self.sums
        mean = total / examples
        variance = (squares / examples - mean**2).clamp(min=0)
        dtype = torch.get_default_dtype()
        return EntropyCurve(mean.to(dtype), variance.sqrt().to(dtype))
