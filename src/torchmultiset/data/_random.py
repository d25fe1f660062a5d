"""Counter-based random numbers, which do not depend on how many were drawn before.

A number is a hash of (seed, stream, index, purpose, slot). Example i of a data set is therefore the same whether it is
generated alone, in a batch or by another process, and a whole batch is drawn at once without a generator per example.
The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), on uint64 arrays, which wrap around.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64

from torchmultiset._checks import check

__all__ = ["draw", "draw_distinct", "example_keys"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def example_keys(seed: int, stream: int, indices: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Compute one key per example, from which all its numbers are drawn; different splits use different streams.

    Example:
        >>> example_keys(0, 0, np.array([5, 6, 5])) == example_keys(0, 0, np.array([5]))
        array([ True, False,  True])
    """
    base = _fold(_fold(_one(0), _one(seed)), _one(stream))
    return _fold(base, indices.astype(np.uint64))


def draw(
    keys: UInt64[np.ndarray, " n"],
    purpose: int,
    slots: int,
    below: int | Int64[np.ndarray, "#n #slots"],
) -> Int64[np.ndarray, "n slots"]:
    """Draw independent integers, exactly uniform on 0, ..., below - 1.

    Args:
        keys: One key per example.
        purpose: Identifier of what the numbers are used for; different purposes give independent numbers.
        slots: How many numbers to draw per example. A smaller number of slots gives a prefix of a larger one.
        below: Upper bound, exclusive, from 1 to 2^32: one for all, or one per example or slot.

    Example:
        >>> draw(example_keys(0, 0, np.arange(3)), purpose=0, slots=8, below=10)
        array([[9, 9, 6, 0, 9, 6, 0, 9],
               [7, 5, 0, 6, 8, 7, 1, 8],
               [0, 5, 1, 9, 2, 5, 1, 0]])
    """
    bounds = np.broadcast_to(np.asarray(below, dtype=np.uint64), (len(keys), slots))
    check(bool(np.all((bounds >= 1) & (bounds <= 1 << 32))), "below", "from 1 to 2^32", below)
    numbers = (np.uint64(purpose) << _HALF) + np.arange(slots, dtype=np.uint64)
    bits = _fold(keys[:, None], numbers[None, :])
    # Lemire (2019): the upper half of 32 random bits times the bound is uniform if products whose lower half is
    # below 2^32 mod bound are redrawn. That is rare, so the remainder is computed only where needed.
    product = (bits >> _HALF) * bounds
    doubtful = np.nonzero((product & _LOW) < bounds)
    while len(doubtful[0]):
        bound = bounds[doubtful]
        again = (product[doubtful] & _LOW) < np.uint64(1 << 32) % bound
        doubtful = tuple(axis[again] for axis in doubtful)
        bits[doubtful] = _mix(bits[doubtful] + _STEP)
        product[doubtful] = (bits[doubtful] >> _HALF) * bounds[doubtful]
    return (product >> _HALF).astype(np.int64)


def draw_distinct(
    keys: UInt64[np.ndarray, " n"],
    purpose: int,
    slots: int,
    below: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, "n slots"]:
    """Draw integers from 0 to below - 1 without replacement; every ordered choice is equally likely.

    Example:
        >>> draw_distinct(example_keys(0, 0, np.arange(3)), purpose=0, slots=4, below=np.array([4, 4, 9]))
        array([[3, 0, 1, 2],
               [2, 0, 1, 3],
               [0, 5, 2, 8]])
    """
    check(bool(np.all(below >= slots)), "below", f"at least slots = {slots}", below)
    # Fisher-Yates shuffle of all rows at once, stopped after the first `slots` places.
    places = np.arange(slots)
    chosen = places + draw(keys, purpose, slots, below[:, None] - places)
    rows = np.arange(len(keys))
    deck = np.tile(np.arange(below.max(initial=slots)), (len(keys), 1))
    for place in places:
        other = chosen[:, place]
        deck[rows, other], deck[:, place] = deck[:, place].copy(), deck[rows, other]
    return deck[:, :slots]


def _fold(key: UInt64[np.ndarray, "*#shape"], number: UInt64[np.ndarray, "*#shape"]) -> UInt64[np.ndarray, "*shape"]:
    return _mix(key ^ _mix(number + _STEP))


def _mix(bits: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64[np.ndarray, "*shape"] = bits ^ (bits >> np.uint64(31))
    return mixed


def _one(number: int) -> UInt64[np.ndarray, " one"]:
    # An array, because NumPy warns when a scalar overflows.
    return np.array([number], dtype=np.uint64)
