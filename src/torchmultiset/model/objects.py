"""Predictions for Python objects: paths, Pillow images, NumPy arrays, tables, and lists of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from torchmultiset._checks import given, some
from torchmultiset._files import is_file
from torchmultiset.data._columns import encode_rows
from torchmultiset.data.examples import Inputs
from torchmultiset.data.images import Grey, array_to_image, square_pixels
from torchmultiset.data.in_memory import table_rows
from torchmultiset.data.tokens import TokenRows
from torchmultiset.model.answers import Answer, Answers
from torchmultiset.model.inputs import (
    InputKind,
    Source,
    explain,
    fitted,
    input_kind,
    is_one_file,
    open_inputs,
    reads,
    trained_columns,
)
from torchmultiset.model.outputs import by_name
from torchmultiset.model.predictor import BEAM, Predictor

__all__ = ["predict_objects"]

_NAME = 60  # maximum number of characters of a text that is used as the name of its answer


def predict_objects(predictor: Predictor, inputs: Any) -> Answer | Answers:
    """Predict the multisets of inputs of any kind that the model can read.

    Args:
        predictor: The model. Its record must describe its inputs; `multiset train` writes such records.
        inputs: One input or several: a path, a folder, a Pillow image, a NumPy array, a DataFrame, one row of a table
            as a dictionary, a text for a model of one column of text, or a list of these.

    Returns:
        One `Answer` for one input, else `Answers`.

    Raises:
        ValueError: The model does not read this kind of input.
        OSError: A file is missing or cannot be read.
    """
    sources, single = _sources(predictor, inputs)
    answers = Answers()
    for source in sources:
        index = count()
        for batch in explain(predictor, [source]):
            assert batch.prediction.confidence is not None
            rows = zip(batch.names, batch.prediction.counts, batch.prediction.confidence.tolist(), strict=True)
            answers += [_answer(predictor, source.inputs, next(index), *row) for row in rows]
    return answers[0] if single else answers


def _answer(
    predictor: Predictor, inputs: Inputs, index: int, name: str, counts: torch.Tensor, confidence: float
) -> Answer:
    def read() -> np.ndarray:
        return np.ascontiguousarray(inputs[np.array([index])])

    def top(k: int) -> list[Answer]:
        device = next(predictor.parameters()).device
        ranked = predictor.search(torch.from_numpy(read()).to(device), k=k, beam=BEAM)
        found = zip(ranked.counts[0].tolist(), ranked.log_probability[0].exp().tolist(), strict=True)
        return [Answer(by_name(each, predictor.classes), proba=p, name=name) for each, p in found if p > 0]

    return Answer(
        by_name(counts.tolist(), predictor.classes),
        proba=None if math.isnan(confidence) else confidence,
        name=name,
        top=top,
        picture=(lambda: read()[0]) if input_kind(predictor).of_images else None,
    )


def _sources(predictor: Predictor, inputs: Any) -> tuple[list[Source], bool]:
    """Return the inputs in the form that the model reads, and whether there is a single one."""
    kind = input_kind(predictor)
    if isinstance(inputs, str) and _is_text(predictor, inputs):
        return [_from_texts(predictor, [inputs])], True
    if isinstance(inputs, str | os.PathLike):
        sources = open_inputs(predictor, [os.fspath(inputs)])
        return sources, is_one_file(Path(inputs)) and len(sources[0].names) == 1
    if isinstance(inputs, Image.Image):
        return [_from_images(predictor, kind, [inputs])], True
    rows = table_rows(inputs)
    if rows is not None:
        return [_from_rows(predictor, kind, rows)], False
    if isinstance(inputs, Mapping):
        return [_from_rows(predictor, kind, [inputs])], True
    if isinstance(inputs, np.ndarray):
        return _from_array(predictor, kind, inputs)
    if isinstance(inputs, Sequence):
        return _from_sequence(predictor, kind, inputs), False
    plain = inputs is None or isinstance(inputs, int | float)
    what = repr(inputs) if plain else f"an object of class {type(inputs).__name__}"
    raise ValueError(f"this model reads {reads(predictor)}, but was given {what}")


def _from_sequence(predictor: Predictor, kind: InputKind, inputs: Sequence[Any]) -> list[Source]:
    if not len(inputs):
        return []
    if all(isinstance(one, str) and _is_text(predictor, one) for one in inputs):
        return [_from_texts(predictor, inputs)]
    if all(isinstance(one, str | os.PathLike) for one in inputs):
        return open_inputs(predictor, [os.fspath(one) for one in inputs])
    if all(isinstance(one, Image.Image) for one in inputs):
        return [_from_images(predictor, kind, inputs)]
    if all(isinstance(one, Mapping) for one in inputs):
        return [_from_rows(predictor, kind, inputs)]
    if all(isinstance(one, int | float) for one in inputs):
        return _from_array(predictor, kind, np.asarray(inputs))[0]
    return [source for one in inputs for source in _sources(predictor, one)[0]]


def _is_text(predictor: Predictor, one: str) -> bool:
    """Return whether a string is an input text and not the path of a file, for a model of one column of text."""
    columns = trained_columns(predictor)
    return len(columns) == 1 and columns[0].text and not (one.endswith((".csv", ".jsonl")) and is_file(Path(one)))


def _from_texts(predictor: Predictor, texts: Sequence[str]) -> Source:
    (column,) = trained_columns(predictor)
    source = _from_rows(predictor, input_kind(predictor), [{column.name: text} for text in texts])
    return source._replace(names=[text if len(text) <= _NAME else text[: _NAME - 3] + "..." for text in texts])


def _from_images(predictor: Predictor, kind: InputKind, images: Sequence[Image.Image]) -> Source:
    if not kind.of_images:
        raise ValueError(f"this model reads {reads(predictor)}, but was given an image")
    pixels: Inputs = np.stack([square_pixels(image, kind.shape[-1], exif=kind.exif) for image in images])
    if kind.shape[0] == 1:
        pixels = Grey(pixels)
    names = [str(getattr(image, "filename", "")) for image in images]
    return Source(names, fitted(pixels, kind, "the images"), None)


def _from_rows(predictor: Predictor, kind: InputKind, rows: Sequence[Mapping[str, Any]]) -> Source:
    columns = trained_columns(predictor)
    if not columns:
        names = some(rows[0]) if rows else "(none)"
        raise ValueError(f"this model reads {reads(predictor)}, but was given a table with the columns {names}")
    return Source([f"row {i}" for i in range(len(rows))], fitted(encode_rows(columns, rows), kind, "the table"), None)


def _from_array(predictor: Predictor, kind: InputKind, array: np.ndarray) -> tuple[list[Source], bool]:
    """Read one input or a stack of them: as stored for training or, of images, with the channels last."""
    if kind.of_tokens and not trained_columns(predictor) and array.ndim in (2, 3):
        rows = TokenRows([*array] if array.ndim == 3 else [array])
        return [Source([""] * len(rows), fitted(rows, kind, "the array"), None)], array.ndim == 2
    if array.shape == kind.shape or array.shape[1:] == kind.shape:
        stacked = array.reshape(-1, *kind.shape)
        return [Source([""] * len(stacked), fitted(stacked, kind, "the array"), None)], array.shape == kind.shape
    if kind.of_images and array.ndim in (2, 3, 4):
        images = [array_to_image(one) for one in (array if array.ndim == 4 else [array])]
        return [_from_images(predictor, kind, images)], array.ndim != 4
    raise ValueError(f"this model reads {reads(predictor)}, but was given {given(array)}")
