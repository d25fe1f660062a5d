"""Reader for the part of YAML that YOLO's data.yaml uses: class names, and the folder of each split."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torchmultiset.data._parse import show
from torchmultiset.data.importers._annotations import SPLIT_NAMES, AnnotationProblems

__all__ = ["DataYaml", "read_data_yaml"]


@dataclass(frozen=True)
class DataYaml:
    """The relevant content of a data.yaml."""

    names: tuple[str, ...] = ()
    """Class names by number."""
    root: str = ""
    """Value of ``path``: the folders of the splits are relative to it."""
    splits: tuple[tuple[str, int, str], ...] = ()
    """Split, line number, and folder or list of images."""


def read_data_yaml(path: Path, problems: AnnotationProblems) -> DataYaml:
    """Read names and splits; other keys are ignored.

    Names may be ``[cat, dog]``, a list with a line ``- cat`` for each, or lines ``0: cat``.
    """
    values = _top_level(path)
    names: tuple[str, ...] = ()
    if "names" in values:
        line, items = values["names"]
        try:
            names = _names(items)
        except ValueError as error:
            problems.add(path, line, error)
    splits = [(split, *values[key]) for key, split in SPLIT_NAMES.items() if key in values]
    folders = tuple((split, line, _scalar(item)) for split, line, items in splits for item in _list(items) if item)
    root = _scalar(" ".join(values["path"][1])) if "path" in values else ""
    return DataYaml(names, root, folders)


def _top_level(path: Path) -> dict[str, tuple[int, list[str]]]:
    """Return, for each key without indentation, its line number and its value: the rest of the line and the block."""
    values: dict[str, tuple[int, list[str]]] = {}
    current: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        key = re.match(r"([A-Za-z_]\w*)\s*:(?:\s+(.*))?$", line)
        if key:
            current = [key[2]] if key[2] else []
            values[key[1]] = number, current
        elif line.strip():
            current.append(line.strip())
    return values


def _names(items: list[str]) -> tuple[str, ...]:
    entries = _list(items)
    numbered = [re.match(r"(\d+)\s*:\s*(.+)$", entry) for entry in entries]
    if entries and all(numbered):
        by_number = {int(match[1]): _scalar(match[2]) for match in numbered if match}
        if sorted(by_number) != list(range(len(entries))):
            raise ValueError(
                f"the numbers of 'names' must be 0 to {len(entries) - 1}, each once, but are {list(by_number)}"
            )
        return tuple(by_number[number] for number in range(len(entries)))
    names = tuple(map(_scalar, entries))
    if not names or not all(names) or any(name[0] in "{&*!|>" for name in names):
        raise ValueError(f"'names' must be a list such as [cat, dog], but is {show(' '.join(items))}")
    return names


def _list(items: list[str]) -> list[str]:
    """Return the entries of ``[a, b]`` or ``{0: a}`` (on one or several lines), of a block, or a single value."""
    text = " ".join(items)
    if text.startswith(("[", "{")) and text.endswith(("]", "}")):
        entries = re.findall(r"""((?:"[^"]*"|'[^']*'|[^,"'])+)""", text[1:-1])
        return [entry.strip() for entry in entries if entry.strip()]
    return [item.removeprefix("- ").strip() for item in items]


def _scalar(text: str) -> str:
    """Return a value without quotes."""
    text = text.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text
