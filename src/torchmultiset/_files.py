"""Files that are there as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_whole"]


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write beside, then put it in place at once: a kill leaves the old file or the new one.

    Args:
        path: The file; its folder is made if need be.
        content: Text, bytes, or what writes to a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        buffer = BytesIO()
        content(buffer)
        content = buffer.getvalue()
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    unfinished.replace(path)
