"""What `make` and CI run: the demo's commands, and tests that may be skipped on somebody's desk but not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchmultiset.presets import values_of

ROOT = Path(__file__).parent.parent


def browser_tests(folder: Path, *, ci: str) -> tuple[int, str]:
    """Run one of them where the only programs are those of a folder; exit code and what pytest says."""
    environment = os.environ | {"PATH": str(folder), "PYTHONPATH": str(folder), "CI": ci}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "--maxfail", "1"]
    ran = subprocess.run(
        [*command, "tests/page/test_page_browser.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("missing", ["the Debian package chromium", "the Python package playwright"])
def test_in_ci_the_page_is_looked_at_in_a_browser_or_the_tests_fail(tmp_path, missing):
    if "playwright" in missing:
        (tmp_path / "playwright.py").write_text("raise ModuleNotFoundError(name='playwright')")
    code, said = browser_tests(tmp_path, ci="true")
    assert code != 0
    assert "is not to be skipped where CI=true" in said
    assert missing in said


def test_elsewhere_they_are_skipped_and_say_why(tmp_path):
    code, said = browser_tests(tmp_path, ci="")
    assert (code, "FAILED" in said, "ERROR" in said) == (0, False, False)
    assert "needs a browser: the Debian package chromium" in said


def test_the_demo_learns_with_the_multiset_loss_and_shows_a_count_head_beside_it():
    said = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line.split("/multiset ")[1].split() for line in said.splitlines() if "/multiset " in line]
    first, beside, compared = commands
    assert first[:3] == beside[:3] == ["train", "--preset", "demo"]
    assert values_of("demo", "fast")["objective"] == "multi"
    assert "--objective" not in first
    assert beside[beside.index("--objective") + 1] == "counts"
    folders = [command[command.index("--out") + 1] for command in (first, beside)]
    assert compared == ["compare", "data/demo", *folders]
