"""The length, citation and picture of the README; tests/test_wheel.py runs its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import torchmultiset

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_has_at_most_120_lines():
    assert len(README.splitlines()) <= 120


def test_the_bibtex_entry_of_the_readme_agrees_with_the_citation():
    (entry,) = re.findall(r"@software\{.*?\n\}", README, flags=re.DOTALL)
    assert f"version = {{{torchmultiset.__version__}}}" in entry
    assert re.search(r'^title: "(.*)"$', (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)[1] in entry


def test_the_picture_can_be_drawn_with_its_stored_size(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra 'report' brings matplotlib")
    from tools.draw_readme import draw

    answer = {"labels": {"red circle": 2, "blue square": 1}, "confidence": 0.9, "right": True}
    row = {"labels": {"tent": 1}, "confidence": 0.5, "right": False}
    draw(Image.new("RGB", (96, 96)), answer, {"people": "2", "nights": "1"}, row, tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as made, Image.open(ROOT / "docs" / "images" / "readme.png") as kept:
        assert made.size == kept.size
