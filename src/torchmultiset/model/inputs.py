"""Inputs for a saved model: image files, folders, arrays and data sets."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from torchmultiset._checks import some
from torchmultiset.data import Examples, store
from torchmultiset.data._arrays import read_rows
from torchmultiset.data._npy import open_array
from torchmultiset.data._records import VECTORS, Record
from torchmultiset.data.examples import Inputs
from torchmultiset.data.images import Grey, ImageFiles, check_files
from torchmultiset.data.importers._annotations import SUFFIXES, find_images
from torchmultiset.data.load import is_store
from torchmultiset.data.manifest import FRACTIONS, Column, Manifest
from torchmultiset.data.tokens import TokenRows, warn_of_cut
from torchmultiset.model.outputs import Prediction
from torchmultiset.model.predictor import BEAM, Predictor

__all__ = [
    "Explained",
    "InputKind",
    "Source",
    "explain",
    "fitted",
    "input_kind",
    "is_one_file",
    "open_examples",
    "open_inputs",
    "open_model",
    "reads",
    "trained_columns",
]


@dataclass(frozen=True)
class InputKind:
    """Description of the inputs that a model was trained on."""

    shape: tuple[int, ...]
    """Shape of one input: (channels, height, width), (features,), or (0, 1 + features) for inputs of varying length
    (`data.tokens`); of an image, before any backbone."""
    dtype: str
    """NumPy data type of the inputs."""
    exif: bool
    """Whether images were rotated according to their EXIF tag."""

    @property
    def of_images(self) -> bool:
        """Whether the inputs are square grey or RGB images, so that image files can be read."""
        return len(self.shape) == 3 and self.shape[1] == self.shape[2] and self.shape[0] in (1, 3)

    @property
    def of_tokens(self) -> bool:
        """Whether the inputs vary in length: text, sets or sequences."""
        return len(self.shape) == 2


class Source(NamedTuple):
    """Inputs with their names and, if known, their true counts."""

    names: Sequence[str]
    """Paths or identifiers of the inputs."""
    inputs: Inputs
    """Inputs, in the form that the model reads."""
    truth: Int64[Tensor, "n c"] | None
    """True counts, if known."""


class Explained(NamedTuple):
    """A batch of inputs with their predictions."""

    names: Sequence[str]
    inputs: Shaped[np.ndarray, "b ..."]
    prediction: Prediction
    truth: Int64[Tensor, "b c"] | None


def open_model(path: str | Path) -> Predictor:
    """Load a model from its folder, its run folder, the included models (by name), or the hub."""
    return Predictor.load(path)


def input_kind(predictor: Predictor) -> InputKind:
    """Read the description of a model's inputs from its record.

    Raises:
        ValueError: The record has no such description.
    """
    try:
        kind: Mapping[str, Any] = predictor.record["input"]
        return InputKind(tuple(kind["shape"]), str(kind["dtype"]), bool(kind["exif"]))
    except (KeyError, TypeError):
        raise ValueError(
            "the model's record does not describe its inputs: save it with record={'input': {'shape': ..., 'dtype': "
            "..., 'exif': ...}}, as `multiset train` does"
        ) from None


def reads(predictor: Predictor) -> str:
    """Describe the inputs that a model reads, for messages."""
    kind, columns = input_kind(predictor), trained_columns(predictor)
    if kind.of_images:
        return "images"
    if columns:
        return f"tables with the columns {some([column.name for column in columns])}"
    if kind.of_tokens:
        return f"sets or sequences of vectors, arrays of shape (any, {kind.shape[1] - 1})"
    if len(kind.shape) == 1:
        return f"vectors of {kind.shape[0]} numbers"
    return f"arrays of shape {_shape(kind.shape)}"


def open_examples(
    predictor: Predictor, path: str | Path, *, whole: bool = False, labelled: bool = True, skip_unreadable: bool = False
) -> dict[str, Examples]:
    """Open a data set in the same way as the model's training data, with the model's classes.

    Args:
        predictor: Model that reads the data.
        path: Folder of a built data set, .jsonl or .csv file, or folder of images with a labels file.
        whole: Return all examples of a file without splits as ``"train"``; otherwise it is split as for training.
        labelled: Whether each line of a file must have labels.
        skip_unreadable: Skip images and arrays that cannot be read, with a warning that lists them. A model that was
            trained in this way always does.

    Raises:
        ValueError: The data has classes that the model does not know, or inputs that it cannot read.
    """
    kind, path = input_kind(predictor), Path(path)
    if is_store(path):
        splits = {name: _with_classes(examples, predictor, path) for name, examples in store.load(path).items()}
    else:
        columns, trained = trained_columns(predictor), predictor.record.get("config", {})
        skip_unreadable = skip_unreadable or bool(trained.get("skip_unreadable"))
        manifest = Manifest.read(
            path,
            classes=predictor.classes,
            labelled=labelled,
            skip_unreadable=skip_unreadable,
            check_inputs=skip_unreadable,
            accept=lambda records: _check_table(predictor, records, path),
            vectors=kind.of_tokens,
        )
        splits = manifest.examples(
            fractions=(1, 0, 0) if whole else trained.get("fractions") or FRACTIONS,
            seed=trained.get("split_seed", 0),
            image_size=max(kind.shape[-1], 1),
            exif=kind.exif,
            columns=columns,
        )
        if not columns and any(one.categories or one.empty or one.text for one in splits["train"].columns):
            raise ValueError(f"this model was trained on numbers only, but {path} has text or empty cells")
    warn_of_cut(max((examples.cut for examples in splits.values()), default=0))
    return {
        name: replace(examples, inputs=fitted(examples.inputs, kind, str(path))) for name, examples in splits.items()
    }


def open_inputs(
    predictor: Predictor, paths: Sequence[str], *, split: str = "all", skip_unreadable: bool = False
) -> list[Source]:
    """Open inputs of all supported kinds for a model.

    Args:
        predictor: Model that reads the inputs.
        paths: Image files, folders of images, patterns such as ``"photos/*.jpg"``, .npy files (one input, or several
            stacked along the first axis), and data sets.
        split: Split of data sets: ``"train"``, ``"validation"``, ``"test"`` or ``"all"``.
        skip_unreadable: Skip images and arrays of a data set that cannot be read, with a warning that lists them.

    Raises:
        FileNotFoundError: A path does not exist, or a folder has no images.
        ValueError: The model cannot read an input.
    """
    kind = input_kind(predictor)
    sources: list[Source] = []
    images: list[Path] = []
    for path in _matching(paths, _hint(predictor)):
        if _is_data_set(path):
            sources += _from_data_set(predictor, path, split, skip_unreadable)
        elif path.suffix.lower() == ".npy":
            sources.append(_from_array(path, kind))
        elif path.is_dir():
            found = find_images(path)
            if not found:
                raise FileNotFoundError(f"there are no images in {path}: no file name ends in {', '.join(SUFFIXES)}")
            images += found
        else:
            images.append(path)
    if images:
        if not kind.of_images:
            what = "an image" if images[0].suffix.lower() in SUFFIXES else "not a .csv, .jsonl or .npy file"
            raise ValueError(f"this model reads {reads(predictor)}, but {images[0]} is {what}")
        check_files(images)
        files = ImageFiles(images, kind.shape[-1], exif=kind.exif)
        sources.append(Source([str(image) for image in images], fitted(files, kind, "the images"), None))
    return sources


def explain(
    predictor: Predictor,
    sources: Iterable[Source],
    *,
    number: int | None = None,
    batch_size: int = 64,
    best: int = 0,
    beam: int = BEAM,
) -> Iterator[Explained]:
    """Yield predictions for all inputs, batch by batch.

    Args:
        predictor: Model that predicts.
        sources: Inputs, from `open_inputs`.
        number: Maximum number of inputs; None: all.
        batch_size: Inputs per batch.
        best: Number of most probable multisets to search for, as in `Predictor.explain`.
        beam: Beam width, as in `Predictor.explain`.
    """
    device = next(predictor.parameters()).device
    left = sys.maxsize if number is None else number
    for names, inputs, truth in sources:
        end = min(len(names), left)
        left -= end
        for start in range(0, end, batch_size):
            rows = slice(start, min(start + batch_size, end))
            x = np.ascontiguousarray(inputs[np.arange(rows.start, rows.stop)])
            prediction = predictor.explain(torch.from_numpy(x).to(device), best=best, beam=beam).to("cpu")
            yield Explained(names[rows], x, prediction, None if truth is None else truth[rows])


def _matching(paths: Sequence[str], hint: str) -> Iterator[Path]:
    for path in paths:
        if os.path.exists(path):  # noqa: PTH110  (False for a text that is too long for the name of a file)
            yield Path(path)
            continue
        found = sorted(glob.iglob(path, recursive=True)) if glob.has_magic(path) else []  # noqa: PTH207
        if not found:
            what = f"nothing matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}"
            raise FileNotFoundError(what + hint)
        yield from map(Path, found)


def _hint(predictor: Predictor) -> str:
    """Return what to do if a text was given in place of the file that has it; empty for models of other inputs."""
    names = [column.name for column in trained_columns(predictor) if column.text]
    return f": write texts to a .csv or .jsonl file, as {names[0]!r}" if names else ""


def is_one_file(path: Path) -> bool:
    """Return whether a path is a file with inputs, and neither a data set nor a folder."""
    return path.is_file() and not _is_data_set(path)


def _check_table(predictor: Predictor, records: Sequence[Record], path: Path) -> None:
    """Raise a ValueError if a file lists inputs of another kind, or labels that the model does not know."""
    of_images, kind = input_kind(predictor).of_images, records[0].kind if records else ""
    if of_images and kind == "features":
        fix = "pass image files, a folder of images, or a table with a column 'image'"
        raise ValueError(f"this model reads images, but {path} is a table: {fix}")
    if not of_images and (kind == "image" or (kind in VECTORS and not input_kind(predictor).of_tokens)):
        found = "lists images" if kind == "image" else "has sets or sequences of vectors"
        raise ValueError(f"this model reads {reads(predictor)}, but {path} {found}")
    labels = {label for record in records for label in record.labels}
    _refuse_unknown(sorted(labels - set(predictor.classes)), path)


def _is_data_set(path: Path) -> bool:
    named = path.is_dir() and any((path / name).is_file() for name in ("labels.jsonl", "labels.csv"))
    return named or is_store(path) or path.suffix.lower() in (".jsonl", ".csv")


def _from_data_set(predictor: Predictor, path: Path, split: str, skip_unreadable: bool) -> list[Source]:
    splits = open_examples(predictor, path, whole=split == "all", labelled=False, skip_unreadable=skip_unreadable)
    known = is_store(path) or any((examples.labels >= 0).any() for examples in splits.values())
    chosen = {name: examples for name, examples in splits.items() if split in ("all", name) and len(examples)}
    if not chosen:
        filled = [name for name, examples in splits.items() if len(examples)]
        raise ValueError(f"{path} has no {split} examples, only {' and '.join(filled) or 'empty splits'}")
    return [
        Source(
            examples.ids or [f"{path} {name} {i}" for i in range(len(examples))],
            examples.inputs,
            torch.from_numpy(examples.counts) if known else None,
        )
        for name, examples in chosen.items()
    ]


def _from_array(path: Path, kind: InputKind) -> Source:
    if kind.of_tokens:
        return Source([str(path)], fitted(TokenRows([read_rows(path)]), kind, str(path)), None)
    array = open_array(path, "save it again with numpy.save")
    if array.dtype.kind not in "buif":
        raise ValueError(f"{path} must contain an array of numbers, but contains {array.dtype}")
    if array.size == 0:
        raise ValueError(f"{path} contains no inputs: its shape is {array.shape}. Save at least one")
    # One input, with or without its single channel, or several inputs.
    if array.shape == kind.shape or (kind.shape[0] == 1 and array.shape == kind.shape[1:]):
        names, array = [str(path)], array.reshape(1, *kind.shape)
    else:
        array = np.atleast_1d(array)
        if kind.shape[0] == 1 and array.shape[1:] == kind.shape[1:]:
            array = array[:, None]
        names = [f"{path} {i}" for i in range(len(array))]
    return Source(names, fitted(array, kind, str(path)), None)


def fitted(inputs: Inputs, kind: InputKind, what: str) -> Inputs:
    """Return the inputs in a form that the model can read, or raise an error that calls them `what`."""
    if not len(inputs):
        return inputs
    first = inputs[np.array([0])]
    if kind.of_tokens:
        if first.shape[2:] != kind.shape[1:]:
            found = f"vectors of {first.shape[-1] - 1}" if first.ndim == 3 else _shape(first.shape[1:])
            wanted = f"vectors of {kind.shape[1] - 1} numbers"
            raise ValueError(f"this model reads {wanted}, but those of {what} have {found}")
        warn_of_cut(getattr(inputs, "cut", 0))
        return inputs
    if first.shape[1:] != kind.shape:
        if kind.shape[0] == 1 and first.dtype == np.uint8 and first.shape[1:] == (3, *kind.shape[1:]):
            return Grey(inputs)
        raise ValueError(
            f"this model reads inputs of shape {_shape(kind.shape)}, but those of {what} have"
            f" {_shape(first.shape[1:]) or 'no dimensions'}: save them in that shape"
        )
    if kind.dtype == "uint8" and first.dtype != np.uint8:
        in_range = np.issubdtype(first.dtype, np.floating) and first.min() >= 0 and first.max() <= 1
        if not in_range:
            raise ValueError(
                f"this model reads images as uint8, or as floats from 0 to 1, but {what} must be converted: it has"
                f" {first.dtype} from {first.min():g} to {first.max():g}"
            )
    as_it_is = first.dtype == np.float32 or (first.dtype == np.uint8 and len(kind.shape) == 3)
    return inputs if as_it_is else _Floats(inputs)


@dataclass(frozen=True, eq=False)
class _Floats:
    """Inputs converted to float32."""

    inputs: Inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b ..."]:
        return self.inputs[indices].astype(np.float32)


def trained_columns(predictor: Predictor) -> list[Column]:
    """Return the columns of the table that a model was trained on, from its record; none for other training data."""
    columns = predictor.record.get("columns", ())
    return [Column(**{**column, "categories": tuple(column["categories"])}) for column in columns]


def _with_classes(examples: Examples, predictor: Predictor, path: Path) -> Examples:
    """Return the examples with the class indices of the model."""
    _refuse_unknown([name for name in examples.classes if name not in predictor.classes], path)
    numbers = np.array([*map(predictor.classes.index, examples.classes), -1])  # the last entry is for the padding, -1
    return replace(examples, labels=numbers[examples.labels], classes=predictor.classes)


def _refuse_unknown(names: Sequence[str], path: Path) -> None:
    if names:
        raise ValueError(f"{path} has classes that this model does not know: {some(names)}")


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
