"""Storage of a data set in a folder of memory-mapped arrays, described by a manifest.

::

    folder/
      manifest.json       source, classes, split sizes, and the SHA-256 of each file
      train/inputs.npy    one row per example; also labels.npy and, if known, boxes, areas and ids
      ...

The manifest is written last: a folder without it is not a complete data set. During a build, ``building.json``
contains its plan and ``finished.jsonl`` lists the chunks on disk, so that a killed build can be resumed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from torchmultiset._checks import check, check_one_of
from torchmultiset._files import file_sha256, json_sha256, locked, write_whole
from torchmultiset.data._npy import allocate, open_rows, write_rows
from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Examples

__all__ = ["Chunk", "Plan", "Row", "load", "read_header", "write"]

FORMAT = 1
MANIFEST, BUILDING, FINISHED = "manifest.json", "building.json", "finished.jsonl"
_OWN = "manifest_sha256"


class Row(NamedTuple):
    """Data type and shape of one example in an array."""

    dtype: str
    """NumPy type string with byte order: ``"|u1"``, ``"<f4"``, ``"<U20"``."""
    shape: tuple[int, ...]


class Chunk(NamedTuple):
    """Range of examples start, ..., stop - 1 of a split."""

    split: str
    start: int
    stop: int

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.stop - self.start


Make = Callable[[Chunk], Mapping[str, Shaped[np.ndarray, "n ..."]]]


@dataclass(frozen=True)
class Plan:
    """Description of a stored data set: everything that its bytes depend on."""

    source: Mapping[str, Any]
    """Origin of the data as JSON values, which identifies the data set."""
    classes: tuple[str, ...]
    splits: Mapping[str, int]
    """Number of examples of each split."""
    arrays: Mapping[str, Row]
    """Arrays as in `Examples`: ``inputs``, ``labels`` and any of ``boxes``, ``areas`` and ``ids``."""

    def __post_init__(self) -> None:
        for name in ("inputs", "labels", *self.arrays):
            if name not in self.arrays:
                raise ValueError(f"arrays must include inputs and labels, but has only {', '.join(self.arrays)}")
            check_one_of("each name in arrays", name, ("inputs", "labels", "boxes", "areas", "ids"))
        for split, examples in self.splits.items():
            check(split.isidentifier(), "the name of a split", "a plain word", split)
            check(examples >= 0, f"splits[{split!r}]", "at least 0", examples)

    def files(self, folder: Path) -> dict[Path, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return the dtype and shape of the array in each file."""
        return {
            _file(folder, split, name): (np.dtype(row.dtype), (examples, *row.shape))
            for split, examples in self.splits.items()
            for name, row in self.arrays.items()
        }


def write(
    folder: str | os.PathLike[str], plan: Plan, make: Make, *, chunk: int, workers: int = 1, progress: bool = False
) -> dict[str, Examples]:
    """Write a data set chunk by chunk, or resume an unfinished build; if it is complete, only load it.

    Args:
        folder: A new or empty folder, or one with this data set, complete or unfinished.
        plan: Description of the data set.
        make: Function that returns the arrays of a chunk by name; called from several threads if `workers` > 1.
        chunk: Number of examples per chunk.
        workers: Number of threads that make chunks in parallel; NumPy releases Python's global lock.
        progress: Show a progress bar.

    Returns:
        The splits, as returned by `load`.

    Raises:
        ValueError: The folder contains something else, or `make` does not follow the plan.
        OSError: There is not enough free disk space, or another process is writing to the folder.

    Example:
        >>> import tempfile
        >>> rows = {"inputs": Row("<f4", (2,)), "labels": Row("<i8", (1,))}
        >>> plan = Plan({"made": "by hand"}, ("cat", "dog"), {"train": 3}, rows)
        >>> def make(chunk: Chunk) -> dict[str, np.ndarray]:
        ...     n = chunk.examples
        ...     return {"inputs": np.zeros((n, 2), np.float32), "labels": np.ones((n, 1), np.int64)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write(folder, plan, make, chunk=2)
        ...     load(folder)["train"].counts
        array([[0, 1],
               [0, 1],
               [0, 1]])
    """
    check(chunk >= 1, "chunk", "at least 1", chunk)
    check(workers >= 1, "workers", "at least 1", workers)
    folder = Path(folder)
    _refuse_other(folder, plan)
    if not (folder / MANIFEST).exists():
        with locked(folder):
            _begin(folder, plan)
            _fill(folder, plan, make, chunk, workers, progress)
            content = _to_json(plan) | {"sha256": _checksums(folder, plan, workers)}
            _write_json(folder / MANIFEST, content | {_OWN: json_sha256(content)})
    for name in (FINISHED, BUILDING):
        (folder / name).unlink(missing_ok=True)
    return load(folder)


