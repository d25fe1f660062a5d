"""Readouts: models that say the whole multiset at once, where policies name one label after another.

| readout           | says                                             | objective              |
| ----------------- | ------------------------------------------------ | ---------------------- |
| `CellCounts`      | at each place of a map: this class, or nothing   | ``counts`` (images)    |
| `CountTable`      | how probable 0, 1, 2, ... of each class are      | ``counts`` (vectors)   |
| `PoissonCounts`   | how many of each class to expect                 | ``counts``, by name    |
| `RegressedCounts` | how many of each class                           | ``counts``, by name    |
| `Slots`           | in each of some slots: this class, or nothing    | ``hungarian``          |
| `PowerMultiset`   | how probable each multiset is                    | ``power``              |
| `OneStep`         | what share each class has, and how many in all   | ``one-step``           |
"""

from torchmultiset.heads._base import OneShotHead
from torchmultiset.heads._scalar import SizeHead, StopHead, ValueHead
from torchmultiset.heads.counts import CellCounts, CountTable, PoissonCounts, RegressedCounts
from torchmultiset.heads.one_step import OneStep, round_counts
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
    "round_counts",
]
