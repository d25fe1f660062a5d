"""What a frozen backbone makes of each image, computed once and kept on disk in half precision.

A folder holds the features of one backbone (its weights included) for images of one size, and knows each image
by its key: splits and data sets that share images share the folder, and what is missing is added. Three files:
``manifest.json`` says what the folder is for, ``features.f16`` holds one row after another, ``index.jsonl``
names the image of each row. A row counts once the index names it, and the index is written after the row: a
run that is killed leaves whole rows, and at most some bytes behind them that the next run cuts off.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

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
    """Maps images (B, channels, H, W) to features (B, D, h, w), each image by itself, and never changes."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    def fingerprint(self) -> str:
        """Another string for other weights, and for another normalisation of the images."""
        ...

    def __call__(self, images: Tensor, /) -> Tensor:
        """The features, on any device."""
        ...


@dataclass(frozen=True, eq=False)
class FeatureCache:
    """Features on disk in the place of images: inputs that are read by the batch, as float16 (B, D, h, w).

    It holds no more than a path and row numbers, so that another process can be handed one.
    """

    path: Path
    """The file of rows."""
    shape: tuple[int, ...]
    """D, h and w."""
    rows: Int64[np.ndarray, " n"]
    """Where the features of each input are in the file."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Float16[np.ndarray, "b ..."]:
        chosen: np.ndarray[Any, Any] = _rows(self.path, self.shape)[self.rows[indices]]
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
    """Compute the features of each input that the folder does not have yet, and give all of them.

    The size is projected and the disk looked at before anything is computed. A run that was stopped, even
    killed, is resumed. If another process fills the same folder, this one waits for it.

    Args:
        backbone: What makes the features.
        inputs: Images of one size, (channels, H, W) each.
        folder: Where the features are kept; made if need be.
        keys: A name for each image that no other image has, such as COCO's image id.
        batch_size: How many images at a time.
        recheck: How many of the images that the folder knows already are compared, pixel by pixel, with what
            they were, evenly spread; their features too, with what was written. ``len(inputs)`` compares all.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: The folder holds features of another backbone, of another size or of other images, or it is
            damaged.
        OSError: The disk has not enough room.

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
            store = _open(folder, purpose)  # another process may have filled it meanwhile
            missing = np.array([i for i, key in enumerate(keys) if key not in store.entries], dtype=np.int64)
            if not store.shape:
                probe = backbone(torch.from_numpy(np.ascontiguousarray(first)))
                store = _Store(folder, tuple(probe.shape[1:]))
            need = _check_disk(store, len(missing))
            _write_manifest(store, purpose)
            with progress_bar(progress, f"{backbone.name} features, {_size(need)}", len(missing)) as advance:
                computed = _compute(backbone, inputs, missing, _kind(first), batch_size)
                _add(store, keys, computed, advance)
    rows = np.array([store.entries[key].row for key in keys], dtype=np.int64)
    return FeatureCache(store.features, store.shape, rows)


@dataclass(frozen=True)
class _Entry:
    row: int
    image: str
    """Digest of the pixels."""
    features: str
    """Digest of the row."""


class _Computed(NamedTuple):
    positions: Int64[np.ndarray, " b"]
    images: Shaped[np.ndarray, "b ..."]
    rows: Float16[np.ndarray, "b ..."]


@dataclass(frozen=True)
class _Store:
    folder: Path
    shape: tuple[int, ...] = ()
    entries: dict[str, _Entry] = field(default_factory=dict)
    index_bytes: int = 0
    """Length of the whole lines of the index."""

    @property
    def features(self) -> Path:
        return self.folder / "features.f16"

    @property
    def index(self) -> Path:
        return self.folder / "index.jsonl"

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape)) * _HALF.itemsize


def _write_manifest(store: _Store, purpose: dict[str, Any]) -> None:
    text = json.dumps({**purpose, "features": store.shape}, indent=1) + "\n"
    write_whole(store.folder / "manifest.json", text)


