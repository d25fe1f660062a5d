"""Environments with a selection of the installed packages and their dependencies, as symbolic links."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def with_dependencies(requirements: Iterable[Requirement]) -> set[str]:
    """Names of these packages and of all their dependencies, direct and indirect."""
    found: dict[str, set[str]] = {}
    todo = [*requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if extras <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | extras
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:  # for another system, or another version of Python
            continue
        todo += wanted(lines, extras)
    return {*found}


def wanted(lines: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    """Requirements of a package that apply to this environment and these extras; "" stands for none."""
    requirements = [*map(Requirement, lines)]
    return [r for r in requirements if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]


def link(packages: Path, names: Iterable[str]) -> None:
    """Create a folder with links to these packages and no others."""
    packages.mkdir()
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(sysconfig.get_path("purelib"), top))
