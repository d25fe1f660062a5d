"""The commands in docs/data.md print the output shown there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from command_line import runner
from PIL import Image

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def sessions() -> list[tuple[list[str], list[str]]]:
    """Commands of the page, with the output lines below them."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = [
        part.splitlines() for block in blocks for part in re.split(r"^\$ multiset ", block, flags=re.MULTILINE)[1:]
    ]
    return [(shlex.split(command), lines) for command, *lines in found]


def test_the_commands_print_the_output_on_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = runner(capsys, monkeypatch)
    (table,) = re.findall(r"`flowers\.csv`:\n\n```csv\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "flowers.csv").write_text(table)
    coco = os.environ.get("TORCHMULTISET_COCO")
    if coco:
        (tmp_path / "coco").symlink_to(coco)
    shown = [session for session in sessions() if coco or not any("coco/" in token for token in session[0])]
    assert len(shown) >= 7
    for command, expected in shown:
        _, out, err = run(*command)
        assert [*out, *err.splitlines()] == expected
    with (
        Image.open(tmp_path / "mnist-multi.png") as made,
        Image.open(PAGE.parent / "images" / "mnist-multi.png") as kept,
    ):
        assert made.size == kept.size
