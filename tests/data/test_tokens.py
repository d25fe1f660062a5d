"""Inputs of varying length, padded per batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmultiset.data import Examples, Inputs
from torchmultiset.data.tokens import LONGEST, START, TokenRows, TokenText, cut_text


@given(st.lists(st.text(), min_size=1, max_size=5), st.data())
def test_a_text_is_encoded_as_its_bytes(texts, data):
    inputs = TokenText(texts)
    assert isinstance(inputs, Inputs)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4)))
    batch = inputs[chosen]
    assert batch.shape[1] == inputs.lengths[chosen].max()
    for row, i in zip(batch[..., 0], chosen, strict=True):
        positions = row[row > 0]
        assert positions[0] == START
        assert bytes((positions[1:] - 1).astype(np.uint8)) == texts[i].encode(errors="replace")
        assert (row[len(positions) :] == 0).all()


def test_columns_are_stored_at_the_first_position():
    batch = TokenText(["ab", ""], np.array([[1.5], [2.5]], dtype=np.float32))[np.array([1, 0])]
    assert batch[..., 1].tolist() == [[2.5, 0, 0], [1.5, 0, 0]]


def test_long_texts_are_cut_between_characters():
    assert len(cut_text("x" * 100_000)) == LONGEST
    assert cut_text("é" * 100_000).decode() == "é" * (LONGEST // 2)
    assert cut_text("x" + "漢" * 100_000).decode() == "x" + "漢" * ((LONGEST - 1) // 3)
    assert TokenText(["😀" * 100_000]).lengths.tolist() == [LONGEST + 1]


def test_lone_surrogates_are_replaced():
    assert cut_text("a\ud800b") == b"a?b"


def test_rows_are_padded_to_the_longest_of_the_batch():
    rows = TokenRows([np.full((n, 2), float(n)) for n in (3, 0, 1)])
    assert isinstance(rows, Inputs)
    assert rows[np.array([1, 2])].tolist() == [[[0, 0, 0]], [[1, 1, 1]]]
    assert rows[np.array([0, 1])].shape == (2, 3, 3)
    assert rows[np.array([1])].shape == (1, 1, 3)
    assert TokenRows([np.zeros((LONGEST + 5, 1))]).lengths.tolist() == [LONGEST]


def test_rows_must_be_equally_wide():
    with pytest.raises(ValueError, match=r"rows must be arrays \(N, D\) with the same D"):
        TokenRows([np.zeros((1, 2)), np.zeros((1, 3))])
    with pytest.raises(ValueError, match=r"rows must be arrays \(N, D\) with the same D"):
        TokenRows([])


@pytest.mark.parametrize(("rows", "width"), [([(0, 0), (1, 3), (0, 5)], 3), ([(0, 0), (0, 2)], 2), ([(0, 0)], 0)])
def test_arrays_without_vectors_fit_any_others(rows, width):
    tokens = TokenRows([np.ones(shape) for shape in rows])
    assert tokens[np.arange(len(rows))].shape == (len(rows), 1, 1 + width)
    assert tokens.lengths.tolist() == [n for n, _ in rows]


def test_examples_of_tokens_have_subsets_and_batches():
    examples = Examples(TokenText(["a", "bcd"]), np.array([[0, 0], [1, -1]]), ("x", "y"))
    assert examples.batch([0, 1]).x.shape == (2, 4, 1)
    assert examples.subset([0]).batch([0]).x.shape == (1, 2, 1)
