"""Bars of counts, for inputs that are not images."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from torchmultiset.data.tokens import TokenRows, TokenText
from torchmultiset.model.outputs import Prediction
from torchmultiset.viz.bars import draw_bars, input_names
from torchmultiset.viz.figures import save_predictions
from torchmultiset.viz.panels import panels
from torchmultiset.viz.preview import save_figure

COUNTS = torch.tensor([[2, 0, 1], [0, 0, 0]])


def test_bars_show_predicted_and_true_counts():
    figure = draw_bars(["ethanol", "$x$"], COUNTS, ["C", "N", "O"], truth=torch.tensor([[2, 0, 1], [0, 3, 0]]))
    first, second = figure.axes
    assert [bar.get_height() for bar in first.patches] == [2, 1, 2, 1]  # C and O; N is neither predicted nor true
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["C", "O"]
    assert [bar.get_height() for bar in second.patches] == [0, 3]
    assert first.get_title().startswith("✓ ethanol")
    assert second.get_title().startswith("✗ ")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted, correct", "predicted, wrong", "true"]
    assert first.get_ylabel() == "count"
    (legend,) = draw_bars(["a", "b"], COUNTS, ["C", "N", "O"]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted"]


def test_a_figure_of_inputs_that_are_not_images_has_bars(tmp_path):
    prediction = Prediction(COUNTS, torch.ones(2, 1, 3) / 3, "at least", torch.zeros(2, 1))
    shown = panels([np.zeros(4, np.float32)] * 2, prediction, COUNTS)
    save_predictions(shown, ["C", "N", "O"], tmp_path / "saved.png", ids=["a", "b", "c"])
    save_figure(draw_bars(["a", "b"], COUNTS, ["C", "N", "O"], truth=COUNTS), tmp_path / "drawn.png")
    assert (tmp_path / "saved.png").read_bytes() == (tmp_path / "drawn.png").read_bytes()


def test_at_most_twelve_classes_are_shown():
    figure = draw_bars(["a"], torch.arange(1, 31)[None], [f"class {i}" for i in range(30)])
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [*range(19, 31)]


def test_texts_are_named_by_their_content():
    assert input_names(TokenText(["é漢", ""])[np.arange(2)], ["x", "y"]) == ["é漢", ""]
    assert input_names(TokenRows([np.ones((2, 3))])[np.arange(1)], ["x"]) == ["x"]


def test_characters_that_the_font_lacks_cause_no_warnings(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(draw_bars(["漢字", "😀"], COUNTS, ["C", "N", "O"]), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000


def test_names_must_match():
    with pytest.raises(ValueError, match="names must be 2 of them"):
        draw_bars(["a"], COUNTS, ["C", "N", "O"])
