"""Metrics of predicted multisets (Appendix A) and of counts, as functions and as `torchmetrics.Metric` classes.

The function `f1` computes the metric of each example; the class `F1` keeps its mean over batches and processes. Both
take predicted counts (B, C), then the true ones.
"""

from typing import TYPE_CHECKING, Any

from torchmultiset.metrics._functions import (
    class_f1,
    count_mae,
    count_rmse,
    exact_match,
    f1,
    precision,
    recall,
    step_entropy,
)

if TYPE_CHECKING:
    from torchmultiset.metrics._classes import (
        F1,
        ClassF1,
        CountMAE,
        CountRMSE,
        EntropyCurve,
        ExactMatch,
        Precision,
        Recall,
        StepEntropy,
    )

__all__ = [
    "F1",
    "ClassF1",
    "CountMAE",
    "CountRMSE",
    "EntropyCurve",
    "ExactMatch",
    "Precision",
    "Recall",
    "StepEntropy",
    "class_f1",
    "count_mae",
    "count_rmse",
    "exact_match",
    "f1",
    "precision",
    "recall",
    "step_entropy",
]


def __getattr__(name: str) -> Any:
    # torchmetrics takes longer to import than everything else, so it is imported only when a class is used.
    if name in __all__:
        from torchmultiset.metrics import _classes

        return getattr(_classes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
