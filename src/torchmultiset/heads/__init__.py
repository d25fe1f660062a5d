"""One-shot heads, which output the whole multiset in one pass, and scalar heads of policies.

| one-shot head     | output                                           | objective              |
| ----------------- | ------------------------------------------------ | ---------------------- |
| `CellCounts`      | a class or "nothing" at each position of a map   | ``counts`` (images)    |
| `CountTable`      | probabilities of 0, 1, 2, ... of each class      | ``counts`` (vectors)   |
| `GaussianCounts`  | a normal distribution of the count of each class | ``counts``, by name    |
| `PoissonCounts`   | expected count of each class                     | ``counts``, by name    |
| `RegressedCounts` | count of each class as a real number             | ``counts``, by name    |
| `CountMixture`    | a mixture of tables of counts                    | ``counts``, by name    |
| `RidgeCounts`     | the same as `RegressedCounts`, in closed form    | none: `fit`            |
| `Slots`           | a class or "nothing" in each slot                | ``hungarian``          |
| `PowerMultiset`   | probability of each multiset                     | ``power``              |
| `OneStep`         | frequency of each class, and the size            | ``one-step``           |
"""

from torchmultiset.heads._base import OneShotHead, PooledHead
from torchmultiset.heads._scalar import SizeHead, StopHead, ValueHead
from torchmultiset.heads.baselines import Baseline, fit_baselines
from torchmultiset.heads.counts import CellCounts, CountTable, GaussianCounts, PoissonCounts, RegressedCounts
from torchmultiset.heads.mixture import CountMixture
from torchmultiset.heads.one_step import OneStep, nearest_counts, round_counts
from torchmultiset.heads.power import PowerMultiset
from torchmultiset.heads.ridge import Ridge, RidgeCounts, fit_ridge
from torchmultiset.heads.slots import Slots

__all__ = [
    "Baseline",
    "CellCounts",
    "CountMixture",
    "CountTable",
    "GaussianCounts",
    "OneShotHead",
    "OneStep",
    "PoissonCounts",
    "PooledHead",
    "PowerMultiset",
    "RegressedCounts",
    "Ridge",
    "RidgeCounts",
    "SizeHead",
    "Slots",
    "StopHead",
    "ValueHead",
    "fit_baselines",
    "fit_ridge",
    "nearest_counts",
    "round_counts",
]
