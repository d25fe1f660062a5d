"""Probability distributions over the counts of one class, and over whole multisets."""

from torchmultiset.distributions._cells import (
    CellJoint,
    cell_joint_log_probability,
    cell_size_log_probabilities,
    joint_states,
    largest_joint_size,
)
from torchmultiset.distributions._counts import cell_log_probabilities, poisson_binomial, size_log_probabilities
from torchmultiset.distributions._expected_f1 import best_by_f1
from torchmultiset.distributions._mixture import MixtureBelief
from torchmultiset.distributions._multisets import Belief, IndependentCounts, ListedMultisets, Ranked

__all__ = [
    "Belief",
    "CellJoint",
    "IndependentCounts",
    "ListedMultisets",
    "MixtureBelief",
    "Ranked",
    "best_by_f1",
    "cell_joint_log_probability",
    "cell_log_probabilities",
    "cell_size_log_probabilities",
    "joint_states",
    "largest_joint_size",
    "poisson_binomial",
    "size_log_probabilities",
]
