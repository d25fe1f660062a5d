"""The pip command that installs an extra of this package."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

__all__ = ["pip_install"]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra: from the clone, if the package was installed from one.

    Example:
        >>> pip_install("page")
        'pip install ...[page]"'
    """
    editable, folder = _clone()
    if folder is None:
        return f'pip install "torchmultiset[{extra}]"'
    here = "." if folder == Path.cwd() else str(folder)
    return f'pip install {"-e " * editable}"{here}[{extra}]"'


def _clone() -> tuple[bool, Path | None]:
    """Return whether the package is installed in editable mode, and the folder that it was installed from, if any."""
    above = Path(__file__).resolve().parents[2]
    if (above / "pyproject.toml").is_file() and Path(__file__).parent == above / "src" / "torchmultiset":
        return True, above
    try:
        about = json.loads(distribution("torchmultiset").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return False, None
    address = urlparse(about.get("url", ""))
    folder = Path(unquote(address.path))
    return False, folder if address.scheme == "file" and folder.is_dir() else None
