"""How good a predicted multiset is (Appendix A): functions, and the same as `torchmetrics.Metric` classes.

One formula, two doors: `f1` computes it for each example, `F1` keeps its mean over batches and processes.
"""

from typing import TYPE_CHECKING, Any

from torchmultiset.metrics._functions import class_f1, exact_match, f1, precision, recall, step_entropy

if TYPE_CHECKING:
    from torchmultiset.metrics._classes import (
        F1,
        ClassF1,
        EntropyCurve,
        ExactMatch,
        Precision,
        Recall,
        StepEntropy,
    )

__all__ = [
    "F1",
    "ClassF1",
    "EntropyCurve",
    "ExactMatch",
    "Precision",
    "Recall",
    "StepEntropy",
    "class_f1",
    "exact_match",
    "f1",
    "precision",
    "recall",
    "step_entropy",
]


def __getattr__(name: str) -> Any:
    # torchmetrics takes longer to import than all the rest together: only who asks for a class waits for it.
    if name in __all__:
        try:
            from torchmultiset.metrics import _classes
        except ImportError as error:
            raise ImportError('metrics as classes need torchmetrics: pip install "torchmultiset[metrics]"') from error
        return getattr(_classes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
