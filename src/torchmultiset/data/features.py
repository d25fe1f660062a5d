"""On-disk cache of frozen backbone features, computed once and stored in half precision.

A folder stores the features of one backbone (with fixed weights) for images of one size, each identified by a key.
Splits and data sets that share images can share the folder; missing features are added. There are three files:
``manifest.json`` describes the backbone and the images, ``features.f16`` contains the rows, and ``index.jsonl`` the
key of each row. A row is valid once it is in the index, which is written after the row: a killed run leaves
complete rows and at most some trailing bytes, which the next run truncates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float16, Int, Int64, Shaped
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Inputs

__all__ = ["FeatureCache", "FrozenBackbone", "cache_features"]

_HALF = np.dtype("<f2")


@runtime_checkable
class FrozenBackbone(Protocol):
    """Fixed map from images (B, channels, H, W) to features (B, D, h, w), independent for each image."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    def fingerprint(self) -> str:
        """Return a string that identifies the weights and the normalisation of the images."""
        ...

    def __call__(self, images: Tensor, /) -> Tensor:
        """Compute the features, on any device."""
        ...


@dataclass(frozen=True, eq=False)
class FeatureCache:
    """`Inputs` that read float16 features (B, D, h, w) from disk in place of images.

    It stores only a path and row numbers, so it is cheap to send to another process.
    """

    path: Path
    """File that contains the rows."""
    shape: tuple[int, ...]
    """Shape of a row: D, h and w."""
    rows: Int64[np.ndarray, " n"]
    """Row number of each input (N,)."""
    digests: dict[int, str]
    """Checksum of each row that was not read yet; a row is verified when it is first read."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Float16[np.ndarray, "b ..."]:
        numbers = self.rows[indices]
        rows = _rows(self.path, self.shape)
        if len(numbers) and numbers.max() >= len(rows):  # the file was deleted or replaced in the meantime
            raise _damaged(
                self.path.parent, f"{self.path.name} has {len(rows):,} rows, but row {numbers.max()} is needed"
            )
        chosen: np.ndarray[Any, Any] = rows[numbers]
        for number, row in zip(numbers.tolist(), chosen, strict=True):
            if number in self.digests and _digest(row) != self.digests[number]:
                raise _damaged(self.path.parent, f"row {number} of {self.path.name} does not match its checksum")
            self.digests.pop(number, None)
        return chosen


def cache_features(
    backbone: FrozenBackbone,
    inputs: Inputs,
    folder: str | Path,
    *,
    keys: Sequence[str],
    batch_size: int = 32,
    recheck: int = 16,
    progress: bool = False,
) -> FeatureCache:
    """Compute the features that are missing from the folder and return the features of all inputs.

    The free disk space is checked before anything is computed. An interrupted run, even a killed one, is resumed. If
    another process is writing to the same folder, this one waits for it.

    Args:
        backbone: Backbone that computes the features.
        inputs: Images of one size, (channels, H, W) each.
        folder: Folder for the features; created if it does not exist.
        keys: Unique key of each image, such as COCO's image id.
        batch_size: Number of images per batch.
        recheck: Number of cached images, evenly spread, whose pixels and features are compared with the stored
            checksums. ``len(inputs)`` checks all of them.
        progress: Show a progress bar.

    Raises:
        ValueError: The folder contains features of a different backbone, size or set of images, or it is damaged.
        OSError: There is not enough free disk space.

    Example:
        >>> from dataclasses import replace
        >>> from tempfile import TemporaryDirectory
        >>> from torchmultiset.data import Examples
        >>> class Pool(torch.nn.AvgPool2d):
        ...     name = "pool"
        ...     def fingerprint(self) -> str:
        ...         return f"pool {self.kernel_size}"
        >>> pixels = np.random.default_rng(0).random((3, 3, 8, 8), dtype=np.float32)
        >>> images = Examples(pixels, np.array([[0], [1], [1]]), ("cat", "dog"), ids=["7", "8", "9"])
        >>> with TemporaryDirectory() as folder:
        ...     cache = cache_features(Pool(4), images.inputs, folder, keys=images.ids)
        ...     batch = replace(images, inputs=cache).batch([2, 0])
        >>> batch.x.shape, batch.x.dtype
        (torch.Size([2, 3, 2, 2]), torch.float16)
    """
    _check_keys(keys, len(inputs))
    check(batch_size >= 1, "batch_size", "at least 1", batch_size)
    check(recheck >= 0, "recheck", "at least 0", recheck)
    folder = Path(folder)
    first = inputs[np.array([0])]
    purpose = {
        "format": 1,
        "backbone": backbone.name,
        "weights": backbone.fingerprint(),
        "image": _kind(first),
    }
    store = _open(folder, purpose)
    known = np.array([i for i, key in enumerate(keys) if key in store.entries], dtype=np.int64)
    _recheck(store, inputs, keys, _spread(known, recheck), batch_size)
    if len(known) < len(keys):
        from filelock import FileLock

        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "features.lock"):
            store = _open(folder, purpose)  # another process may have filled it in the meantime
            missing = np.array([i for i, key in enumerate(keys) if key not in store.entries], dtype=np.int64)
            if not store.shape:
                probe = backbone(torch.from_numpy(np.ascontiguousarray(first)))
                store = _Store(folder, tuple(probe.shape[1:]))
            need = _check_disk(store, len(missing))
            manifest = json.dumps({**purpose, "features": store.shape}, indent=1)
            write_whole(folder / "manifest.json", f"{manifest}\n")
            with progress_bar(progress, f"{backbone.name} features, {_size(need)}", len(missing)) as advance:
                _add(store, backbone, inputs, keys, missing, _kind(first), batch_size, advance)
    entries = [store.entries[key] for key in keys]
    rows = np.array([entry.row for entry in entries], dtype=np.int64)
    return FeatureCache(store.features, store.shape, rows, {entry.row: entry.features for entry in entries})


@dataclass(frozen=True)
class _Entry:
    row: int
    image: str
    """Digest of the pixels."""
    features: str
    """Digest of the row."""


@dataclass(frozen=True)
class _Store:
    folder: Path
    shape: tuple[int, ...] = ()
    entries: dict[str, _Entry] = field(default_factory=dict)
    index_bytes: int = 0
    """Total length of the complete lines of the index."""

    @property
    def features(self) -> Path:
        return self.folder / "features.f16"

    @property
    def index(self) -> Path:
        return self.folder / "index.jsonl"

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape)) * _HALF.itemsize


def _open(folder: Path, purpose: dict[str, Any]) -> _Store:
    manifest = folder / "manifest.json"
    if not manifest.exists():
        if (folder / "index.jsonl").exists():
            raise _damaged(folder, "manifest.json is missing")
        return _Store(folder)
    try:
        found = json.loads(manifest.read_text())
        shape = tuple(int(length) for length in found["features"])
        if not shape or min(shape) < 1:
            raise ValueError(f"features is {shape}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _damaged(folder, f"manifest.json cannot be read ({error})") from error
    other = [f"{what} {found.get(what)}, not {mine}" for what, mine in purpose.items() if found.get(what) != mine]
    if other:
        raise ValueError(
            f"the features in {folder} are not the requested ones: {'; '.join(other)}. Use another folder, or"
            " delete this one to recompute them"
        )
    store = _Store(folder, shape)
    if not store.index.exists():
        return store
    lines = store.index.read_bytes()
    whole = lines[: lines.rfind(b"\n") + 1]  # a kill can truncate the last line
    entries: dict[str, _Entry] = {}
    for row, line in enumerate(whole.splitlines()):
        try:
            key, image, features, *checksum = json.loads(line)  # caches of version 0.1 have no checksum of the line
            if checksum and checksum != [_line_digest(key, image, features)]:
                raise ValueError("the line does not match its checksum")
        except (ValueError, TypeError, RecursionError) as error:
            raise _damaged(folder, f"line {row + 1} of {store.index.name} cannot be read") from error
        if key in entries:
            raise _damaged(folder, f"line {row + 1} of {store.index.name} repeats the key {key!r}")
        entries[key] = _Entry(row, image, features)
    size = store.features.stat().st_size if store.features.exists() else 0
    if size < len(entries) * store.row_bytes:
        raise _damaged(folder, f"{store.features.name} has {size:,} bytes, too few for {len(entries)} images")
    return _Store(folder, shape, entries, len(whole))


def _add(
    store: _Store,
    backbone: FrozenBackbone,
    inputs: Inputs,
    keys: Sequence[str],
    missing: Int64[np.ndarray, " m"],
    kind: list[Any],
    batch_size: int,
    advance: Callable[[int], None],
) -> None:
    """Compute the missing features and append them to the files."""
    # Append to plain files: through a memory map, a full disk would crash the process.
    with store.features.open("ab") as features, store.index.open("ab") as index:
        features.truncate(len(store.entries) * store.row_bytes)
        index.truncate(store.index_bytes)
        for start in range(0, len(missing), batch_size):
            batch = missing[start : start + batch_size]
            images = np.ascontiguousarray(inputs[batch])
            if _kind(images) != kind:
                raise ValueError(f"all inputs must be {kind}, like the first, but some are {_kind(images)}")
            with torch.no_grad():
                computed = backbone(torch.from_numpy(images)).to("cpu", torch.float16).numpy()
            rows = computed.astype(_HALF, copy=False)
            _check_rows(rows, store.shape, [keys[i] for i in batch], backbone.name)
            lines = []
            for i, image, row in zip(batch, images, rows, strict=True):
                entry = _Entry(len(store.entries), _digest(image), _digest(row))
                store.entries[keys[i]] = entry
                checksum = _line_digest(keys[i], entry.image, entry.features)
                lines.append(json.dumps([keys[i], entry.image, entry.features, checksum]) + "\n")
            _append(features, rows.tobytes())
            _append(index, "".join(lines).encode())
            advance(len(batch))


def _append(file: Any, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())  # so that the index never lists a row that was lost in a power failure


def _check_rows(rows: Float16[np.ndarray, "b ..."], shape: tuple[int, ...], keys: Sequence[str], name: str) -> None:
    if rows.shape != (len(keys), *shape):
        raise ValueError(f"the backbone must return features of shape {(len(keys), *shape)}, not {rows.shape}")
    finite = np.isfinite(rows).reshape(len(rows), -1).all(1)
    if not finite.all():
        raise ValueError(
            f"the features of image {keys[int(finite.argmin())]!r} do not fit into float16 (above 65504, or NaN):"
            f" choose another backbone than {name}"
        )


def _recheck(
    store: _Store, inputs: Inputs, keys: Sequence[str], chosen: Int64[np.ndarray, " k"], batch_size: int
) -> None:
    for start in range(0, len(chosen), batch_size):
        batch = chosen[start : start + batch_size]
        entries = [store.entries[keys[i]] for i in batch]
        rows = _rows(store.features, store.shape)[[entry.row for entry in entries]]
        images = np.ascontiguousarray(inputs[batch])
        for i, entry, image, row in zip(batch, entries, images, rows, strict=True):
            if _digest(row) != entry.features:
                raise _damaged(store.folder, f"the features of {keys[i]!r} do not match their checksum")
            if _digest(image) != entry.image:
                raise ValueError(
                    f"the features in {store.folder} are of different images: the pixels of {keys[i]!r} have"
                    " changed. Use another folder, or delete this one to recompute them"
                )


def _rows(path: Path, shape: tuple[int, ...]) -> Float16[np.ndarray, "n ..."]:
    length = int(np.prod(shape))
    number = path.stat().st_size // (length * _HALF.itemsize)  # a kill can leave some bytes at the end
    return np.memmap(path, dtype=_HALF, mode="r", shape=(number, *shape))


def _spread(positions: Int64[np.ndarray, " n"], most: int) -> Int64[np.ndarray, " k"]:
    if len(positions) <= most:
        return positions
    return positions[np.linspace(0, len(positions) - 1, most).astype(np.int64)]


def _kind(images: Shaped[np.ndarray, "b ..."]) -> list[Any]:
    return [str(images.dtype), *images.shape[1:]]


def _digest(array: Shaped[np.ndarray, "*shape"]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()


def _line_digest(*entries: object) -> str:
    return hashlib.blake2b(json.dumps(entries).encode(), digest_size=8).hexdigest()


def _check_keys(keys: Sequence[str], length: int) -> None:
    check(length > 0, "inputs", "at least one image", length)
    if len(keys) != length:
        raise ValueError(f"keys must have one entry for each of the {length} inputs, but has {len(keys)}")
    key, times = Counter(keys).most_common(1)[0]
    if times > 1:
        raise ValueError(f"keys must be unique, but {key!r} occurs {times} times")


def _check_disk(store: _Store, images: int) -> int:
    need = images * (store.row_bytes + 200)  # a line of the index takes about 100 bytes
    free = shutil.disk_usage(store.folder).free
    if need > free:
        raise OSError(
            f"the features of {images:,} images need {_size(need)}, but only {_size(free)} are free in"
            f" {store.folder}: free up space, or use a folder on another disk"
        )
    return need


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _damaged(folder: Path, what: str) -> ValueError:
    return ValueError(f"the features in {folder} are damaged: {what}. Delete the folder to recompute them")
