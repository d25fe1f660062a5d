"""Sample images for models that read digits; file names hold the side length in pixels and the labels.

``python -m torchmultiset.page.samples`` regenerates them: the first test images of MNIST Multi, built from digits that
no model was trained on. MNIST is read from the folder in ``TORCHMULTISET_MNIST``, or else downloaded.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from torchmultiset.data.digits import VARIABLE, load_digits
from torchmultiset.data.mnist_multi import generate
from torchmultiset.model.inputs import InputKind, open_examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.presets import PRESETS, PresetName
from torchmultiset.pipeline.record import CONFIG, read_config

__all__ = ["FOLDER", "OwnSample", "Sample", "brightness_of", "fitting", "image_file", "own_samples"]

FOLDER = Path(__file__).parent / "static" / "samples"
_OWN_SAMPLES = 8
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


class OwnSample(NamedTuple):
    """A sample from the data of a training run: the image as a PNG file, and its true labels."""

    image: bytes
    labels: tuple[str, ...]


def own_samples(run: str, predictor: Predictor, kind: InputKind) -> tuple[OwnSample, ...]:
    """Return the first test images of a run folder, if its data still exists; other models have no samples."""
    if not Path(run, CONFIG).is_file() or kind.dtype != "uint8":
        return ()
    try:
        splits = open_examples(predictor, str(read_config(Path(run, CONFIG))["data"]))
        examples = next((splits[name] for name in ("test", "validation", "train") if len(splits.get(name, ()))), None)
        if examples is None:
            return ()
        chosen = np.arange(min(_OWN_SAMPLES, len(examples)))
        images, labels = examples.inputs[chosen], examples.labels[chosen]
    except (KeyError, OSError, ValueError):  # moved, deleted or changed
        return ()
    return tuple(
        OwnSample(image_file(image, "PNG"), tuple(sorted(examples.classes[label] for label in row if label >= 0)))
        for image, row in zip(images, labels, strict=True)
    )


def brightness_of(predictor: Predictor, kind: InputKind, samples: tuple[OwnSample, ...]) -> float | None:
    """Return the mean of the pixels of the samples, from 0 to 255; None without samples."""
    files = [(FOLDER / sample.file).read_bytes() for sample in fitting(predictor, kind)]
    files += [one.image for one in samples]
    means = [float(np.asarray(Image.open(io.BytesIO(file)).convert("L")).mean()) for file in files]
    return sum(means) / len(means) if means else None


def image_file(pixels: Shaped[np.ndarray, "c h w"], kind: str) -> bytes:
    """Return the content of an image file, grey if there is one channel."""
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


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
        examples = generate(parameters, digits, "test", indices)
        for image, labels in zip(examples.inputs[indices], examples.labels, strict=True):  # type: ignore[index]
            shown = [str(parameters.canvas), *(examples.classes[label] for label in sorted(labels[labels >= 0]))]
            Image.fromarray(image[0]).save(FOLDER / f"{'-'.join(shown)}.png", optimize=True)


if __name__ == "__main__":
    _make()
