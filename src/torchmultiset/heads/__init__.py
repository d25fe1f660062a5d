"""One-shot heads, which give the whole multiset in one pass, and scalar heads of policies.

| one-shot head     | output                                           | objective              |
| ----------------- | ------------------------------------------------ | ---------------------- |
| `CellCounts`      | a class or "nothing" at each position of a map   | ``counts`` (images)    |
| `CountTable`      | probabilities of 0, 1, 2, ... of each class      | ``counts`` (vectors)   |
| `PoissonCounts`   | expected count of each class                     | ``counts``, by name    |
| `RegressedCounts` | count of each class as a real number             | ``counts``, by name    |
| `Slots`           | a class or "nothing" in each slot                | ``hungarian``          |
| `PowerMultiset`   | probability of each multiset                     | ``power``              |
| `OneStep`         | frequency of each class, and the size            | ``one-step``           |
"""

from torchmultiset.heads._base import OneShotHead
from torchmultiset.heads._scalar import SizeHead, StopHead, ValueHead
from torchmultiset.heads.counts import CellCounts, CountTable, PoissonCounts, RegressedCounts
from torchmultiset.heads.one_step import OneStep, nearest_counts, round_counts
from torchmultiset.heads.power import PowerMultiset
from torchmultiset.heads.slots import Slots

__all__ = [
    "CellCounts",
    "CountTable",
    "OneShotHead",
    "OneStep",
    "PoissonCounts",
    "PowerMultiset",
    "RegressedCounts",
    "SizeHead",
    "Slots",
    "StopHead",
    "ValueHead",
    "nearest_counts",
    "round_counts",
]
