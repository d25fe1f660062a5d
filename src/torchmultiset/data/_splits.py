"""Random assignment of examples to training, validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64

__all__ = ["SPLITS", "split_by_id"]

SPLITS = ("train", "validation", "test")


def split_by_id(
    ids: Sequence[str],
    fractions: Sequence[int | float],
    seed: int,
    *,
    labelled: Bool[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, " n"]:
    """Draw a split for each id, with the given probabilities.

    The split of an example depends only on its id and the seed, so adding examples does not move it. The split sizes
    therefore match `fractions` only in expectation. There are two exceptions: an empty split gets an example of the
    largest split; if no training example (split 0) has a label, one is swapped for an example with labels. There must
    be at least one id per positive fraction.

    Example:
        >>> ids = [f"{i}.jpg" for i in range(1000)]
        >>> np.bincount(split_by_id(ids, (0.7, 0.15, 0.15), seed=0))
        array([707, 142, 151])
        >>> split_by_id(ids[:3], (0.7, 0.15, 0.15), seed=0)
        array([1, 0, 2])
        >>> split_by_id(ids[:3], (0.7, 0.15, 0.15), seed=0, labelled=np.array([True, False, False]))
        array([0, 1, 2])
    """
    edges = np.cumsum([0.0, *fractions])
    # A number in [0, 1) for each id, uniform over ids.
    digests = [hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest() for name in ids]
    places = np.array([(int.from_bytes(digest, "big") >> 11) / 2**53 for digest in digests])
    splits = np.searchsorted(edges[1:-1], places, side="right").astype(np.int64)
    for split in np.flatnonzero(fractions):
        if not (splits == split).any():
            largest = np.bincount(splits).argmax()
            away = np.abs(places - edges[split : split + 2].mean())
            splits[np.where(splits == largest, away, np.inf).argmin()] = split
    train = splits == 0
    if labelled is not None and labelled.any() and train.any() and not labelled[train].any():
        enters = np.where(labelled, places, np.inf).argmin()
        leaves = np.where(train, places, -np.inf).argmax()
        splits[[enters, leaves]] = splits[[leaves, enters]]
    return splits
