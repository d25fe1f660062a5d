"""Strings, arrays and DataFrames in memory."""

from __future__ import annotations

import numpy as np
import pytest

from torchmultiset.data.in_memory import read_in_memory

pandas = pytest.importorskip("pandas")


def test_strings_and_arrays_are_recognised():
    for texts in (
        ["a", ""],
        ("a", ""),
        np.array(["a", ""]),
        np.array(["a", ""], dtype=object),
        pandas.Series(["a", ""]),
    ):
        assert read_in_memory(texts).tokens == "text"
    rows = read_in_memory([np.ones((2, 3)), [], [[1, 2, 3]]])
    assert rows.tokens == "either"
    assert rows.inputs.lengths.tolist() == [2, 0, 1]
    for numbers in ([[1, 2]], np.ones((2, 3)), np.ones((2, 1, 4, 4)), pandas.DataFrame({"a": [1.0]}), [1, 2]):
        assert read_in_memory(numbers) is None


def test_a_table_may_have_text_categories_and_numbers():
    table = pandas.DataFrame({"note": [f"n{i}" for i in range(9)], "kind": ["x", "y", "x"] * 3, "n": range(9)})
    read = read_in_memory(table)
    assert read.tokens == "text"
    assert [(column.name, column.text, column.categories) for column in read.columns] == [
        ("note", True, ()),
        ("kind", False, ("x", "y")),
        ("n", False, ()),
    ]
    later = read_in_memory(pandas.DataFrame({"n": [5], "kind": ["y"], "note": [""]}), columns=read.columns)
    assert later.inputs[np.array([0])].tolist() == [[[257, 0, 1, 5]]]
    without = read_in_memory(table[["kind", "n"]])
    assert without.tokens is None
    assert without.inputs.shape == (9, 3)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (["a", 5], "X must be strings only, or no strings, but is 5"),
        ([np.ones((2, 2)), np.ones(3)], "X must be arrays"),
        ([[[1, 2], [3]]], r"X\[0\] must be an array \(N, D\) of finite numbers"),
        ([np.full((1, 2), np.nan)], r"X\[0\] must be an array"),
    ],
)
def test_mixed_inputs_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        read_in_memory(x)
