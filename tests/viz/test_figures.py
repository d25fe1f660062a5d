from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from torchmultiset.model.outputs import Prediction
from torchmultiset.viz.example import draw_example
from torchmultiset.viz.figures import choose, draw_curve, draw_predictions, save_curve, save_predictions
from torchmultiset.viz.panels import Panel, panels

GREEN, RED = (26, 127, 55), (207, 34, 46)
HISTORY = [
    {"epoch": 1, "loss": 3.0, "validation_em": 0.2, "validation_f1": 0.5},
    {"epoch": 2, "loss": 1.0, "validation_em": 0.8, "validation_f1": 0.9},
    {"epoch": 3, "loss": 0.9, "validation_em": 0.7, "validation_f1": 0.9},
]


def predicted(counts, sequence, classes: int) -> Prediction:
    steps = len(sequence[0])
    probabilities = torch.rand(len(counts), steps, classes, generator=torch.Generator().manual_seed(0)).softmax(-1)
    entropy = torch.zeros(len(counts), steps)
    return Prediction(torch.tensor(counts), probabilities, "steps", entropy, sequence=torch.tensor(sequence))


def pixels(path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


def count_pixels(picture: np.ndarray, colour) -> int:
    return int((abs(picture - colour).max(-1) < 12).sum())


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_right_and_wrong_predictions_are_marked(tmp_path):
    images = [np.full((1, 20, 20), 90, np.uint8)] * 2
    prediction = predicted([[2, 0], [1, 0]], [[0, 0], [0, -1]], 2)
    shown = panels(images, prediction, torch.tensor([[2, 0], [1, 1]]))
    assert [panel.right for panel in shown] == [True, False]
    figure = draw_predictions(shown, ["cat", "dog"])
    assert texts(figure) == ["✓ cat, cat", "✗ cat", "true: cat, dog"]
    save_predictions(shown, ["cat", "dog"], tmp_path / "sub" / "both.png")
    both = pixels(tmp_path / "sub" / "both.png")
    save_predictions(shown[:1], ["cat", "dog"], tmp_path / "right.png")
    right = pixels(tmp_path / "right.png")
    assert count_pixels(both, GREEN) > 500
    assert count_pixels(both, RED) > 500
    assert count_pixels(right, RED) == 0


def test_without_the_truth_no_prediction_is_marked():
    shown = panels([np.zeros((3, 20, 20), np.uint8)], predicted([[2, 0]], [[0, 0]], 2))
    assert shown[0].right is None
    assert texts(draw_predictions(shown, ["cat", "dog"])) == ["cat, cat"]


def test_each_step_shows_its_distribution_with_the_emitted_label_highlighted():
    prediction = predicted([[1, 0, 1]], [[2, 0, -1]], 3)
    (panel,) = panels([np.zeros((20, 20), np.uint8)], prediction)
    assert panel.sequence == [2, 0]
    image, *steps = draw_predictions([panel], ["a", "b", "c"]).axes
    assert len(image.images) == 1
    assert len(steps) == 2
    for t, axes in enumerate(steps):
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == pytest.approx(prediction.probabilities[0, t].tolist())
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert [colour != colours[(panel.sequence[t] + 1) % 3] for colour in colours].index(True) == panel.sequence[t]
    assert [label.get_text() for label in steps[-1].get_xticklabels()] == ["a", "b", "c"]


def test_a_one_shot_prediction_shows_the_probability_of_each_count():
    rows = torch.tensor([[[0.9, 0.1, 0.8], [0.7, 0.0, 0.2], [0.1, 0.0, 0.0]]])
    prediction = Prediction(torch.tensor([[2, 0, 1]]), rows, "at least", torch.zeros(1, 3))
    (panel,) = panels([np.zeros((20, 20), np.uint8)], prediction)
    figure = draw_predictions([panel], ["a", "b", "c"])
    image, *steps = figure.axes
    assert len(steps) == 3  # at least one, at least two, and at least three of a class
    blue = []
    for row, axes in zip(rows[0].tolist(), steps, strict=True):
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(row)
        blue.append([bar.get_facecolor()[2] > 0.8 for bar in axes.patches])
    assert blue == [[True, False, True], [True, False, False], [False, False, False]]
    assert [axes.get_ylabel() for axes in steps] == ["≥1", "≥2", "≥3"]
    FigureCanvasAgg(figure).draw()
    assert min(axes.yaxis.label.get_window_extent().x0 for axes in steps) > image.get_window_extent().x1
    rows[0, 2] = 0.001  # a third label is so improbable that its row is omitted
    (panel,) = panels([np.zeros((20, 20), np.uint8)], prediction)
    assert len(panel.probabilities) == 2


def test_a_caption_stays_under_its_image_and_bars_stay_visible():
    """A wrong prediction of ten labels has two captions alike, and rows of bars that continue below the image."""
    counts, truth = [[3, 1, 2, 1, 1, 1, 1]], torch.tensor([[3, 1, 2, 1, 1, 0, 2]])
    sequence = [[0, 0, 0, 1, 2, 2, 3, 4, 5, 6]]
    shown = panels([np.zeros((20, 20), np.uint8)], predicted(counts, sequence, 7), truth)
    figure = draw_predictions(shown, [*"0123456"])
    figure.canvas.draw()
    image, *steps = (axes.get_window_extent() for axes in figure.axes)
    for text in figure.texts:
        assert text.get_window_extent().x1 < image.x1
        assert text.get_window_extent().y0 > 0
    assert texts(figure) == ["✗ 0 ×3, 1, 2 ×2, 3, 4,", "5, 6", "true: 0 ×3, 1, 2 ×2, 3, 4,", "6 ×2"]  # noqa: RUF001
    assert len(steps) == 10
    assert min(step.height for step in steps) > 0.15 * figure.dpi
    assert min(step.y0 for step in steps) > 0


def test_end_has_a_bar_and_a_step():
    prediction = predicted([[1, 0]], [[0, -1, -1]], 3)
    (panel,) = panels([np.zeros((20, 20), np.uint8)], prediction, end=True)
    _, *steps = draw_predictions([panel], ["a", "b"]).axes
    assert len(steps) == 2  # "a" and END
    assert [label.get_text() for label in steps[-1].get_xticklabels()] == ["a", "b", "END"]
    (panel,) = panels([np.zeros((20, 20), np.uint8)], predicted([[1, 0]], [[0, -1, -1]], 2))
    assert len(panel.probabilities) == 1  # without END there is no step for it


def test_of_many_classes_the_most_probable_have_bars():
    probabilities = np.full((1, 80), 0.1 / 77, np.float32)
    probabilities[0, [5, 40, 70]] = [0.2, 0.4, 0.3]
    panel = Panel(np.zeros((3, 20, 20), np.uint8), np.eye(80, dtype=np.int64)[40], [40], probabilities)
    names = [f"class number {i}" for i in range(80)]
    _, step = draw_predictions([panel], names).axes
    assert [bar.get_height() for bar in step.patches] == pytest.approx([0.2, 0.4, 0.3])
    assert all(len(label.get_text()) <= 12 for label in step.get_xticklabels())


def test_empty_predictions_and_unusual_names_can_be_drawn(tmp_path):
    nothing = predicted([[0, 0]], [[-1, -1]], 2)
    shown = panels([np.random.default_rng(0).random((1, 20, 20), np.float32)], nothing, torch.tensor([[9, 0]]))
    save_predictions(shown * 5, ["$x$", "_{y"], tmp_path / "odd.png")
    assert texts(draw_predictions(shown, ["$x$", "_{y"]))[0] == "✗ (nothing)"
    with pytest.raises(ValueError, match="only images can be drawn"):
        draw_predictions(panels([np.zeros(7, np.float32)], nothing), ["a", "b"])
    with pytest.raises(ValueError, match="panels must be at least one"):
        draw_predictions([], ["a"])


@pytest.mark.parametrize(
    ("right", "number", "expected"),
    [
        ([1, 1, 1, 1, 1, 0, 0], 4, [0, 1, 2, 5]),
        ([1, 1, 1], 4, [0, 1, 2]),
        ([0, 0, 0, 1], 3, [3, 0, 1]),
        ([0, 0], 4, [0, 1]),
        ([1] * 10 + [0], 8, [0, 1, 2, 3, 4, 5, 6, 10]),
    ],
)
def test_chosen_examples_include_wrong_ones(right, number, expected):
    assert choose(torch.tensor(right, dtype=torch.bool), number=number) == expected


def test_the_learning_curve_shows_losses_and_scores(tmp_path):
    left, right = draw_curve(HISTORY).axes
    assert left.lines[0].get_ydata().tolist() == [3.0, 1.0, 0.9]
    assert right.lines[0].get_ydata().tolist() == [0.2, 0.8, 0.7]
    assert right.get_title() == "Scores on validation data"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["exact match, best 0.800", "F1"]
    assert draw_curve(HISTORY, split="training").axes[1].get_title() == "Scores on training data"
    save_curve(HISTORY[:1], tmp_path / "curve.png")
    assert pixels(tmp_path / "curve.png").shape == (480, 1200, 3)
    with pytest.raises(ValueError, match="at least one epoch"):
        draw_curve([])


# An annotated prediction


def text_of(figure) -> str:
    from matplotlib.text import Text

    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_one_prediction_is_annotated(tmp_path):
    probabilities = np.array([[0.1, 0.9], [0.8, 0.2]], dtype=np.float32)
    steps = Panel(np.zeros((1, 8, 8), np.uint8), np.array([1, 1]), [1, 0], probabilities, np.array([1, 1]))
    text = text_of(draw_example(steps, ["a", "$b$"]))
    for part in ("Input", "step 1:\n$b$", "90%", "step 2:\na", "80%", "Prediction: a, $b$", "correct", "emitted label"):
        assert part in text
    wrong = Panel(np.zeros((1, 8, 8), np.uint8), np.array([2, 0]), [], probabilities, np.array([1, 1]), at_once=True)
    text = text_of(draw_example(wrong, ["a", "$b$"]))
    for part in ("1 or more", "2 or more", "Prediction: a", "the truth is: a, $b$", "not predicted"):
        assert part in text
    assert "step" not in text
    for draw in (draw_example, lambda panel, classes: draw_predictions([panel] * 2, classes)):
        text = text_of(draw(replace(wrong, probabilities=probabilities[:1], shares=True), ["a", "b"])).lower()
        assert "share of each label" in text
        assert not any(part in text for part in ("probability", "or more", "≥"))
    save_predictions([steps], ["a", "b"], tmp_path / "one.png")
    save_predictions([steps, steps], ["a", "b"], tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as one:
        assert one.width == 8 * 150


def test_many_predictions_have_a_legend_and_curves_have_units():
    probabilities = np.array([[0.1, 0.9]], dtype=np.float32)
    panel = Panel(np.zeros((1, 8, 8), np.uint8), np.array([0, 1]), [1], probabilities)
    text = text_of(draw_predictions([panel, panel], ["a", "b"]))
    for part in ("Bars: probability of each label, step by step", "emitted", "not emitted", "correct", "wrong"):
        assert part in text
    text = text_of(draw_curve(HISTORY))
    assert "Scores on validation data" in text
    assert "score (0 to 1)" in text


def test_places_that_contribute_are_drawn_over_the_image():
    probabilities, places = np.array([[0.1, 0.9]], dtype=np.float32), np.zeros((4, 4), dtype=np.float32)
    places[1, 2] = 0.4
    image = np.zeros((1, 8, 8), np.uint8)
    plain = Panel(image, np.array([0, 1]), [], probabilities, at_once=True)
    figure = draw_predictions([replace(plain, places=places), plain], ["a", "b"])
    pictures = [axes.images for axes in figure.axes if axes.images]
    assert [len(images) for images in pictures] == [2, 1]
    layer = pictures[0][1]
    assert layer.get_extent() == pictures[0][0].get_extent()
    opacity = np.asarray(layer.get_array())[..., 3]
    assert np.argwhere(opacity > 0).tolist() == [[1, 2]]
    assert opacity.max() > 0.5  # the strongest place is visible even if it is weak
    nothing = replace(plain, places=places, counts=np.array([0, 0]))  # an empty prediction has no places
    assert [len(axes.images) for axes in draw_predictions([nothing, plain], ["a", "b"]).axes if axes.images] == [1, 1]
    assert "places counted" in text_of(figure)
    assert "places counted" not in text_of(draw_predictions([plain, plain], ["a", "b"]))
