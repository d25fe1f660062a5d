"""Exported models of text, sets and sequences predict the same for any number of inputs of any length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from torchmultiset.data.tokens import START
from torchmultiset.encoders import NgramEncoder, SequenceEncoder, SetEncoder, TextEncoder
from torchmultiset.export import open_onnx, to_onnx
from torchmultiset.heads import CellCounts, PoissonCounts, RidgeCounts
from torchmultiset.model.inputs import InputKind
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import TransformerPolicy

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

COLUMNS = 2
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "text": lambda: TextEncoder(COLUMNS, width=8, layers=1, buckets=64, ngrams=2),
    "n-grams": lambda: NgramEncoder(COLUMNS, features=6, longest=2, buckets=64),
    "set": lambda: SetEncoder(COLUMNS, width=8, attention=1),
    "sequence": lambda: SequenceEncoder(COLUMNS, width=8, layers=1, attention=1),
}
HEADS: dict[str, Callable[[], nn.Module]] = {
    "cells": lambda: CellCounts(2, 8, hidden=8, kernel=1),
    "poisson": lambda: PoissonCounts(2, 8, pool="mean-max"),
    "ridge": lambda: RidgeCounts(2, 6 + COLUMNS),
    "transformer": lambda: TransformerPolicy(2, 8, places=0, width=8, heads=2, layers=1),
}


def inputs(number: int, length: int) -> np.ndarray:
    """Texts with two further columns, or sets of vectors, of 0 to `length` positions."""
    rng = np.random.default_rng(length)
    x = rng.normal(size=(number, length, 1 + COLUMNS)).astype(np.float32)
    x[..., 0] = rng.integers(98, 102, size=(number, length))
    x[:, 0, 0] = START
    lengths = rng.permutation(np.linspace(0, length, number).astype(int))
    x[np.arange(length) >= lengths[:, None]] = 0
    return x


@pytest.mark.parametrize(
    ("encoder", "head"),
    [
        ("text", "cells"),
        ("n-grams", "ridge"),
        ("set", "poisson"),
        ("sequence", "transformer"),
    ],
)
def test_predictions_equal_those_of_pytorch_for_any_number_and_length(encoder, head, without_shape_hook):
    torch.manual_seed(5)
    predictor = Predictor(ENCODERS[encoder](), HEADS[head](), ["a", "b"], max_size=3).eval()
    if encoder == "n-grams":
        predictor.encoder.fit_inputs([torch.from_numpy(inputs(9, 20))])
    with torch.no_grad():  # weights so large that predictions differ
        for weight in predictor.module.parameters():
            weight.add_(torch.randn_like(weight))
    session = open_onnx(to_onnx(predictor, kind=InputKind((0, 1 + COLUMNS), "float32", exif=False)))
    names = [output.name for output in session.get_outputs()]
    seen = set()
    for number, length in [(1, 1), (30, 7), (9, 50)]:
        x = inputs(number, length)
        found = dict(zip(names, session.run(None, {"inputs": x}), strict=True))
        expected = predictor.explain(torch.from_numpy(x))
        assert np.array_equal(found["counts"], expected.counts.numpy())
        steps = expected.probabilities.shape[1]  # PyTorch ends once all have stopped
        assert np.abs(found["probabilities"][:, :steps] - expected.probabilities.numpy()).max() < 1e-4
        seen |= {*map(tuple, found["counts"].tolist())}
    assert len(seen) >= 3


def test_the_joint_distribution_of_cells_is_refused(without_shape_hook):
    predictor = Predictor(
        SetEncoder(COLUMNS, width=8), CellCounts(2, 8, kernel=1, joint_states=9), ["a", "b"], max_size=3
    )
    with pytest.raises(ValueError, match="cannot be exported: train with joint_states=0 instead"):
        to_onnx(predictor.eval(), kind=InputKind((0, 1 + COLUMNS), "float32", exif=False))
