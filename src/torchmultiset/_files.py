"""Files that are there as a whole, or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["file_sha256", "write_whole"]


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write beside, then put it in place at once: a kill leaves the old file or the new one.

    Args:
        path: The file; its folder is made if need be.
        content: Text, bytes, or what writes to a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.partial")
    try:
        with unfinished.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
