"""Training objectives: those of the paper's Table 3, and later ones.

An objective has one method, ``loss(predictor, batch, generator)``, which rolls out the policy or computes the scores of
the head. Its fields are its settings. Each objective is one file here and one line in `model.registry`; its class is
also an attribute of this package, such as `MultisetObjective`.
"""

from typing import Any

from torchmultiset.model.objectives._base import CONTEXT, Objective
from torchmultiset.model.registry import OBJECTIVES

__all__ = ["CONTEXT", "Objective"]


def __getattr__(name: str) -> Any:
    if name.endswith("Objective") and name in OBJECTIVES.classes:
        return OBJECTIVES.classes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *OBJECTIVES.classes])
