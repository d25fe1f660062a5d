"""Probability distributions over the counts of one class, and over whole multisets."""

from torchmultiset.distributions._counts import cell_log_probabilities, poisson_binomial, size_log_probabilities
from torchmultiset.distributions._multisets import Belief, IndependentCounts, ListedMultisets, Ranked

__all__ = [
    "Belief",
    "IndependentCounts",
    "ListedMultisets",
    "Ranked",
    "cell_log_probabilities",
    "poisson_binomial",
    "size_log_probabilities",
]
