"""Manifests with text, sets and sequences."""

from __future__ import annotations

import numpy as np
import pytest
from manifests import ALL_TRAIN, problems_of, write

from torchmultiset.data.manifest import Column, read_manifest
from torchmultiset.data.tokens import LONGEST, START

NAMES = ["methane", "ethane", "éthanol", "", "3-methyl, 2", "x" * 100_000]


def texts(examples) -> list[str]:
    """Texts of all examples, decoded from their bytes."""
    rows = examples.batch(range(len(examples))).x[..., 0].int().tolist()
    assert all(row[0] == START for row in rows)
    return [bytes(value - 1 for value in row[1:] if value).decode() for row in rows]


def whole(path, **options):
    return read_manifest(path, fractions=ALL_TRAIN, **options)["train"]


def test_a_column_named_text_is_always_text(tmp_path):
    path = write(tmp_path, "data.csv", "Text,labels", "12,a", "12,a", "nan,b", ",a", '"two, words",a', "012,a")
    examples = whole(path)
    assert examples.tokens == "text"
    assert texts(examples) == ["12", "12", "nan", "", "two, words", "012"]
    assert examples.columns == (Column("text", text=True, empty=1),)


def test_text_is_recognised_and_truncated(tmp_path):
    path = write(tmp_path, "data.csv", "name,labels", *(f'"{name}",a' for name in NAMES))
    examples = whole(path)
    assert texts(examples) == [*NAMES[:-1], "x" * LONGEST]
    (column,) = examples.columns
    assert (column.text, column.different, column.empty) == (True, 5, 1)
    assert examples.cut == 1


def test_a_handful_of_strings_are_categories(tmp_path):
    path = write(tmp_path, "data.csv", "name,labels", *["red,a", "blue,a"] * 5)
    assert whole(path).tokens is None
    assert whole(path).columns[0].categories == ("blue", "red")
    many = write(tmp_path, "many.csv", "name,labels", *(f"word {i % 101},a" for i in range(909)))
    assert whole(many).columns[0] == Column("name", text=True, different=101)


def test_a_table_may_have_text_numbers_and_categories(tmp_path):
    lines = [f"{name},{i},{'red' if i % 2 else 'blue'},a" for i, name in enumerate(["ab", "cd", "ef", "gh", "ij"])]
    path = write(tmp_path, "data.csv", "name,metres,colour,labels", *lines)
    examples = whole(path)
    assert texts(examples) == ["ab", "cd", "ef", "gh", "ij"]
    x = examples.batch(range(5)).x
    assert x[:, 0, 1:].tolist() == [[i, 1 - i % 2, i % 2] for i in range(5)]
    assert (x[:, 1:, 1:] == 0).all()
    later = write(tmp_path, "later.csv", "colour,name,metres", "red,7,1", "pink,,")
    with pytest.warns(UserWarning, match="1 of 2 cells of 'colour' have a category not seen in training"):
        again = whole(later, classes=["a"], labelled=False, columns=examples.columns)
    assert texts(again) == ["7", ""]
    assert again.batch([0, 1]).x[:, 0, 1:].tolist() == [[1, 0, 1], [2, 0, 0]]


def test_several_text_columns_are_joined(tmp_path):
    lines = {"title": "t{}", "body": "b{}"}
    rows = [{"features": {k: v.format(i) for k, v in lines.items()}, "labels": ["a"]} for i in range(9)]
    assert texts(whole(write(tmp_path, "data.jsonl", *rows)))[:2] == ["t0\nb0", "t1\nb1"]


def test_jsonl_may_have_text_with_or_without_features(tmp_path):
    alone = [{"text": text, "labels": ["a"]} for text in ("b", "b", "漢字 \ud800", "")]
    assert texts(whole(write(tmp_path, "alone.jsonl", *alone))) == ["b", "b", "漢字 ?", ""]
    beside = [{"text": "b", "features": features, "labels": ["a"]} for features in ([1, 2], [3, 4])]
    assert whole(write(tmp_path, "beside.jsonl", *beside)).batch([0, 1]).x[:, 0, 1:].tolist() == [[1, 2], [3, 4]]


