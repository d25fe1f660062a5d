"""Check what ``python -m build`` wrote: ``python tools/check_dist.py dist``."""

from __future__ import annotations

import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "torchmultiset"
LARGEST = 5_000_000
"""Maximum size of a wheel, in bytes."""


def problems(folder: Path, version: str) -> list[str]:
    """Return the problems of the distribution in a folder.

    Args:
        folder: Folder with one wheel and one sdist.
        version: Expected version.
    """
    wheels, archives = [*folder.glob("*.whl")], [*folder.glob("*.tar.gz")]
    if len(wheels) != 1 or len(archives) != 1:
        return [f"{folder} must have one wheel and one sdist, but has {len(wheels)} and {len(archives)}"]
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        about = Parser().parsestr(wheel.read(_only(names, ".dist-info/METADATA")).decode())
        scripts = wheel.read(_only(names, ".dist-info/entry_points.txt")).decode()
    with tarfile.open(archives[0]) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {
        f"version {version}": about["Version"] == version,
        "licence Apache-2.0": about["License-Expression"] == "Apache-2.0",
        "the Python versions of pyproject.toml": about["Requires-Python"] == project["requires-python"],
        "the description of pyproject.toml": about["Summary"] == project["description"],
        "the extras of pyproject.toml": {*about.get_all("Provides-Extra", [])} == {*project["optional-dependencies"]},
        "the README as Markdown": about["Description-Content-Type"] == "text/markdown" and _readme(about),
        "the command multiset": "multiset = torchmultiset.cli:main" in scripts,
        "type information (py.typed)": "torchmultiset/py.typed" in names,
        f"at most {LARGEST:,} bytes": wheels[0].stat().st_size <= LARGEST,
        "torchmultiset and nothing else in the wheel": {name.partition("-")[0] for name in _tops({*names})} == {NAME},
        "tests, documentation and changelog in the sdist": {"tests", "docs", "CHANGELOG.md"} <= _tops(sources),
        "an sdist without results": "results" not in _tops(sources),
    }
    return [f"the distribution does not have {what}" for what, there in expected.items() if not there]


def _only(names: list[str], end: str) -> str:
    (found,) = [name for name in names if name.endswith(end)]
    return found


def _tops(names: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def _readme(about: Message) -> bool:
    text = str(about.get_payload()) or str(about["Description"])
    return text.strip() == (ROOT / "README.md").read_text().strip()


def main() -> None:
    """Print the problems, and exit with 1 if there are any."""
    sys.path.insert(0, str(ROOT / "src"))
    from torchmultiset import __version__

    found = problems(Path(sys.argv[1]), __version__)
    print("\n".join(found) or f"{sys.argv[1]} has torchmultiset {__version__}; its metadata is correct.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
