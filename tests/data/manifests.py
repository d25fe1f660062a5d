"""Writing and reading small user data sets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from torchmultiset.data.examples import Examples
from torchmultiset.data.manifest import ManifestError, read_manifest

ALL_TRAIN = (1.0, 0.0, 0.0)


def write(folder: Path, name: str, *lines: str | dict) -> Path:
    """Write a file of these lines, dicts as JSON."""
    path = folder / name
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def draw(path: Path, color: str = "red", size: tuple[int, int] = (8, 8), **options: object) -> None:
    Image.new("RGB", size, color).save(path, **options)


def multisets(examples: Examples) -> list[Counter[str]]:
    return [Counter(examples.classes[i] for i in row if i >= 0) for row in examples.labels]


def together(splits: dict[str, Examples]) -> dict[str, Counter[str]]:
    """Multisets of the examples of all splits, by id."""
    return {
        name: multiset
        for examples in splits.values()
        for name, multiset in zip(examples.ids, multisets(examples), strict=True)
    }


def problems_of(path: Path, **options: object) -> list[tuple[int, str]]:
    with pytest.raises(ManifestError) as caught:
        read_manifest(path, **options)
    assert str(path) in str(caught.value)
    return list(caught.value.problems)
