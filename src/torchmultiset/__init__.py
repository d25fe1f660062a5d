"""Multiset prediction in PyTorch: from an input to an unordered collection of labels in which labels repeat.

The parts, from the ground up:

- `multiset`: multisets of labels as rows of counts, and their algebra
- `oracle`: the policy that is always right, which the multiset loss imitates
- `rollout`: executing a policy, greedily, by sampling, along the oracle or along given labels; where a multiset ends
- `distributions`, `search`: how probable a multiset is, and the most probable ones
- `losses`: the paper's loss functions, and those that came after
- `encoders`, `policies`, `heads`: networks
- `metrics`: exact match, precision, recall, F1, entropy
- `data`: data sets
- `Predictor`: the whole model in one module; objectives of `model` and `training` train it
- `MultisetClassifier`: all of it as a scikit-learn estimator
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmultiset import (
        data,
        distributions,
        encoders,
        heads,
        losses,
        metrics,
        model,
        multiset,
        oracle,
        policies,
        rollout,
        search,
        training,
    )
    from torchmultiset.estimator import MultisetClassifier as MultisetClassifier
    from torchmultiset.model.predictor import Predictor

__version__ = "0.1.0"

__all__ = [
    "Predictor",
    "__version__",
    "data",
    "distributions",
    "encoders",
    "heads",
    "losses",
    "metrics",
    "model",
    "multiset",
    "oracle",
    "policies",
    "rollout",
    "search",
    "training",
]

_CLASSES = {"MultisetClassifier": "estimator", "Predictor": "model.predictor"}


def __getattr__(name: str) -> Any:
    # On demand: `multiset --help` need not wait for PyTorch.
    if name in _CLASSES:
        return getattr(import_module(f"torchmultiset.{_CLASSES[name]}"), name)
    if name in __all__:
        return import_module(f"torchmultiset.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "MultisetClassifier"]  # which a star import leaves out: it needs scikit-learn
