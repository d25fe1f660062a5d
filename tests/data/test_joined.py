"""Joined texts, sets and sequences: concatenated inputs, summed counts, reproducible epochs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from torchmultiset.data import Examples
from torchmultiset.data.joined import joined_epochs
from torchmultiset.data.tokens import LONGEST, START, TokenRows, TokenText

WORDS = ["", "a", "b", "ab", "bba", "aaaa", "€a"]
CLASSES = ("a", "b")


def labels_of(words: list[str]) -> np.ndarray:
    labels = np.full((len(words), max(map(len, words))), -1)
    for row, word in zip(labels, words, strict=True):
        found = [CLASSES.index(letter) for letter in word if letter in CLASSES]
        row[: len(found)] = found
    return labels


def words(some: list[str] = WORDS) -> Examples:
    return Examples(TokenText(some), labels_of(some), CLASSES, tokens="text")


def read(x: np.ndarray) -> list[str]:
    """Return the texts of an input, each of which starts with the symbol START."""
    symbols = x[:, 0].astype(int)
    symbols = symbols[symbols > 0]
    starts = [*np.flatnonzero(symbols == START), len(symbols)]
    return [bytes((symbols[a + 1 : b] - 1).tolist()).decode() for a, b in pairwise(starts)]


def test_a_joined_text_is_two_concatenated_texts_with_the_labels_of_both():
    epochs = joined_epochs(words(), 1.0, max_size=4, seed=0)
    orders = set()
    for epoch in range(20):
        joined = epochs(epoch)
        batch = joined.batch(np.arange(len(joined)))
        for i, (x, counts, length) in enumerate(zip(batch.x.numpy(), batch.target, joined.lengths, strict=True)):
            parts = read(x)
            assert len(parts) == 2  # the empty text can be joined with any other
            assert WORDS[i] in parts
            orders.add(parts.index(WORDS[i]))
            assert counts.tolist() == [sum(part.count(name) for part in parts) for name in CLASSES]
            assert counts.sum() <= 4
            assert (x[:length, 0] > 0).all()
            assert (x[length:] == 0).all()
    assert orders == {0, 1}


def test_labels_are_padded_at_the_end():
    labels = joined_epochs(words(), 0.5, max_size=4, seed=1)(3).labels
    assert labels.shape == (len(WORDS), 4)
    assert (np.diff((labels < 0).astype(int), axis=1) >= 0).all()


def test_an_epoch_depends_on_its_number_and_the_seed_only():
    def drawn(seed: int, epoch: int) -> list[list[int]]:
        return joined_epochs(words(), 0.5, max_size=4, seed=seed)(epoch).labels.tolist()

    assert drawn(0, 1) == drawn(0, 1)
    assert len({str(drawn(seed, epoch)) for seed in range(2) for epoch in range(3)}) > 1


def test_probability_zero_changes_nothing():
    some = words()
    same = joined_epochs(some, 0.0, max_size=4, seed=0)(0)
    assert same.counts.tolist() == some.counts.tolist()
    assert np.array_equal(same.inputs[np.arange(7)], some.inputs[np.arange(7)])


def test_an_example_without_a_partner_is_unchanged():
    some = words(["ab", "ba", "aa"])
    same = joined_epochs(some, 1.0, max_size=3, seed=0)(0)
    assert same.counts.tolist() == some.counts.tolist()
    assert same.lengths.tolist() == [3, 3, 3]


def test_texts_that_would_be_too_long_are_not_joined():
    some = Examples(TokenText(["x" * (LONGEST - 1), "y" * 5]), np.array([[0], [1]]), CLASSES, tokens="text")
    for epoch in range(10):
        assert joined_epochs(some, 1.0, max_size=2, seed=0)(epoch).lengths.max() <= LONGEST + 1


def test_sets_are_joined():
    rows = [np.full((n, 2), float(n)) for n in (0, 1, 3)]
    some = Examples(TokenRows(rows), np.array([[-1], [0], [1]]), CLASSES, tokens="set")
    joined = joined_epochs(some, 1.0, max_size=2, seed=0)(0)
    batch = joined.batch([0, 1, 2])
    present = batch.x[..., 0].bool()
    assert present.sum(1).tolist() == joined.lengths.tolist()
    for x, mask, counts in zip(batch.x, present, batch.target, strict=True):
        values = x[mask][:, 1].tolist()
        assert [values.count(1.0), values.count(3.0) // 3] == counts.tolist()


def test_inputs_of_one_length_are_refused():
    with pytest.raises(ValueError, match="examples must be inputs of varying length"):
        joined_epochs(Examples(np.zeros((1, 2)), np.array([[0]]), CLASSES), 0.5, max_size=2, seed=0)


def test_the_last_epochs_have_the_original_examples():
    some = words()
    epochs = joined_epochs(some, 1.0, max_size=4, seed=0, epochs=2)
    assert [epochs(epoch) is some for epoch in range(4)] == [False, False, True, True]
