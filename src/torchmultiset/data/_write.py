"""Writing of manifests, for the importers and for data sets built from COCO."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64
from PIL import ExifTags, Image

from torchmultiset._files import write_whole

__all__ = ["as_jsonl", "relative_path", "rounded", "upright_boxes", "write_new"]

# EXIF orientation -> flip horizontally, flip vertically, then transpose.
_TURNS = {
    2: (True, False, False),
    3: (True, True, False),
    4: (False, True, False),
    5: (False, False, True),
    6: (False, True, True),
    7: (True, True, True),
    8: (True, False, True),
}


def relative_path(image: Path, manifest: Path) -> str:
    """Return the path of an image relative to the folder of a manifest, without resolving a link of the image."""
    real = Path(os.path.realpath(image.parent), image.name)
    return Path(os.path.relpath(real, os.path.realpath(manifest.parent))).as_posix()


def rounded(numbers: Float64[np.ndarray, "m ..."]) -> object:
    """Round to two decimals, as in COCO; adding 0.0 turns -0.0 into 0.0."""
    return (numbers.round(2) + 0.0).tolist()


def as_jsonl(lines: Iterable[Mapping[str, object]]) -> str:
    """Return the text of a .jsonl file."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def write_new(path: Path, text: str) -> None:
    """Write a file; raise a FileExistsError if it exists with different content."""
    if not path.exists():
        write_whole(path, text)
    elif path.read_bytes() != text.encode():
        raise FileExistsError(f"{path} already exists with different content: delete it, or choose another name")


def upright_boxes(
    boxes: Float64[np.ndarray, "m 4"], size: Int64[np.ndarray, " 2"], image: Path
) -> Float64[np.ndarray, "m 4"]:
    """Transform boxes (M, 4) from the pixels as stored, of this width and height, to the image after EXIF rotation."""
    with Image.open(image) as opened:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
    *mirrored, transposed = _TURNS.get(orientation, (False, False, False))
    corner, extent = boxes[:, :2], boxes[:, 2:]
    corner = np.where(mirrored, size - corner - extent, corner)
    order = [1, 0] if transposed else [0, 1]
    return np.concatenate([corner[:, order], extent[:, order]], axis=1)
