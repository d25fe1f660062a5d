"""Version, changelog and citation agree, and `tools/check_dist.py` reports problems of a distribution."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchmultiset
from tools.check_dist import problems

ROOT = Path(__file__).parent.parent


def test_changelog_and_citation_have_the_version_of_the_package():
    releases = re.findall(r"^## \[(\d[\d.]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    version, date = releases[0]
    assert version == torchmultiset.__version__
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [version]
    assert re.findall(r"^date-released: (.*)$", citation, flags=re.MULTILINE) == [date]


@pytest.mark.slow
def test_problems_of_a_distribution_are_reported(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    assert problems(tmp_path, torchmultiset.__version__) == []
    assert problems(tmp_path, "9.9") == ["the distribution does not have version 9.9"]
    (wheel,) = tmp_path.glob("*.whl")
    shutil.copy(wheel, tmp_path / "another.whl")
    assert problems(tmp_path, torchmultiset.__version__) == [
        f"{tmp_path} must have one wheel and one sdist, but has 2 and 1"
    ]
