"""Sample images for models that read digits; file names hold the side length in pixels and the labels.

``python -m torchmultiset.page.samples`` regenerates them: the first test images of MNIST Multi, built from digits that
no model was trained on. MNIST is read from the folder in ``TORCHMULTISET_MNIST``, or else downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from torchmultiset.data.digits import VARIABLE, load_digits
from torchmultiset.data.mnist_multi import generate
from torchmultiset.model.inputs import InputKind
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.presets import PRESETS, PresetName

__all__ = ["FOLDER", "Sample", "fitting"]

FOLDER = Path(__file__).parent / "static" / "samples"
# Indices of the test images of each preset.
_INDICES: Mapping[PresetName, range] = {
    "mnist-multi-4": range(6),
    "mnist-multi-1-4": range(8),
    "mnist-multi-10": range(4),
    "demo": range(8),
}


class Sample(NamedTuple):
    """A sample image: file name, true labels, and side length in pixels."""

    file: str
    labels: tuple[str, ...]
    side: int


def fitting(predictor: Predictor, kind: InputKind) -> list[Sample]:
    """Return the samples that fit a model's input shape, classes and multiset sizes, the largest multisets first."""
    fixed = predictor.stop == "fixed" and predictor.probabilistic
    sizes = range(predictor.max_size if fixed else 0, predictor.max_size + 1)
    digits = set("0123456789") <= set(predictor.classes)
    found = [
        sample
        for sample in map(_parse, FOLDER.glob("*.png"))
        if digits and kind.shape == (1, sample.side, sample.side) and len(sample.labels) in sizes
    ]
    return sorted(found, key=lambda sample: (len(sample.labels), sample.file), reverse=True)


def _parse(path: Path) -> Sample:
    side, *labels = path.stem.split("-")
    return Sample(path.name, tuple(labels), int(side))


def _make() -> None:
    digits = load_digits(os.environ.get(VARIABLE) or "download", progress=True).test
    FOLDER.mkdir(parents=True, exist_ok=True)
    for preset, indices in _INDICES.items():
        parameters = PRESETS[preset].digits
        assert parameters is not None
        made = generate(parameters, digits, "test", indices)
        for image, labels in zip(made.inputs[indices], made.labels, strict=True):  # type: ignore[index]
            shown = [str(parameters.canvas), *(made.classes[label] for label in sorted(labels[labels >= 0]))]
            Image.fromarray(image[0]).save(FOLDER / f"{'-'.join(shown)}.png", optimize=True)


if __name__ == "__main__":
    _make()
