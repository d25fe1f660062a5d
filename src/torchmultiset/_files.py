"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    unfinished = path.with_name(f"{path.name}.partial")
    with unfinished.open("wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
