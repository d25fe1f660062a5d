"""Which examples are for training, validation and test, when the data does not say."""

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
    """Draw a split for each id, with these chances.

    The draw of an example follows from its id and the seed alone, so that more examples do not move it from
    one split to another. The price: shares are met as a fair coin meets one half. Only where a split would
    stay empty, an example of the largest one is moved there; and where the first, that of training, would stay
    without a label, an example with labels is exchanged for one of its own.

    Args:
        ids: A name for each example, no two alike. At least as many as there are fractions above 0.
        fractions: The chance of each split; they add up to 1.
        seed: Another seed gives another split.
        labelled: Which examples (N,) have labels; if None, all of them.

    Returns:
        The split of each example (N,), as a position in `fractions`.

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
    places = np.array([_place(name, seed) for name in ids])
    splits = np.searchsorted(edges[1:-1], places, side="right").astype(np.int64)
    for split in np.flatnonzero(fractions):
        if not (splits == split).any():
            largest = np.bincount(splits).argmax()
            away = np.abs(places - edges[split : split + 2].mean())
            splits[np.where(splits == largest, away, np.inf).argmin()] = split
    train = splits == 0
    if labelled is not None and labelled.any() and train.any() and not labelled[train].any():
        comes = np.where(labelled, places, np.inf).argmin()
        goes = np.where(train, places, -np.inf).argmax()
        splits[[comes, goes]] = splits[[goes, comes]]
    return splits


def _place(name: str, seed: int) -> float:
    """A number in [0, 1), uniform over names."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