def load(folder: str | os.PathLike[str]) -> dict[str, Examples]:
    """Open the splits of a data set. Inputs are memory-mapped and read batch by batch.

    All files are compared with their checksums first, once per process.

    Raises:
        FileNotFoundError: There is no data set, or its build is unfinished.
        ValueError: The manifest or an array is damaged.
    """
    folder = Path(folder)
    manifest = read_header(folder)
    plan = _from_json(manifest, folder / MANIFEST)
    # All arrays but the inputs are small and accessed often: load them into memory.
    arrays = {
        path: open_rows(path, *wanted, mapped=path.stem == "inputs") for path, wanted in plan.files(folder).items()
    }
    _verify(folder, manifest, arrays)
    splits = {}
    for split in plan.splits:
        opened: dict[str, Any] = {name: arrays[_file(folder, split, name)] for name in plan.arrays}
        if "ids" in opened:
            opened["ids"] = opened["ids"].tolist()
        splits[split] = Examples(classes=plan.classes, **opened)
    return splits


def read_header(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest of a data set: ``source``, ``classes``, ``splits``, ``arrays`` and ``sha256`` of each file.

    Raises:
        FileNotFoundError: There is no data set, or its build is unfinished.
        ValueError: The manifest is damaged or of another version.
    """
    folder = Path(folder)
    if (folder / MANIFEST).exists():
        content = _read_json(folder / MANIFEST)
        checksum = content.pop(_OWN, None)  # data sets built by version 0.1 have none
        if checksum is not None and checksum != json_sha256(content):
            raise ValueError(
                f"{folder / MANIFEST} was changed after the data set was built: delete the folder and build it again"
            )
        return content
    if (folder / BUILDING).exists():
        raise FileNotFoundError(
            f"{folder} contains only a part of a data set, because its build is unfinished: start the same build "
            "again to resume it"
        )
    raise FileNotFoundError(f"there is no data set in {folder}: it has no {MANIFEST}; build one there first")


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, modified: int) -> str:  # noqa: ARG001  (both identify the content)
    return file_sha256(path)


def _verify(folder: Path, manifest: Mapping[str, Any], paths: Collection[Path]) -> None:
    sums = manifest.get("sha256")
    names = [path.relative_to(folder).as_posix() for path in paths]
    if not isinstance(sums, dict) or not sums.keys() >= {*names}:
        raise ValueError(f"{folder / MANIFEST} has no checksums of all files: delete the folder and build it again")
    damaged = []
    for name in names:
        state = (folder / name).stat()
        if _sha256(folder / name, state.st_size, state.st_mtime_ns) != sums[name]:
            damaged.append(name)
    if damaged:
        raise ValueError(
            f"{', '.join(damaged)} in {folder} changed since the data set was built: delete the folder and build it "
            "again"
        )


def _refuse_other(folder: Path, plan: Plan) -> None:
    """Raise if the folder contains anything but this data set, complete or unfinished."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, but a data set requires a folder: choose another path")
    for name in (MANIFEST, BUILDING):
        if (folder / name).exists():
            found = {key: value for key, value in _read_json(folder / name).items() if key not in ("sha256", _OWN)}
            differences = _differences(found, _to_json(plan))
            if differences:
                raise ValueError(
                    f"{folder} contains a different data set ({'; '.join(differences)}): choose another folder, or "
                    "delete this one first"
                )
            return
    # A build that is killed as it starts leaves only a .partial file and its lock, which the system has released.
    if folder.is_dir() and any(path.suffix not in (".partial", ".lock") for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and contains no data set: choose a new or empty folder")


def _begin(folder: Path, plan: Plan) -> None:
    """Create the files that do not exist yet."""
    missing = {
        path: (dtype, shape)
        for path, (dtype, shape) in plan.files(folder).items()
        if not path.exists() or path.stat().st_size <= prod(shape) * dtype.itemsize
    }
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(prod(shape) * dtype.itemsize for dtype, shape in missing.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"{folder} needs {needed / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free on its disk: "
            "free up space, or choose a folder on another disk"
        )
    _write_json(folder / BUILDING, _to_json(plan))
    if missing:
        (folder / FINISHED).unlink(missing_ok=True)
    for path, (dtype, shape) in missing.items():
        allocate(path, dtype, shape)


def _fill(folder: Path, plan: Plan, make: Make, size: int, workers: int, progress: bool) -> None:
    """Make and write the unfinished chunks."""
    chunks = [
        Chunk(split, start, min(start + size, examples))
        for split, examples in plan.splits.items()
        for start in range(0, examples, size)
    ]
    finished = _read_finished(folder / FINISHED)
    todo = [chunk for chunk in chunks if chunk not in finished]

    def work(chunk: Chunk) -> Chunk:
        _put(folder, plan, chunk, make(chunk))
        return chunk

    executor = ThreadPoolExecutor(workers)
    try:
        with (
            (folder / FINISHED).open("a") as journal,
            progress_bar(progress, "Writing examples", sum(plan.splits.values())) as advance,
        ):
            advance(sum(chunk.examples for chunk in chunks if chunk in finished))
            # Start with a line break, because a kill may have truncated the previous line.
            for future in as_completed([executor.submit(work, chunk) for chunk in todo]):
                journal.write(f"\n{json.dumps(future.result())}\n")
                journal.flush()
                advance(future.result().examples)
    finally:
        executor.shutdown(cancel_futures=True)


def _put(folder: Path, plan: Plan, chunk: Chunk, arrays: Mapping[str, Shaped[np.ndarray, "n ..."]]) -> None:
    """Write the rows of a chunk to their positions in the files."""
    for name, row in plan.arrays.items():
        rows = arrays[name]
        wanted = (chunk.examples, *row.shape)
        if rows.dtype.str != row.dtype or rows.shape != wanted:
            raise ValueError(
                f"make must return {name} of dtype {row.dtype} and shape {wanted}, as planned, "
                f"but returned dtype {rows.dtype.str} and shape {rows.shape}"
            )
        write_rows(_file(folder, chunk.split, name), rows, before_end=plan.splits[chunk.split] - chunk.start)


def _read_finished(path: Path) -> set[Chunk]:
    finished = set()
    for line in path.read_text().splitlines() if path.exists() else ():
        # A line that does not parse was truncated by a kill; its chunk is made again.
        with suppress(ValueError, TypeError):
            finished.add(Chunk(*json.loads(line)))
    return finished


def _checksums(folder: Path, plan: Plan, workers: int) -> dict[str, str]:
    files = [*plan.files(folder)]
    with ThreadPoolExecutor(workers) as executor:
        sums = executor.map(file_sha256, files)
        return {file.relative_to(folder).as_posix(): sha256 for file, sha256 in zip(files, sums, strict=True)}


def _file(folder: Path, split: str, name: str) -> Path:
    return folder / split / f"{name}.npy"


def _to_json(plan: Plan) -> dict[str, Any]:
    # A round trip through JSON turns tuples into lists, so that the result compares equal with what is read.
    content: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(plan)}))
    return content


def _from_json(content: Mapping[str, Any], path: Path) -> Plan:
    try:
        arrays = {name: Row(dtype, tuple(shape)) for name, (dtype, shape) in content["arrays"].items()}
        return Plan(content["source"], tuple(content["classes"]), content["splits"], arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a valid manifest (missing or invalid: {error}): delete the folder and build it again"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete the folder and build the data set again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not of format {FORMAT}, which this version of torchmultiset reads: build the data set again "
            "in another folder, or use the version that wrote it"
        )
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    """Describe the differences between two JSON values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys([*found, *wanted])
        return [line for key in keys for line in _differences(found.get(key), wanted.get(key), f"{name}.{key}")]
    return [] if found == wanted else [f"{name.lstrip('.')} is {found!r}, not {wanted!r}"]
