"""Writing of manifests, for the importers and for data sets built from COCO."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from torchmultiset._files import write_whole

__all__ = ["as_jsonl", "relative_path", "rounded", "write_new"]


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
