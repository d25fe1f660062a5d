"""Tables with texts and empty cells."""

from __future__ import annotations

import numpy as np
import pytest
from manifests import ALL_TRAIN, problems_of, write

from torchmultiset.data.manifest import Column, read_manifest

TABLE = (
    "colour,metres,labels,split",
    "red,1,cat,train",
    "blue,,cat,train",
    "red,3,dog,train",
    ",8,dog,validation",
    "pink,nan,dog,test",
)


def rows(examples) -> list[list[float]]:
    return examples.batch(range(len(examples))).x.tolist()


def test_texts_are_encoded_as_categories_and_empty_cells_as_the_training_mean(tmp_path):
    splits = read_manifest(write(tmp_path, "data.csv", *TABLE))
    assert rows(splits["train"]) == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]
    assert rows(splits["validation"]) == [[0, 0, 8]]
    assert rows(splits["test"]) == [[0, 0, 2]]  # no training example is pink
    for examples in splits.values():
        assert examples.columns == (Column("colour", ("blue", "red"), empty=1), Column("metres", mean=2.0, empty=2))


def test_a_later_table_is_encoded_like_the_first_in_any_column_order(tmp_path):
    columns = read_manifest(write(tmp_path, "data.csv", *TABLE))["train"].columns
    later = write(tmp_path, "later.csv", "metres,colour", "5,red", ",red", "7,")
    options = {"classes": ["cat", "dog"], "labelled": False, "fractions": ALL_TRAIN, "columns": columns}
    assert rows(read_manifest(later, **options)["train"]) == [[0, 1, 5], [0, 1, 2], [0, 0, 7]]
    other = write(tmp_path, "other.csv", "metres,colour", "5,red", "5,green", "5,7")
    with pytest.warns(
        UserWarning, match=r"2 of 3 cells of 'colour' have a category not seen in training, such as 'green'"
    ):
        assert rows(read_manifest(other, **options)["train"]) == [[0, 1, 5], [0, 0, 5], [0, 0, 5]]
    misnamed = write(tmp_path, "misnamed.csv", "metres,color", "far,red", "near,blue")
    assert [what.partition(":")[0] for _, what in problems_of(misnamed, **options)] == [
        "the column 'colour', used in training, is missing",
        "the column 'color' was not used in training (did you mean 'colour'?)",
        "'metres' must be a number such as 0.5, but is 'far' (2 lines have no number there)",
    ]


def test_features_of_jsonl_may_have_names(tmp_path):
    path = write(
        tmp_path,
        "data.jsonl",
        {"features": {"colour": "red", "metres": 1}, "labels": ["cat"], "split": "train"},
        {"features": {"metres": None, "colour": " red "}, "labels": ["cat"], "split": "train"},
        {"features": {"metres": 2.5, "colour": ""}, "labels": ["cat"], "split": "test"},
    )
    splits = read_manifest(path)
    assert rows(splits["train"]) == [[1, 1], [1, 1]]
    assert rows(splits["test"]) == [[0, 2.5]]
    path = write(
        tmp_path,
        "other.jsonl",
        {"features": {"a": 1, "b": 1}, "labels": ["cat"]},
        {"features": {"a": 1, "c": 1}, "labels": ["cat"]},
        {"features": [1, 2], "labels": ["cat"]},
    )
    assert problems_of(path) == [
        (2, "the feature names differ from those on line 1: 'b, c'"),
        (3, "the line has 2 features, but line 1 has 0"),
    ]


@pytest.mark.parametrize(
    ("cells", "line", "message"),
    [
        # One message for any number of cells.
        (["1", "two", "three", "4"] * 9, 3, "'x' must be a number such as 0.5, but is 'two' (18 lines have no number"),
        (['"1,5"', '"2,5"'] * 9, 2, "but is '1,5' (18 lines have no number there): write 1.5"),
        (
            [f"{i}.png" for i in range(30)],
            0,
            "'x' has 30 different values in 30 lines, which look like paths: name it 'image' or 'array'",
        ),
        ([""] * 9, 0, "the column 'x' is empty in all training examples: fill it in, or remove it"),
    ],
)
def test_an_unreadable_column_is_reported_once(tmp_path, cells, line, message):
    path = write(tmp_path, "data.csv", "x,y,labels", *(f"{cell},1,cat" for cell in cells))
    ((number, what),) = problems_of(path, fractions=ALL_TRAIN)
    assert number == line
    assert message in what


def test_without_training_examples_all_lines_determine_the_columns(tmp_path):
    path = write(tmp_path, "data.csv", "x,colour,labels,split", "1,red,cat,test", ",blue,cat,test", "3,red,cat,test")
    splits = read_manifest(path)
    assert rows(splits["test"]) == [[1, 0, 1], [2, 1, 0], [3, 0, 1]]
    assert splits["train"].inputs[np.array([], dtype=int)].shape == (0, 3)