def _open(folder: Path, purpose: dict[str, Any]) -> _Store:
    manifest = folder / "manifest.json"
    if not manifest.exists():
        if (folder / "index.jsonl").exists():
            raise _damaged(folder, "manifest.json is missing")
        return _Store(folder)
    try:
        found = json.loads(manifest.read_text())
        shape = tuple(int(length) for length in found["features"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"manifest.json cannot be read ({error!r})") from error
    other = [f"{what} {found.get(what)}, not {mine}" for what, mine in purpose.items() if found.get(what) != mine]
    if other:
        raise ValueError(
            f"the features in {folder} are not the ones asked for: {'; '.join(other)}. Give another folder, or"
            " delete this one to compute them again"
        )
    store = _Store(folder, shape)
    if not store.index.exists():
        return store
    lines = store.index.read_bytes()
    whole = lines[: lines.rfind(b"\n") + 1]  # a kill can cut the last line
    entries: dict[str, _Entry] = {}
    for row, line in enumerate(whole.splitlines()):
        try:
            key, image, features = json.loads(line)
        except (ValueError, TypeError) as error:
            raise _damaged(folder, f"line {row + 1} of {store.index.name} cannot be read") from error
        if key in entries:
            raise _damaged(folder, f"line {row + 1} of {store.index.name} names {key!r} a second time")
        entries[key] = _Entry(row, image, features)
    size = store.features.stat().st_size if store.features.exists() else 0
    if size < len(entries) * store.row_bytes:
        raise _damaged(folder, f"{store.features.name} has {size:,} bytes, too few for {len(entries)} images")
    return _Store(folder, shape, entries, len(whole))


def _compute(
    backbone: FrozenBackbone, inputs: Inputs, chosen: Int64[np.ndarray, " m"], kind: list[Any], batch_size: int
) -> Iterator[_Computed]:
    for start in range(0, len(chosen), batch_size):
        batch = chosen[start : start + batch_size]
        images = np.ascontiguousarray(inputs[batch])
        if _kind(images) != kind:
            raise ValueError(f"all images must be {kind}, like the first, but some are {_kind(images)}")
        with torch.no_grad():
            features = backbone(torch.from_numpy(images)).to("cpu", torch.float16).numpy()
        yield _Computed(batch, images, features.astype(_HALF, copy=False))


def _add(store: _Store, keys: Sequence[str], computed: Iterator[_Computed], advance: Callable[[int], None]) -> None:
    # Written at the end of plain files and not through a memory map: a full disk is then an error, not a crash.
    with store.features.open("ab") as features, store.index.open("ab") as index:
        features.truncate(len(store.entries) * store.row_bytes)
        index.truncate(store.index_bytes)
        for batch, images, rows in computed:
            _check_rows(rows, store.shape, [keys[i] for i in batch])
            lines = []
            for i, image, row in zip(batch, images, rows, strict=True):
                entry = _Entry(len(store.entries), _digest(image), _digest(row))
                store.entries[keys[i]] = entry
                lines.append(json.dumps([keys[i], entry.image, entry.features]) + "\n")
            _append(features, rows.tobytes())
            _append(index, "".join(lines).encode())
            advance(len(batch))


def _append(file: Any, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())  # so that the index never names a row that a power cut took


def _check_rows(rows: Float16[np.ndarray, "b ..."], shape: tuple[int, ...], keys: Sequence[str]) -> None:
    if rows.shape != (len(keys), *shape):
        raise ValueError(f"the backbone must give features of shape {(len(keys), *shape)}, but gave {rows.shape}")
    finite = np.isfinite(rows).reshape(len(rows), -1).all(1)
    if not finite.all():
        raise ValueError(
            f"the features of image {keys[int(finite.argmin())]!r} do not fit into float16 (beyond 65504, or NaN)"
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
                raise _damaged(store.folder, f"the features of {keys[i]!r} are not what was written")
            if _digest(image) != entry.image:
                raise ValueError(
                    f"the features in {store.folder} are of other images: the pixels of {keys[i]!r} were"
                    " different. Give another folder, or delete this one to compute them again"
                )


def _rows(path: Path, shape: tuple[int, ...]) -> Float16[np.ndarray, "n ..."]:
    flat = np.memmap(path, dtype=_HALF, mode="r")
    length = int(np.prod(shape))
    return flat[: flat.size // length * length].reshape(-1, *shape)


def _spread(positions: Int64[np.ndarray, " n"], most: int) -> Int64[np.ndarray, " k"]:
    if len(positions) <= most:
        return positions
    return positions[np.linspace(0, len(positions) - 1, most).astype(np.int64)]


def _kind(images: Shaped[np.ndarray, "b ..."]) -> list[Any]:
    return [str(images.dtype), *images.shape[1:]]


def _digest(array: Shaped[np.ndarray, "*shape"]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()


def _check_keys(keys: Sequence[str], length: int) -> None:
    check(length > 0, "inputs", "at least one image", length)
    if len(keys) != length:
        raise ValueError(f"keys must name each of the {length} inputs, but there are {len(keys)}")
    double, times = Counter(keys).most_common(1)[0]
    if times > 1:
        raise ValueError(f"keys must be different for each image, but {double!r} occurs {times} times")


def _check_disk(store: _Store, images: int) -> int:
    need = images * (store.row_bytes + 200)  # a line of the index takes about 100 bytes
    free = shutil.disk_usage(store.folder).free
    if need > free:
        raise OSError(
            f"the features of {images:,} images need {_size(need)}, but only {_size(free)} are free in"
            f" {store.folder}: make room, or give a folder on another disk"
        )
    return need


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _damaged(folder: Path, what: str) -> ValueError:
    return ValueError(f"the features in {folder} are damaged: {what}. Delete the folder to compute them again")
