from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import ALL_TRAIN, problems_of, together, write

from torchmultiset.data._splits import split_by_id
from torchmultiset.data.manifest import read_manifest


def test_given_classes_keep_their_order_and_may_include_unused_ones(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels,split", "1,b;a,train")
    train = read_manifest(path, classes=["c", "b", "a"])["train"]
    assert train.classes == ("c", "b", "a")
    assert train.counts.tolist() == [[0, 1, 1]]


def test_a_data_set_of_empty_multisets_needs_classes(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels,split", "1,,train", "2,,train")
    ((line, what),) = problems_of(path)
    assert line == 0
    assert what.startswith("no line has a label: add examples with labels, or specify the class names")
    train = read_manifest(path, classes=["a"])["train"]
    assert train.batch([0, 1]).target.tolist() == [[0], [0]]


def test_labels_unknown_to_the_given_classes_are_listed_with_a_hint(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", "1,cat", "2,horse;hrose;horse", "3,Cat;zebra:2", "4,zebra")
    assert problems_of(path, classes=["cat", "horse"]) == [
        (3, "the label 'hrose' is not one of the classes (did you mean 'horse'?)"),
        (4, "the label 'Cat' is not one of the classes (did you mean 'cat'?)"),
        (4, "the label 'zebra' is not one of the classes"),
        (5, "the label 'zebra' is not one of the classes"),
    ]


def test_labels_that_differ_only_in_case_or_unicode_form_must_be_given_as_classes(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", "1,cat;caf\u00e9", "2,Cat", "3,cafe\u0301", "4,Cat")
    (line, what), (line_2, _) = problems_of(path)
    assert (line, line_2) == (3, 4)
    assert "'cat' and 'Cat' differ only in case or Unicode form" in what
    both = ["cat", "Cat", "caf\u00e9", "cafe\u0301"]
    assert len(together(read_manifest(path, classes=both))) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": []}, "classes must be a list of names"),
        ({"classes": "cat"}, "classes must be a list of names"),
        ({"classes": ["cat", " dog"]}, "classes must be a list of names without surrounding spaces"),
        ({"classes": ["cat", "dog", "cat"]}, r"classes must be unique, but \['cat'\] occur more than once"),
        ({"fractions": (0.5, 0.5)}, "fractions must be three numbers"),
        ({"fractions": (0.5, 0.6, -0.1)}, "fractions must be three numbers"),
        ({"fractions": (0.5, 0.2, 0.2)}, "that sum to 1"),
        ({"fractions": (float("nan"), 0.5, 0.5)}, "fractions must be three numbers"),
        ({"image_size": 0}, "image_size must be at least 1 pixel"),
    ],
)
def test_invalid_arguments_are_refused_with_their_names(tmp_path, options, message):
    path = write(tmp_path, "data.csv", "x,labels", "1,cat", "2,cat", "3,cat")
    with pytest.raises(ValueError, match=message):
        read_manifest(path, **options)


def test_a_split_that_does_not_occur_in_the_column_is_empty(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels,split", "1,a,test", "2,a;a,train", "3,b,test")
    splits = read_manifest(path)
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 1, "validation": 0, "test": 2}
    assert splits["validation"].batch([]).target.shape == (0, 2)


def test_splits_by_seed_contain_every_example_once_and_are_reproducible(tmp_path):
    rows = [f"{i},a:{i % 3},id {i}" for i in range(200)]
    path = write(tmp_path, "data.csv", "x,labels,id", *rows)
    splits, again, other = (read_manifest(path, seed=seed) for seed in (1, 1, 2))
    all_ids = [name for examples in splits.values() for name in examples.ids]
    assert sorted(all_ids) == sorted(f"id {i}" for i in range(200))
    assert all(splits[name].ids == again[name].ids for name in splits)
    assert splits["test"].ids != other["test"].ids
    random.Random(0).shuffle(rows)
    shuffled = read_manifest(write(tmp_path, "shuffled.csv", "x,labels,id", *rows), seed=1)
    assert all(set(splits[name].ids) == set(shuffled[name].ids) for name in splits)


@given(st.integers(3, 40), st.integers(1, 40), st.integers(0, 99))
def test_adding_lines_does_not_move_the_others(count, more, seed):
    ids = [f"{i}.jpg" for i in range(count + more)]
    shares = (0.5, 0.25, 0.25)
    before, after = split_by_id(ids[:count], shares, seed), split_by_id(ids, shares, seed)
    # An example moved into an empty split, where it was the only one, may move back.
    alone = np.bincount(before)[before] == 1
    assert ((before == after[:count]) | alone).all()


@pytest.mark.slow
@given(
    st.lists(st.text(max_size=5), min_size=3, max_size=12, unique=True),
    st.integers(0, 99),
    st.sampled_from(
        [(0.7, 0.15, 0.15), (0.98, 0.01, 0.01), (0.01, 0.98, 0.01), (0.0, 0.5, 0.5), (0.9, 0.1, 0.0), ALL_TRAIN]
    ),
)
def test_exactly_the_splits_with_a_positive_fraction_have_examples(ids, seed, fractions):
    sizes = np.bincount(split_by_id(ids, fractions, seed), minlength=3)
    assert ((sizes > 0) == (np.array(fractions) > 0)).all()
    assert sizes.sum() == len(ids)


@given(
    st.lists(st.booleans(), min_size=3, max_size=12),
    st.integers(0, 99),
    st.sampled_from([(0.7, 0.15, 0.15), ALL_TRAIN]),
)
def test_training_has_a_label_if_any_example_has(labelled, seed, fractions):
    ids, has = [f"{i}.jpg" for i in range(len(labelled))], np.array(labelled)
    drawn, splits = split_by_id(ids, fractions, seed), split_by_id(ids, fractions, seed, labelled=has)
    assert has[splits == 0].any() == has.any()
    assert (np.bincount(splits, minlength=3) == np.bincount(drawn, minlength=3)).all()
    assert (splits != drawn).sum() == (0 if has[drawn == 0].any() or not has.any() else 2)


def test_splits_by_seed_have_the_given_fractions():
    ids = [f"{i}.jpg" for i in range(20_000)]
    sizes = np.bincount(split_by_id(ids, (0.7, 0.15, 0.15), seed=3))
    wanted = np.array([0.7, 0.15, 0.15]) * len(ids)
    assert ((sizes - wanted) ** 2 / wanted).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001


def test_too_few_examples_for_three_splits_are_reported(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", "1,a", "2,a")
    ((line, what),) = problems_of(path)
    assert line == 0
    assert "2 examples cannot fill 3 splits" in what
    assert len(read_manifest(path, fractions=(0.5, 0.0, 0.5))["test"]) == 1
