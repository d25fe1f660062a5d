"""File of the predicted and true counts of a run, for paired tests and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchmultiset._files import write_whole
from torchmultiset.data._npy import readable
from torchmultiset.training.evaluation import Evaluation
from torchmultiset.viz.intervals import Counts

__all__ = ["COUNTS", "read_counts", "write_counts"]

COUNTS = "predictions.npz"


def write_counts(folder: Path, evaluations: Mapping[str, Evaluation], classes: Sequence[str]) -> None:
    """Write ``predictions.npz`` with the counts of some splits as bytes; 255 stands for 255 or more.

    Args:
        folder: Folder to write to.
        evaluations: Split -> predictions for all of its examples, in their order.
        classes: Names of the classes.
    """
    arrays: dict[str, Any] = {
        f"{split}_{name}": counts.clamp(max=255).numpy().astype(np.uint8)
        for split, (predicted, true) in evaluations.items()
        for name, counts in (("predicted", predicted), ("true", true))
    }
    write_whole(folder / COUNTS, lambda file: np.savez_compressed(file, classes=np.array(classes), **arrays))


def read_counts(path: Path, split: str, *, fix: str) -> Counts:
    """Read the predicted and true counts (N, C) of a split.

    Args:
        path: The file.
        split: Name of the split.
        fix: What the user should do if the file is missing or damaged, as the end of an error message.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or has no such split.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: {fix}")
    with readable(path, fix), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays[f"{split}_predicted"], arrays[f"{split}_true"]
