"""Multiset prediction in PyTorch: map an input to an unordered collection of labels in which labels repeat.

The parts, from the bottom up:

- `multiset`: multisets of labels as rows of counts, and their algebra
- `oracle`: the optimal policy, which the multiset loss imitates
- `rollout`: execution of a policy (greedy, sampled, along the oracle or given labels), and where a multiset ends
- `distributions`, `search`: the probability of a multiset, and the most probable multisets
- `losses`: the paper's loss functions and later ones
- `encoders`, `policies`, `heads`: networks
- `metrics`: exact match, precision, recall, F1, entropy
- `data`: data sets
- `train`: train a model on a file or folder in one call
- `Predictor`: the whole model in one module, trained by `training` with an objective of `model`
- `MultisetClassifier`: a scikit-learn estimator
- `lm`: the order-free loss for language models that write lists
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmultiset import (
        data,
        distributions,
        encoders,
        heads,
        lm,
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
    from torchmultiset.pipeline.quick import train

__version__ = "0.2.0"

__all__ = [
    "Predictor",
    "__version__",
    "data",
    "distributions",
    "encoders",
    "heads",
    "lm",
    "losses",
    "metrics",
    "model",
    "multiset",
    "oracle",
    "policies",
    "rollout",
    "search",
    "train",
    "training",
]

_NAMES = {"MultisetClassifier": "estimator", "Predictor": "model.predictor", "train": "pipeline.quick"}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `multiset --help` does not wait for PyTorch.
    if name in _NAMES:
        return getattr(import_module(f"torchmultiset.{_NAMES[name]}"), name)
    if name in __all__:
        return import_module(f"torchmultiset.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "MultisetClassifier"]  # not in __all__: it requires scikit-learn
