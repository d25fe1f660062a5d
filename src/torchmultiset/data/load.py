"""One door to all data sets on disk, whatever made them."""

from __future__ import annotations

from pathlib import Path

from torchmultiset.data import store
from torchmultiset.data.examples import Examples
from torchmultiset.data.manifest import read_manifest

__all__ = ["is_store", "load_data"]


def is_store(path: str | Path) -> bool:
    """Whether a data set was built in this folder by `store.write`, or is being built."""
    return any((Path(path) / name).exists() for name in (store.MANIFEST, store.BUILDING))


def load_data(
    path: str | Path, *, image_size: int = 224, check_inputs: bool = False, progress: bool = False
) -> dict[str, Examples]:
    r"""Open a data set that was built, or one of your own.

    Args:
        path: A folder that a build wrote; a .jsonl or .csv file; or a folder of images with labels.jsonl or
            labels.csv in it.
        image_size: Side of the square that images of your own are fitted into, in pixels. What was built has
            its size.
        check_inputs: Look at every input now: images and arrays are read, and what was built is compared with
            its checksums. Otherwise that is known when a batch is read.
        progress: Show a progress bar while images are read.

    Returns:
        The splits ``"train"``, ``"validation"`` and ``"test"``.

    Raises:
        FileNotFoundError: There is no data set.
        ValueError: It is damaged; a manifest of your own has its problems listed line by line.

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
        if check_inputs:
            store.verify(path)
        return store.load(path)
    if path.is_dir() and not any((path / name).is_file() for name in ("labels.jsonl", "labels.csv")):
        raise FileNotFoundError(
            f"there is no data set in {path}: it holds neither one that was built ({store.MANIFEST}) nor images with "
            "a file labels.csv or labels.jsonl that names them"
        )
    return read_manifest(path, image_size=image_size, check_inputs=check_inputs, progress=progress)
