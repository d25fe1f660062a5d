"""Common entry point to all data sets on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchmultiset._checks import check
from torchmultiset.data import store
from torchmultiset.data.examples import Examples
from torchmultiset.data.manifest import FRACTIONS, read_manifest

__all__ = ["is_store", "load_data"]


def is_store(path: str | Path) -> bool:
    """Return whether the folder contains a data set written by `store.write`, complete or unfinished."""
    return any((Path(path) / name).exists() for name in (store.MANIFEST, store.BUILDING))


def load_data(
    path: str | Path,
    *,
    image_size: int = 224,
    check_inputs: bool = False,
    classes: Sequence[str] | None = None,
    fractions: Sequence[int | float] | None = None,
    skip_unreadable: bool = False,
    progress: bool = False,
) -> dict[str, Examples]:
    r"""Open a built data set or a manifest.

    Args:
        path: A folder with a built data set; a .jsonl or .csv manifest; or a folder of images with labels.jsonl or
            labels.csv.
        image_size: As for `read_manifest`, like the following arguments; a built data set has a fixed size.
        check_inputs: Whether to read every input of a manifest now. A built data set is always compared with its
            checksums.
        classes: For a manifest only.
        fractions: For a manifest only; None: `FRACTIONS`.
        skip_unreadable: For a manifest only; implies `check_inputs`.
        progress: Show a progress bar while images are read.

    Returns:
        The splits ``"train"``, ``"validation"`` and ``"test"``.

    Raises:
        FileNotFoundError: There is no data set at `path`.
        ValueError: The data set is damaged; the problems of a manifest are listed line by line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "pets.csv")
        ...     _ = file.write_text("weight,labels,split\n9.5,cat;dog,train\n")
        ...     load_data(file)["train"].classes
        ('cat', 'dog')
    """
    path = Path(path)
    if is_store(path):
        expected = f"left out, as {path} is a built data set with its own classes and splits"
        of_manifests = {"classes": classes, "fractions": fractions, "skip_unreadable": skip_unreadable or None}
        for name, value in of_manifests.items():
            check(value is None, name, expected, value)
        return store.load(path)
    return read_manifest(
        path,
        classes=classes,
        fractions=FRACTIONS if fractions is None else fractions,
        image_size=image_size,
        skip_unreadable=skip_unreadable,
        check_inputs=check_inputs or skip_unreadable,
        progress=progress,
    )
