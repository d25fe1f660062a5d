"""The oracle of lists by brute force over all orders of the missing labels, without code of the package."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from hypothesis import strategies as st

Piece = tuple[int, ...]
END = 0


def split(tokens: Sequence[int], vocabulary: Sequence[Piece]) -> tuple[list[Piece], Piece]:
    """Complete pieces of a row, including (END,), and the incomplete rest."""
    done, rest = [], ()
    for token in tokens:
        rest += (token,)
        if rest in vocabulary or rest == (END,):
            done.append(rest)
            rest = ()
    return done, rest


def next_token(target: Counter[Piece], tokens: Sequence[int], vocabulary: Sequence[Piece]) -> dict[int, float]:
    """Distribution of the next token if all orders of the missing labels are equally likely; {} after the end.

    Instances of the same label are distinguished, as in the paper: each order of the instances counts.
    """
    done, rest = split(tokens, vocabulary)
    missing = Counter(target)
    over = False
    for piece in done:
        if piece == (END,):
            over = over or not missing
        elif missing[piece]:
            missing = +(missing - Counter([piece]))
    if over:
        return {}
    following: Counter[int] = Counter()
    for order in permutations(missing.elements()):
        written = [token for piece in order for token in piece] + [END]
        if tuple(written[: len(rest)]) == rest and (not rest or rest != (END,)):
            following[written[len(rest)]] += 1
    total = sum(following.values())
    return {token: number / total for token, number in following.items()}


def loss(
    log_p: Sequence[Sequence[float]], target: Counter[Piece], tokens: Sequence[int], vocabulary: Sequence[Piece]
) -> float:
    """Sum over the steps of the cross-entropy of the model relative to the oracle."""
    total = 0.0
    for t, row in enumerate(log_p):
        for token, share in next_token(target, tokens[:t], vocabulary).items():
            total -= share * row[token]
    return total


def entropy(target: Counter[Piece], tokens: Sequence[int], vocabulary: Sequence[Piece]) -> float:
    """Sum over the steps of the oracle's entropy."""
    rows = [next_token(target, tokens[:t], vocabulary) for t in range(len(tokens))]
    return -sum(share * math.log(share) for row in rows for share in row.values())


class Lists(NamedTuple):
    """A batch of random lists over a random vocabulary."""

    vocabulary: list[Piece]
    targets: list[Counter[Piece]]
    rows: list[list[int]]
    """Tokens of each list, with missing and other labels, and ends that are early or late."""


@st.composite
def vocabularies(draw: st.DrawFn) -> list[Piece]:
    """Prefix-free pieces of the tokens 2 to 4, terminated by the separator 1 or by 5, a letter merged with it."""
    words = draw(
        st.lists(st.lists(st.sampled_from([2, 3, 4]), max_size=3).map(tuple), min_size=1, max_size=5, unique=True)
    )
    return [(*word, draw(st.sampled_from([1, 5]))) for word in words]


@st.composite
def lists(draw: st.DrawFn) -> Lists:
    """A batch of up to three lists, truncated anywhere."""
    vocabulary = draw(vocabularies())
    targets, rows = [], []
    for _ in range(draw(st.integers(1, 3))):
        target = Counter(draw(st.lists(st.sampled_from(vocabulary), max_size=4)))
        row: list[int] = []
        missing = Counter(target)
        for _ in range(draw(st.integers(0, 6))):
            right = [*missing] or [(END,)]
            piece = draw(st.sampled_from([*right, *right, *vocabulary, (END,)]))
            missing = +(missing - Counter([piece]))
            row += piece
        targets.append(target)
        rows.append(row[: draw(st.integers(0, len(row)))])
    return Lists(vocabulary, targets, rows)
