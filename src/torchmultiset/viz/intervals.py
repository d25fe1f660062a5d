"""Bootstrap 95% intervals of scores over test examples.

Test examples are resampled with replacement a thousand times, and the scores are computed each time. With several
seeds, an example is drawn with all of its predictions, and a score is the mean over seeds: the interval reflects the
choice of test examples for these trained models.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from torchmultiset.metrics import exact_match, f1
from torchmultiset.metrics._functions import class_f1_from_sums, class_f1_parts

__all__ = ["Counts", "bootstrap"]

_DRAWS = 1_000

Counts = tuple[UInt8[np.ndarray, "n c"], UInt8[np.ndarray, "n c"]]
"""Predicted and true counts of the same examples."""


def bootstrap(seeds: Sequence[Counts]) -> dict[str, tuple[float, float]]:
    """Compute the 95% intervals of exact match, F1 and class F1 (``em``, ``f1``, ``class_f1``), averaged over seeds.

    Args:
        seeds: Counts of the same examples for each seed.
    """
    weights = _weights(len(seeds[0][0]))
    found = [_scores(counts, weights) for counts in seeds]
    ends = {
        name: np.nanquantile(sum(scores[name] for scores in found) / len(found), [0.025, 0.975]) for name in found[0]
    }
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


@lru_cache(maxsize=2)
def _weights(examples: int) -> Float64[np.ndarray, "draws n"]:
    """Return how often each draw contains each example; the same for all methods."""
    return np.random.default_rng(0).multinomial(examples, np.full(examples, 1 / examples), _DRAWS).astype(np.float64)


def _scores(counts: Counts, weights: Float64[np.ndarray, "draws n"]) -> dict[str, Float64[np.ndarray, " draws"]]:
    """Compute the scores of each draw; class F1 is NaN for a draw without labels."""
    predicted, true = (torch.from_numpy(part.astype(np.int64)) for part in counts)
    total = weights.sum(1)
    alone = {"em": exact_match(predicted, true), "f1": f1(predicted, true)}
    found = {name: weights @ values.double().numpy() / total for name, values in alone.items()}
    sums = np.tensordot(weights, class_f1_parts(predicted, true).numpy(), 1)
    return found | {"class_f1": class_f1_from_sums(torch.from_numpy(sums)).numpy()}
