"""Small models for the page, one for each way to end, and the page's samples."""

from __future__ import annotations

from pathlib import Path

import torch

import torchmultiset.page
from torchmultiset.encoders import ConvEncoder
from torchmultiset.heads import CellCounts, OneStep
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import ConvLSTMPolicy

SIDE = 24
CLASSES = ("apple", "pear", "plum")
STATIC = Path(torchmultiset.page.__file__).parent / "static"


def predictor(stop: str, *, channels: int = 1, classes: tuple[str, ...] = CLASSES, seed: int = 0) -> Predictor:
    """An untrained model; `stop` may also be "one-step" or "counts"."""
    torch.manual_seed(seed)
    encoder = ConvEncoder(channels, (4, 8))
    memory = encoder.memory_shape(SIDE, SIDE)
    if stop == "one-step":
        return Predictor(encoder, OneStep(len(classes), memory[0]), classes, max_size=3)
    if stop == "counts":
        return Predictor(encoder, CellCounts(len(classes), memory[0], hidden=8), classes, max_size=3)
    policy = ConvLSTMPolicy(len(classes) + (stop == "end"), memory, hidden=8)
    return Predictor(encoder, policy, classes, max_size=3, stop=stop)


def save(model: Predictor, folder: Path, shape: tuple[int, ...] | None = None) -> str:
    channels = model.encoder.arguments.get("in_channels", 1)
    kind = {"shape": list(shape or (channels, SIDE, SIDE)), "dtype": "uint8", "exif": False}
    model.save(folder, record={"input": kind})
    return str(folder)


def samples(side: int = 100, size: int = 4) -> dict[Path, list[str]]:
    """Samples of `side` pixels with `size` digits: their files, and the labels in their file names."""
    named = {path: path.stem.split("-") for path in sorted((STATIC / "samples").glob("*.png"))}
    return {path: labels for path, (pixels, *labels) in named.items() if int(pixels) == side and len(labels) == size}
