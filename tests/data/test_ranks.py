from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchmultiset.data.ranks import area_rank, class_permutation, random_rank, spatial_rank
from torchmultiset.multiset import equal, from_labels

CLASSES = 6
HEIGHT = 20


class Item(NamedTuple):
    label: int
    area: int
    box: tuple[int, int, int, int]


# Few different values, so that ties are common; boxes reach beyond the input.
items = st.builds(
    Item,
    st.integers(0, CLASSES - 1),
    st.integers(0, 4),
    st.tuples(st.integers(-4, 24), st.integers(-4, 24), st.integers(0, 9), st.integers(0, 9)),
)
batches = st.lists(st.lists(items, max_size=6), min_size=1, max_size=4)
seeds = st.integers(0, 2**32 - 1)


def tensors(rows: list[list[Item]]) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, areas and boxes with padding, whose areas and boxes have values that must not matter."""
    longest = max(map(len, rows))
    padded = [[*row, *[Item(-1, 3, (5, 5, 2, 2))] * (longest - len(row))] for row in rows]
    labels = torch.tensor([[item.label for item in row] for row in padded], dtype=torch.int64)
    areas = torch.tensor([[item.area for item in row] for row in padded], dtype=torch.float32)
    boxes = torch.tensor([[item.box for item in row] for row in padded], dtype=torch.float32)
    return labels.reshape(len(rows), -1), areas.reshape(len(rows), -1), boxes.reshape(len(rows), -1, 4)


def reading_order(item: Item, bands: int) -> tuple[int, Fraction]:
    x, y, width, height = map(Fraction, item.box)
    band = (y + height / 2) * bands // HEIGHT
    return min(max(band, 0), bands - 1), x + width / 2


def without_padding(sequence: Tensor) -> list[list[int]]:
    """Rows without padding, which must be -1 and at the end."""
    rows = []
    for row in sequence.tolist():
        kept = [label for label in row if label >= 0]
        assert row == kept + [-1] * (len(row) - len(kept))
        rows.append(kept)
    return rows


@given(batches, st.permutations(range(CLASSES)))
def test_random_rank_sorts_by_decreasing_rank_of_the_class(rows, ranks):
    sequence = random_rank(tensors(rows)[0], torch.tensor(ranks))
    wanted = [sorted((item.label for item in row), key=lambda c: ranks[c], reverse=True) for row in rows]
    assert without_padding(sequence) == wanted


@given(batches)
def test_area_rank_puts_the_largest_first_and_keeps_ties_in_order(rows):
    labels, areas, _ = tensors(rows)
    wanted = [[item.label for item in sorted(row, key=lambda item: -item.area)] for row in rows]
    assert without_padding(area_rank(labels, areas)) == wanted


@given(batches, st.sampled_from([1, 2, 3, 5, 40]))
def test_spatial_rank_is_reading_order(rows, bands):
    labels, _, boxes = tensors(rows)
    wanted = [[item.label for item in sorted(row, key=lambda i: reading_order(i, bands))] for row in rows]
    assert without_padding(spatial_rank(labels, boxes, bands=bands, height=HEIGHT)) == wanted


@given(batches, seeds)
def test_every_rank_keeps_the_multiset(rows, seed):
    labels, areas, boxes = tensors(rows)
    permutation = class_permutation(CLASSES, torch.Generator().manual_seed(seed))
    for sequence in (
        random_rank(labels, permutation),
        area_rank(labels, areas),
        spatial_rank(labels, boxes, bands=3, height=HEIGHT),
    ):
        assert sequence.shape == labels.shape
        assert sequence.dtype == torch.int64
        assert equal(from_labels(sequence, CLASSES), from_labels(labels, CLASSES)).all()


@given(batches, seeds)
def test_the_order_of_the_annotations_only_breaks_ties(rows, seed):
    shuffled = [random.Random(seed).sample(row, len(row)) for row in rows]
    permutation = class_permutation(CLASSES, torch.Generator().manual_seed(seed))
    (labels, areas, boxes), (labels_2, areas_2, boxes_2) = tensors(rows), tensors(shuffled)
    # Two labels of one class are equal, so there are no ties.
    assert torch.equal(random_rank(labels, permutation), random_rank(labels_2, permutation))

    def distinct(keys: list[object]) -> bool:
        return len(set(keys)) == len(keys)

    by_area = area_rank(labels, areas), area_rank(labels_2, areas_2)
    by_place = (
        spatial_rank(labels, boxes, bands=3, height=HEIGHT),
        spatial_rank(labels_2, boxes_2, bands=3, height=HEIGHT),
    )
    for i, row in enumerate(rows):
        if distinct([item.area for item in row]):
            assert torch.equal(by_area[0][i], by_area[1][i])
        if distinct([reading_order(item, 3) for item in row]):
            assert torch.equal(by_place[0][i], by_place[1][i])


def test_padding_in_the_middle_moves_to_the_end():
    labels = torch.tensor([[-1, 2, -5, 0]])
    zeros = torch.zeros(1, 4)
    assert area_rank(labels, zeros).tolist() == [[2, 0, -1, -1]]
    assert random_rank(labels, torch.tensor([2, 1, 0])).tolist() == [[0, 2, -1, -1]]
    assert spatial_rank(labels, torch.zeros(1, 4, 4), bands=1, height=1).tolist() == [[2, 0, -1, -1]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_batches_and_empty_rows_are_allowed(shape):
    labels = torch.full(shape, -1)
    assert area_rank(labels, torch.zeros(shape)).shape == shape
    assert random_rank(labels, torch.tensor([0])).shape == shape
    assert spatial_rank(labels, torch.zeros(*shape, 4), bands=2, height=9).shape == shape


def test_objects_in_one_band_are_read_from_left_to_right():
    labels = torch.tensor([[1, 0]])
    boxes = torch.tensor([[[50.0, 9, 10, 10], [10.0, 11, 10, 10]]])
    assert spatial_rank(labels, boxes, bands=4, height=100).tolist() == [[0, 1]]
    assert spatial_rank(labels, boxes, bands=100, height=100).tolist() == [[1, 0]]


def test_a_permutation_gives_each_class_one_rank_and_is_reproducible():
    first, again, other = (class_permutation(50, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert Counter(first.tolist()) == Counter(range(50))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_successive_permutations_of_a_generator_differ():
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(class_permutation(50, generator), class_permutation(50, generator))


LABELS = torch.tensor([[0, 1, 2]])


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: class_permutation(0, torch.Generator()), "num_classes must be at least 1"),
        (lambda: random_rank(LABELS, torch.tensor([0, 1])), "labels from 0 to 1, but holds 2"),
        (lambda: random_rank(LABELS, torch.tensor([0, 1, 1])), "a unique rank for each class"),
        (lambda: random_rank(LABELS, torch.tensor([[0, 1, 2]])), r"permutation must be .* shape \(C,\)"),
        (lambda: random_rank(LABELS[0], torch.tensor([0, 1, 2])), r"labels must be .* shape \(B, T\)"),
        (lambda: area_rank(LABELS, torch.zeros(1, 2)), r"areas must be .*\(1, 3\), but is .*\(1, 2\)"),
        (lambda: area_rank(LABELS, torch.zeros(1, 3).long()), "areas must be a floating-point tensor"),
        (lambda: area_rank(LABELS.float(), torch.zeros(1, 3)), "labels must be an int64 tensor"),
        (lambda: spatial_rank(LABELS, torch.zeros(1, 3), bands=2, height=9), r"boxes must be .*\(1, 3, 4\)"),
        (lambda: spatial_rank(LABELS, torch.zeros(1, 3, 4), bands=0, height=9), "bands must be at least 1"),
        (lambda: spatial_rank(LABELS, torch.zeros(1, 3, 4), bands=2, height=0), "height must be greater than 0"),
    ],
)
def test_invalid_input_is_refused_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
