"""Reader for the idx format of the original MNIST files: magic number, dimensions, data."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

__all__ = ["read_idx"]

_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20


def read_idx(path: str | os.PathLike[str], *, ndim: int) -> UInt8[np.ndarray, "*shape"]:
    """Read an idx file of unsigned bytes with `ndim` dimensions: 3 for images, 1 for labels.

    It may be gzipped, which is detected from its content and not from its name.
    """
    path = Path(path)
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP
    try:
        with gzip.open(path) if zipped else path.open("rb") as stream:
            return _parse(stream, path, ndim)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _unusable(path, f"is a damaged gzip file ({error})") from None


def _parse(stream: io.BufferedIOBase, path: Path, ndim: int) -> UInt8[np.ndarray, "*shape"]:
    # 0x08 is the idx code for unsigned bytes, the only type in MNIST.
    wanted = bytes([0, 0, 8, ndim])
    magic = stream.read(4)
    if magic != wanted:
        found = magic.hex(" ") or "nothing"
        raise _unusable(
            path, f"starts with {found}, not with {wanted.hex(' ')}, the magic number of {ndim}-d idx files"
        )
    lengths = stream.read(4 * ndim)
    if len(lengths) < 4 * ndim:
        raise _unusable(path, "is truncated inside its header")
    shape = struct.unpack(f">{ndim}I", lengths)
    size = math.prod(shape)
    content = _read_at_most(stream, size + 1)
    if len(content) != size:
        holds = "more" if len(content) > size else f"only {len(content)}"
        raise _unusable(path, f"should have {size} bytes after its header, for shape {shape}, but has {holds}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_at_most(stream: io.BufferedIOBase, size: int) -> bytes:
    # Block by block: read(size) would allocate `size` bytes up front, even for a corrupt header.
    blocks = []
    while size and (block := stream.read(min(size, _BLOCK))):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def _unusable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} {why}. Replace it with a fresh copy of the original file.")
