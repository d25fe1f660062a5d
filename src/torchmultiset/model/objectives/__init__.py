"""Training objectives: those of the paper's Table 3, and later ones.

An objective has one method, ``loss(predictor, batch, generator)``, which rolls out the policy or computes the scores of
the head. Its fields are its settings. The names are those of the registry.

| objective             | name            | trains                              |
| --------------------- | --------------- | ----------------------------------- |
| `MultisetObjective`   | ``multi``       | a policy                            |
| `ReinforceObjective`  | ``rl``          | a policy with a value head          |
| `L1MatchingObjective` | ``dm-l1``       | a policy                            |
| `KLMatchingObjective` | ``dm-kl``       | a policy                            |
| `SequenceObjective`   | ``seq``         | a policy                            |
| `MarginalObjective`   | ``marginal``    | a policy that sees only counts      |
| `OneStepObjective`    | ``one-step``    | the head `OneStep`                  |
| `CountsObjective`     | ``counts``      | a count head                        |
| `HungarianObjective`  | ``hungarian``   | the head `Slots`                    |
| `PowerObjective`      | ``power``       | the head `PowerMultiset`            |
| `RidgeObjective`      | ``ridge``       | the head `RidgeCounts`              |
"""

from torchmultiset.model.objectives._base import CONTEXT, Objective
from torchmultiset.model.objectives.counts import CountsObjective, joint_fallback
from torchmultiset.model.objectives.hungarian import HungarianObjective
from torchmultiset.model.objectives.marginal import MarginalObjective
from torchmultiset.model.objectives.matching import KLMatchingObjective, L1MatchingObjective
from torchmultiset.model.objectives.multiset import MultisetObjective
from torchmultiset.model.objectives.one_step import OneStepObjective
from torchmultiset.model.objectives.power import PowerObjective
from torchmultiset.model.objectives.reinforce import ReinforceObjective
from torchmultiset.model.objectives.ridge import RidgeObjective
from torchmultiset.model.objectives.sequence import SequenceObjective

__all__ = [
    "CONTEXT",
    "CountsObjective",
    "HungarianObjective",
    "KLMatchingObjective",
    "L1MatchingObjective",
    "MarginalObjective",
    "MultisetObjective",
    "Objective",
    "OneStepObjective",
    "PowerObjective",
    "ReinforceObjective",
    "RidgeObjective",
    "SequenceObjective",
    "joint_fallback",
]