ROWS = [[[1, 2], [3, 4]], [], [[5, 6]]]
AS_READ = [[[1, 1, 2], [1, 3, 4]], [[0, 0, 0], [0, 0, 0]], [[1, 5, 6], [0, 0, 0]]]


@pytest.mark.parametrize("key", ["set", "sequence"])
def test_jsonl_may_have_sets_and_sequences(tmp_path, key):
    examples = whole(write(tmp_path, "data.jsonl", *({key: rows, "labels": ["a"]} for rows in ROWS)))
    assert examples.tokens == key
    assert examples.batch([0, 1, 2]).x.tolist() == AS_READ


def test_features_that_are_arrays_of_arrays_are_vectors(tmp_path):
    examples = whole(
        write(tmp_path, "data.jsonl", *({"features": rows, "labels": ["a"]} for rows in (ROWS[0], ROWS[2])))
    )
    assert examples.tokens == "either"
    assert examples.batch([0, 1]).x.tolist() == [AS_READ[0], AS_READ[2]]


@pytest.mark.parametrize("key", ["set", "array"])
def test_sets_may_be_files_of_vectors(tmp_path, key):
    for i, rows in enumerate(ROWS):
        np.save(tmp_path / f"{i}.npy", np.array(rows).reshape(-1, 2))
    examples = whole(write(tmp_path, "data.csv", f"{key},labels", *(f"{i}.npy,a" for i in range(3))))
    assert examples.tokens == {"set": "set", "array": "either"}[key]
    assert examples.batch([0, 1, 2]).x.tolist() == AS_READ


def test_arrays_of_one_shape_are_images(tmp_path):
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.zeros((5, 4)))
    examples = whole(write(tmp_path, "data.csv", "array,labels", *(f"{i}.npy,a" for i in range(3))))
    assert examples.tokens is None
    assert examples.batch([0]).x.shape == (1, 1, 5, 4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"text": 5, "labels": []}], "'text' must be a string, but is 5"),
        ([{"text": "a", "image": "b.png", "labels": []}], "each line must have one input, .* has image and text"),
        (
            [{"set": [[1, 2], [3]], "labels": []}],
            "'set' must have vectors of one length, but has some of 1 and 2 numbers",
        ),
        (
            [{"set": [1, 2], "labels": []}],
            r"'set' must look like \[\[0.5, 2\], \[1, 3\]\] or be the path of an .npy file",
        ),
        ([{"set": [[]], "labels": []}], "'set' must look like"),
        ([{"sequence": [["a"]], "labels": []}], "vector 1 of 'sequence' must be a finite number"),
        ([{"set": [[float("inf")]], "labels": []}], "vector 1 of 'set' must be a finite number"),
        ([{"set": [[1]], "labels": ["a"]}, {"set": [[1, 2]], "labels": []}], "line 2: the vectors have 2 numbers, but"),
        ([{"set": [], "labels": ["a"]}], "all sets and sequences are empty: add vectors"),
        (
            [{"set": [[1]], "labels": ["a"]}, {"text": "b", "labels": []}],
            "the input is features, but on line 1 it is set",
        ),
        ([{"set": "none.npy", "labels": ["a"]}], "there is no file .*none.npy"),
        ([{"set": "flat.npy", "labels": ["a"]}], r"flat.npy: must contain numbers of shape \(vectors, features\)"),
        ([{"set": "nan.npy", "labels": ["a"]}], "nan.npy: contains NaN"),
        ([{"set": "cut.npy", "labels": ["a"]}], "cut.npy is damaged or not a NumPy file"),
        ([{"set": [[1]], "boxes": [[0, 0, 1, 1]], "labels": ["a"]}], "'boxes' requires an image or an array as input"),
    ],
)
def test_problems_are_reported_with_their_line(tmp_path, lines, message):
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    path = write(tmp_path, "data.jsonl", *lines)
    with pytest.raises(ValueError, match=message):
        whole(path)


def test_a_column_of_numbers_and_text_is_reported_with_a_remedy(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", "1,a", "one,a")
    ((_, what),) = problems_of(path, fractions=ALL_TRAIN)
    assert "name a column of text 'text'" in what
