"""Check the lower bounds of pyproject.toml: ``make oldest``, or ``python tools/oldest.py``.

Creates an environment, `.venv-oldest`, with the oldest version of each dependency that its bound allows and pip offers,
runs `check_oldest.py` in it, and writes results/oldest.json. The default wheel of that PyTorch needs
several gigabytes of GPU libraries.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv-oldest"
PYTHON = VENV / "bin" / "python"
EXTRAS = ("digits", "report", "sklearn", "hungarian", "metrics")
"""Extras that the checks use."""


def main() -> int:
    """Install, check, and write the record; return 0 if all checks pass."""
    claimed = lower_bounds(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"], EXTRAS)
    call(sys.executable, "-m", "venv", "--clear", VENV)
    used = {name: oldest(lower, offered(name)) for name, lower in claimed.items()}
    for name, lower in claimed.items():
        if release(used[name]) != release(lower):
            print(f"{name} {lower} is not available here: using {used[name]}")
    call(PYTHON, "-m", "pip", "install", "--quiet", *(f"{name}=={version}" for name, version in used.items()))
    call(PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT)
    ran = subprocess.run([PYTHON, ROOT / "tools" / "check_oldest.py"], cwd=VENV, stdout=subprocess.PIPE, text=True)
    checked: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    record = {"outcome": checked.pop("outcome"), "claimed": claimed, "installed": used, **checked}
    (ROOT / "results" / "oldest.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, result in record["checks"].items():
        print(f"{name}: {result}")
    return 0 if record["outcome"] == "passed" else 1


def lower_bounds(project: dict[str, Any], extras: tuple[str, ...]) -> dict[str, str]:
    """Return the lower bound of each dependency, including those of some extras.

    Example:
        >>> lower_bounds({"dependencies": ["torch>=2.7", "rich>=14,<15"], "optional-dependencies": {}}, ())
        {'torch': '2.7', 'rich': '14'}
    """
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    found = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)(,<[\d.]+)?", line)
        if match is None:
            raise ValueError(f"{line!r} in pyproject.toml has no lower bound: write it as name>=version")
        found[match[1]] = match[2]
    return found


def release(version: str) -> tuple[int, ...]:
    """Parse a version to numbers without trailing zeros: 2.7 and 2.7.0 are equal.

    Example:
        >>> release("2.7.0") == release("2.7") < release("2.10")
        True
    """
    numbers = [*map(int, version.split("."))]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def oldest(lower: str, versions: list[str]) -> str:
    """Return the oldest version that a lower bound allows.

    Example:
        >>> oldest("1.11", ["1.12.0", "1.11.2", "1.11.1", "1.10.0"])
        '1.11.1'
    """
    fitting = [version for version in versions if release(version) >= release(lower)]
    if not fitting:
        raise ValueError(f"pip offers no version {lower} or later, only {', '.join(versions) or 'none'}")
    return min(fitting, key=release)


def offered(name: str) -> list[str]:
    """Return the versions of a package that pip offers here: final releases that were not yanked."""
    command = [PYTHON, "-m", "pip", "index", "versions", name]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = re.findall(r"^Available versions: (.*)$", output, flags=re.MULTILINE)
    return [version for version in line.split(", ") if re.fullmatch(r"[\d.]+", version)]


def call(*command: object) -> None:
    """Run a command; raise if it fails."""
    subprocess.run([*map(str, command)], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
