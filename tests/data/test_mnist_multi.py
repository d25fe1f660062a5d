"""The distribution and the content of the images of MNIST Multi, and the parameters that are refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from chance import assert_expected, assert_uniform
from toy_digits import flat_digits, pixels

from torchmultiset.data.digits import Digits, load_digits
from torchmultiset.data.mnist_multi import VARIANTS, MnistMulti, generate, stream

# --- distribution


def test_the_variants_have_the_parameters_of_the_paper() -> None:
    four, up_to_four, ten = (VARIANTS[name] for name in ("4", "1-4", "10"))
    assert (four.sizes, four.digit_px) == ((4, 4), (20, 50))
    assert (up_to_four.sizes, up_to_four.digit_px) == ((1, 4), (20, 50))
    assert (ten.sizes, ten.digit_px) == ((10, 10), (20, 20))
    for variant in VARIANTS.values():
        assert variant.canvas == 100
        assert (variant.clutter, variant.clutter_px) == (8, 5)
        assert (variant.train, variant.validation, variant.test) == (63_000, 7_000, 10_000)
        assert variant.classes == tuple(range(10))
        assert variant.repeats


@pytest.mark.parametrize("name", ["4", "1-4"])
def test_numbers_sizes_and_digits_are_uniform(name: str) -> None:
    """Over 12,000 images. Classes have different numbers of digits in the pool; digits are uniform, not classes."""
    labels = [min(i // 10, 9) for i in range(200)]
    examples = generate(replace(VARIANTS[name], clutter=0), flat_digits(range(1, 201), labels), "train", range(12_000))
    present, slots = examples.labels >= 0, np.arange(4)
    sizes = present.sum(1)
    if name == "4":
        assert (sizes == 4).all()
    else:
        assert_uniform(sizes - 1, 4)
    # Padding follows the labels.
    assert (present == (slots < sizes[:, None])).all()

    px = examples.boxes[..., 2].astype(int)
    corner = examples.boxes[..., :2].astype(int)
    digit = pixels(examples)[np.arange(12_000)[:, None], corner[..., 1], corner[..., 0]].astype(int) - 1
    for slot in slots:
        assert_uniform(px[present[:, slot], slot] - 20, 31)
        assert_uniform(digit[present[:, slot], slot], 200)
    np.testing.assert_array_equal(examples.labels[present], np.array(labels)[digit[present]])
    expected = np.bincount(labels, minlength=10) / 200 * present.sum()
    assert_expected(np.bincount(examples.labels[present], minlength=10), expected)

    # Successive digits are independent, and so are size and class.
    pair = present[:, 1]
    assert_uniform(digit[pair, 0] // 20 * 10 + digit[pair, 1] // 20, 100)
    assert_uniform(digit[present] // 20 * 31 + px[present] - 20, 310)


@pytest.mark.slow
def test_places_are_uniform() -> None:
    """Ten digits of 20 px are uniform over 25 cells, and positions within a cell are uniform."""
    examples = generate(VARIANTS["10"], flat_digits(range(1, 11)), "train", range(10_000))
    corner = examples.boxes[..., :2].astype(int)
    assert (corner % 20 == 0).all()
    cell = corner[..., 1] // 20 * 5 + corner[..., 0] // 20
    assert all(len(set(row)) == 10 for row in cell.tolist())
    for slot in (0, 9):
        assert_uniform(cell[:, slot], 25)

    # If the largest digit has 50 px, a digit of 41 px has 10 x 10 positions in each of the four cells.
    examples = generate(MnistMulti(digit_px=(41, 50)), flat_digits(range(1, 11)), "train", range(12_000))
    px = examples.boxes[..., 2]
    chosen = (px == 41) & (px.max(1, keepdims=True) == 50)
    corner = examples.boxes[chosen][:, :2].astype(int)
    assert_uniform(corner[:, 1] // 50 * 2 + corner[:, 0] // 50, 4)
    assert_uniform(corner[:, 1] % 50 * 10 + corner[:, 0] % 50, 100)


@pytest.mark.slow
def test_clutter_is_uniform() -> None:
    """Source digit, source position and target position are uniform over about 10,000 images of a single piece."""
    ramp = (1 + np.arange(28) + 28 * np.arange(9)[:, None]).astype(np.uint8)
    down = np.repeat(ramp[:, :, None], 28, axis=2)
    parameters = MnistMulti(sizes=(0, 1), clutter=1, classes=(0,))
    for images, axis in ((down, 1), (down.transpose(0, 2, 1).copy(), 2)):
        examples = generate(parameters, Digits(images, np.zeros(9, dtype=np.int64)), "train", range(20_000))
        only = pixels(examples)[examples.labels[:, 0] < 0]
        assert len(only) > 9_500
        assert ((only > 0).sum((1, 2)) == 25).all()
        position = (only.max(3 - axis) > 0).argmax(1)
        first = np.where(only > 0, only, 255).min((1, 2)).astype(int) - 1
        assert_uniform(position, 96)
        assert_uniform(first // 28, 9)
        assert_uniform(first % 28, 24)


def test_without_repeats_classes_are_uniform() -> None:
    """Every ordered pair of different classes is equally likely, although the pool is unbalanced."""
    labels = [0] * 60 + [1] * 30 + [2, 3, 4] * 20
    parameters = MnistMulti(sizes=(2, 4), classes=(0, 1, 2, 3, 4), repeats=False, clutter=0)
    examples = generate(parameters, flat_digits(range(1, 151), labels), "train", range(12_000))
    assert all(len({label for label in row if label >= 0}) == sum(x >= 0 for x in row) for row in examples.labels)
    pairs = {pair: i for i, pair in enumerate(itertools.permutations(range(5), 2))}
    assert_uniform(np.array([pairs[tuple(row)] for row in examples.labels[:, :2].tolist()]), 20)
    # Digits of a class are uniform.
    corner = examples.boxes[:, 0, :2].astype(int)
    digit = pixels(examples)[np.arange(12_000), corner[:, 1], corner[:, 0]].astype(int) - 1
    assert_uniform(digit[examples.labels[:, 0] == 0], 60)
    np.testing.assert_array_equal(np.array(labels)[digit], examples.labels[:, 0])


def test_only_the_given_classes_occur() -> None:
    examples = generate(MnistMulti(classes=(7, 2)), flat_digits(range(1, 101)), "train", range(200))
    assert examples.classes == ("7", "2")
    assert set(np.unique(examples.labels)) == {0, 1}
    corner = examples.boxes[:, 0, :2].astype(int)
    value = pixels(examples)[np.arange(200), corner[:, 1], corner[:, 0]].astype(int)
    np.testing.assert_array_equal((value - 1) % 10, np.array([7, 2])[examples.labels[:, 0]])


# --- content


@pytest.mark.parametrize("name", VARIANTS)
def test_boxes_contain_exactly_the_digits(name: str) -> None:
    """Flat digits fill their boxes, all other pixels are zero, and boxes neither overlap nor leave the canvas."""
    examples = generate(replace(VARIANTS[name], clutter=0), flat_digits(range(1, 251)), "train", range(300))
    for image, labels, boxes, areas in zip(
        pixels(examples), examples.labels, examples.boxes, examples.areas, strict=True
    ):
        left = image.copy()
        for label, (x, y, w, h), area in zip(labels, boxes.astype(int), areas, strict=True):
            if label < 0:
                assert (x, y, w, h, area) == (0, 0, 0, 0, 0)
                continue
            assert w == h
            assert area == w * h
            inside = left[y : y + h, x : x + w]
            assert inside.shape == (h, w)
            assert len(np.unique(inside)) == 1
            assert inside[0, 0] > 0
            assert (inside[0, 0] - 1) % 10 == label
            inside[:] = 0
        assert not left.any()


def test_each_digit_has_its_own_cell_of_the_size_of_the_largest() -> None:
    examples = generate(VARIANTS["1-4"], flat_digits(range(1, 11)), "train", range(1000))
    for labels, boxes in zip(examples.labels, examples.boxes.astype(int), strict=True):
        present = boxes[labels >= 0]
        cell = present[:, 2].max()
        first, last = present[:, :2] // cell, (present[:, :2] + present[:, 2:] - 1) // cell
        np.testing.assert_array_equal(first, last)
        assert last.max() < 100 // cell
        assert len({tuple(place) for place in first.tolist()}) == len(present)


def test_boxes_contain_the_labelled_digit() -> None:
    """With one real digit per class, the pixels are those of its image, resized bilinearly."""
    bundled = load_digits("bundled").train
    images = np.stack([bundled.images[bundled.labels == label][0] for label in range(10)])
    examples = generate(MnistMulti(clutter=0), Digits(images, np.arange(10)), "train", range(30))
    for image, labels, boxes in zip(pixels(examples), examples.labels, examples.boxes, strict=True):
        for label, (x, y, px, _) in zip(labels, boxes.astype(int), strict=True):
            centre = np.clip((np.arange(px) + 0.5) * 28 / px - 0.5, 0, 27)
            rows = np.stack([np.interp(centre, np.arange(28), column) for column in images[label].T], 1)
            expected = np.stack([np.interp(centre, np.arange(28), row) for row in rows])
            assert np.abs(image[y : y + px, x : x + px] - expected).max() <= 1.5


def test_digits_cover_clutter_where_they_are_not_black() -> None:
    digits = load_digits("bundled").train
    plain = generate(MnistMulti(clutter=0), digits, "train", range(100))
    cluttered = generate(MnistMulti(), digits, "train", range(100))
    np.testing.assert_array_equal(plain.labels, cluttered.labels)
    np.testing.assert_array_equal(plain.boxes, cluttered.boxes)
    digit = pixels(plain) > 0
    np.testing.assert_array_equal(pixels(cluttered)[digit], pixels(plain)[digit])
    around = (pixels(cluttered) > 0) & ~digit
    assert around.sum((1, 2)).max() <= 8 * 25
    assert around.any((1, 2)).mean() > 0.9
    # There is clutter inside the boxes, too, where the digit is black.
    corner = plain.boxes[:, 0].astype(int)
    assert any(around[i, y : y + px, x : x + px].any() for i, (x, y, px, _) in enumerate(corner))


def test_an_image_may_be_empty() -> None:
    examples = generate(MnistMulti(sizes=(0, 2), clutter=0), flat_digits(range(1, 11)), "train", range(50))
    empty = (examples.labels < 0).all(1)
    assert 0 < empty.sum() < 50
    assert not pixels(examples)[empty].any()
    assert pixels(examples)[~empty].any((1, 2)).all()


# --- refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": (5, 5)}, "5 digits of up to 50 px cannot always fit on a canvas of 100 px: .* 2 x 2 cells"),
        ({"sizes": (5, 5)}, "at most 4 digits, or digits of at most 33 px, or a canvas of at least 150 px"),
        ({"sizes": (1, 5)}, "5 digits of up to 50 px cannot always fit"),
        ({"digit_px": (20, 51)}, "4 digits of up to 51 px cannot always fit"),
        ({"canvas": 99}, "a canvas of at least 100 px"),
        ({"sizes": (26, 26), "digit_px": (20, 20)}, "at most 25 digits, or digits of at most 16 px"),
        ({"sizes": (1, 1), "canvas": 40}, "0 x 0 cells"),
        ({"sizes": (4, 1)}, "sizes must be"),
        ({"sizes": (-1, 1)}, "sizes must be"),
        ({"sizes": (0, 0)}, "sizes must be"),
        ({"digit_px": (0, 20)}, "digit_px must be"),
        ({"digit_px": (30, 20)}, "digit_px must be"),
        ({"clutter": -1}, "clutter must be at least 0"),
        ({"clutter_px": 29}, "clutter_px must be from 1 to 28, but is 29"),
        ({"clutter_px": 0}, "clutter_px must be from 1 to 28"),
        ({"classes": ()}, "classes must be different digits from 0 to 9"),
        ({"classes": (1, 1)}, "classes must be different digits"),
        ({"classes": (3, 10)}, "classes must be different digits"),
        (
            {"classes": (1, 2, 3), "repeats": False},
            "sizes must be at most 3, the number of classes, because repeats is",
        ),
        ({"train": -1}, "train must be at least 0"),
        ({"seed": -1}, "seed must be from 0"),
        ({"seed": 1 << 64}, "seed must be from 0"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MnistMulti(**wrong)


@pytest.mark.parametrize(
    "fits", [{"sizes": (25, 25), "digit_px": (1, 20)}, {"sizes": (1, 1), "digit_px": (100, 100)}, {"sizes": (0, 4)}]
)
def test_layouts_that_just_fit_are_generated(fits: dict[str, tuple[int, int]]) -> None:
    examples = generate(MnistMulti(**fits, clutter=0), flat_digits(range(1, 251)), "train", range(20))
    covered = (pixels(examples) > 0).sum((1, 2))
    np.testing.assert_array_equal(covered, examples.areas.sum(1))


@pytest.mark.usefixtures("without_shape_hook")
def test_invalid_arguments_are_refused() -> None:
    digits = flat_digits(range(1, 11))
    with pytest.raises(ValueError, match="split must be one of 'train', 'validation', 'test', 'seen', but is 'dev'"):
        generate(MnistMulti(), digits, "dev", range(3))
    with pytest.raises(ValueError, match="indices must be one-dimensional and at least 0"):
        generate(MnistMulti(), digits, "train", [3, -1])
    with pytest.raises(ValueError, match="digits must include every class, but has none of 7, 8, 9"):
        generate(MnistMulti(), flat_digits(range(1, 8)), "train", range(3))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(stream(MnistMulti(), digits, 0))
