"""Objectives: how to roll in, and which loss; one row of the paper's Table 3 each, and what came after it.

An objective takes a batch and a generator, and gives a `Plan`: how labels are named in the rollout, and what is made of
its output.

    plan = objective(batch, generator)
    loss = plan.loss(predictor(batch.x, plan.choose, at=plan.at))

| objective                       | for       | name                      |
| ------------------------------- | --------- | ------------------------- |
| `MultisetObjective`             | policies  | ``multi``                 |
| `ReinforceObjective`            | policies  | ``rl``                    |
| `DistributionMatchingObjective` | policies  | ``dm-l1``, ``dm-kl``      |
| `SequenceObjective`             | policies  | ``seq``                   |
| `MarginalObjective`             | policies that see only counts | ``marginal`` |
| `OneStepObjective`              | `readouts.OneStep` | ``one-step``     |
| `CountsObjective`               | count heads        | ``counts``       |
| `HungarianObjective`            | `readouts.Slots`   | ``hungarian``    |
| `PowerObjective`                | `readouts.PowerMultiset` | ``power``  |
"""

from torchmultiset.model.objectives._at_once import (
    CountsObjective,
    HungarianObjective,
    OneStepObjective,
    PowerObjective,
)
from torchmultiset.model.objectives._one_by_one import (
    DistributionMatchingObjective,
    MarginalObjective,
    MultisetObjective,
    ReinforceObjective,
    SequenceObjective,
)
from torchmultiset.model.objectives._plan import Objective, Plan

__all__ = [
    "CountsObjective",
    "DistributionMatchingObjective",
    "HungarianObjective",
    "MarginalObjective",
    "MultisetObjective",
    "Objective",
    "OneStepObjective",
    "Plan",
    "PowerObjective",
    "ReinforceObjective",
    "SequenceObjective",
]
