"""Atomic file writes, and checksums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["file_sha256", "is_file", "json_sha256", "locked", "write_whole"]


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file atomically, creating its folder: if the process is killed, the old file or the new one remains."""
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
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error for a full disk has none
        raise


def is_file(path: Path) -> bool:
    """Return whether the path is a file: like `Path.is_file`, but False for a name that is too long for the system."""
    return os.path.isfile(path)  # noqa: PTH113


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whose keys may be in any order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, and create it if necessary.

    The system releases the lock when the process is killed.

    Raises:
        OSError: Another process has locked the folder.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "folder.lock"
    try:
        with FileLock(path, timeout=0):
            try:
                yield
            finally:
                with suppress(OSError):  # the folder may be gone
                    path.unlink(missing_ok=True)
    except Timeout:
        raise OSError(
            f"another process is writing to {folder}: wait until it has ended, or choose another folder"
        ) from None
