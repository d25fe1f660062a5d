from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from torchmultiset.data.examples import Examples
from torchmultiset.viz.preview import PANEL_PX, captions, draw_preview, save_preview

TIMES = "\N{MULTIPLICATION SIGN}"
# Colours that differ clearly from each other and from the black and white around them.
COLOURS = [(int(r), int(g), 130) for r in (40, 100, 160, 220) for g in (40, 100, 160, 220)]


def coloured(number: int, *, labels: np.ndarray | None = None, classes=("cat", "dog"), boxes=None) -> Examples:
    """Images that have one colour each."""
    images = np.array(COLOURS[:number], dtype=np.uint8)[:, :, None, None] * np.ones((1, 1, 8, 8), dtype=np.uint8)
    return Examples(images, np.zeros((number, 1), dtype=np.int64) if labels is None else labels, classes, boxes=boxes)


def panels(path) -> dict[int, np.ndarray]:
    """The mask of each colour that occurs in a picture, by its position in COLOURS."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    masks = {i: (pixels == colour).all(-1) for i, colour in enumerate(COLOURS)}
    return {i: mask for i, mask in masks.items() if mask.sum() > 100}


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


@pytest.mark.parametrize(
    ("number", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (5, 3, 2), pytest.param(12, 4, 3, marks=pytest.mark.slow)]
)
def test_each_example_has_a_panel_and_no_two_overlap(tmp_path, number, columns, rows):
    assert save_preview(coloured(number), tmp_path / "p.png", number=24) == number
    found = panels(tmp_path / "p.png")
    assert len(found) == number
    boxes = [extent(mask) for mask in found.values()]
    for (left, top, right, bottom), mask in zip(boxes, found.values(), strict=True):
        assert abs(right - left - PANEL_PX) <= 2
        assert abs(bottom - top - PANEL_PX) <= 2
        assert mask[top:bottom, left:right].all()  # nothing is drawn over the panel
    assert len({left for left, *_ in boxes}) == columns
    assert len({top for _, top, *_ in boxes}) == rows
    assert [*tmp_path.iterdir()] == [tmp_path / "p.png"]


def test_the_seed_selects_the_examples_and_a_preview_is_reproducible(tmp_path):
    examples = coloured(16)
    shown = []
    for name, seed in (("a.png", 0), ("b.png", 0), ("c.png", 1)):
        assert save_preview(examples, tmp_path / name, number=4, seed=seed) == 4
        shown.append({*panels(tmp_path / name)})
    assert shown[0] == shown[1] != shown[2]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_all_captions_of_a_picture_either_list_labels_or_count_them():
    classes = ("cat", "dog", "traffic light")
    assert captions(np.array([[2, 0, 0], [0, 1, 0], [0, 0, 0]]), classes) == [["cat, cat"], ["dog"], ["(nothing)"]]
    counted = captions(np.array([[2, 0, 0], [999, 999, 1], [0, 0, 0]]), classes)
    assert counted == [[f"cat {TIMES}2"], [f"cat {TIMES}999, dog {TIMES}999,", "traffic light"], ["(nothing)"]]


def test_ten_digits_fit_on_a_line():
    counts = np.array([[0, 0, 0, 0, 10, 0, 0, 0, 0, 0], [1] * 10])
    assert captions(counts, [*"0123456789"]) == [["4, 4, 4, 4, 4, 4, 4, 4, 4, 4"], ["0, 1, 2, 3, 4, 5, 6, 7, 8, 9"]]


def test_long_captions_are_shortened():
    classes = [f"quite a long name {i:02}" for i in range(9)]
    (lines,) = captions(np.full((1, 9), 3), classes)
    assert lines[:4] == [f"quite a long name {i:02} {TIMES}3," for i in range(4)]
    assert lines[4:] == ["and 15 more"]


def text_boxes(figure) -> list[tuple[str, float, float, float, float]]:
    """The texts of a figure and their extents in pixels."""
    figure.canvas.draw()
    texts = [text for text in figure.texts if isinstance(text, Text)]
    return [(text.get_text(), *text.get_window_extent().extents) for text in texts]


@pytest.mark.parametrize(
    "classes",
    [
        ("0", "1", "2"),
        ("WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW", "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii", "a\nb"),
        ("$x^{$", "$\\frac{1}{2}$", "50% & more_"),
    ],
)
def test_captions_fit_in_the_figure_and_do_not_overlap(classes):
    labels = np.array([[0, 1, 2, 2], [0, 0, 0, 0], [2, 1, -1, -1], [1, 1, 1, -1]])
    figure = draw_preview(coloured(4, labels=labels, classes=classes))
    width, height = figure.canvas.get_width_height()
    below = text_boxes(figure)
    assert below
    for i, (_, left, low, right, high) in enumerate(below):
        assert left >= 0
        assert low >= 0
        assert right <= width
        assert high <= height
        for panel in figure.axes:
            box = panel.get_window_extent()
            assert right <= box.x0 or left >= box.x1 or high <= box.y0 or low >= box.y1
        for _, other_left, other_low, other_right, other_high in below[:i]:
            assert right <= other_left or left >= other_right or high <= other_low or low >= other_high


def test_boxes_are_drawn_around_the_objects_with_labels(tmp_path):
    grey = np.full((1, 1, 24, 24), 128, dtype=np.uint8)
    box = np.array([[[6, 12, 12, 6], [0, 0, 0, 0]]], dtype=np.float32)
    examples = Examples(grey, np.array([[1, -1]]), ("cat", "$dog$"), boxes=box)
    figure = draw_preview(examples, boxes=True)
    (axes,) = figure.axes
    (patch,) = axes.patches
    # Coordinates refer to the edges of pixels, not to their centres.
    assert patch.get_bbox().extents.tolist() == [5.5, 11.5, 17.5, 17.5]
    assert [text.get_text() for text in axes.texts] == ["$dog$"]

    save_preview(examples, tmp_path / "p.png", boxes=True)
    save_preview(examples, tmp_path / "plain.png")
    with Image.open(tmp_path / "p.png") as one, Image.open(tmp_path / "plain.png") as other:
        changed = (np.asarray(one.convert("RGB")) != np.asarray(other.convert("RGB"))).any(-1)
        plain = (np.asarray(other.convert("RGB")) == 128).all(-1)
    x0, y0, *_ = extent(plain)
    left, top, right, bottom = extent(changed)
    expected = np.array([x0 + 60, y0 + 120, x0 + 180, y0 + 180])
    assert np.abs(np.array([left, top, right, bottom]) - expected).max() <= 3


def test_floats_are_shown_from_black_to_white(tmp_path):
    ramp = np.zeros((1, 2, 2), dtype=np.float32)
    ramp[0] = [[0.0, 0.2], [0.6, 1.0]]
    for image, expected in ((ramp, {0, 51, 153, 255}), (ramp * 4 - 2, {0, 51, 153, 255})):
        save_preview(Examples(image, np.array([[0]]), ("cat",)), tmp_path / "p.png")
        with Image.open(tmp_path / "p.png") as picture:
            grey = np.asarray(picture.convert("L"))
        values, times = np.unique(grey, return_counts=True)
        large = {int(value) for value, count in zip(values, times, strict=True) if count > PANEL_PX**2 / 10}
        assert large == expected


@pytest.mark.parametrize("shape", [(5,), (2, 8, 8), (512, 4, 4), (1, 3, 8, 8)])
def test_inputs_that_are_not_images_are_refused_and_nothing_is_written(tmp_path, shape):
    examples = Examples(np.zeros((2, *shape), dtype=np.float32), np.array([[0], [1]]), ("cat", "dog"))
    with pytest.raises(ValueError, match="only images can be drawn"):
        save_preview(examples, tmp_path / "p.png")
    assert [*tmp_path.iterdir()] == []


def test_unknown_boxes_and_empty_splits_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no bounding boxes"):
        save_preview(coloured(2), tmp_path / "p.png", boxes=True)
    with pytest.raises(ValueError, match="split is empty"):
        save_preview(coloured(2).subset([]), tmp_path / "p.png")
    with pytest.raises(ValueError, match="number must be at least 1"):
        save_preview(coloured(2), tmp_path / "p.png", number=0)
    assert [*tmp_path.iterdir()] == []
