"""The documentation builds without a warning, and the site is whole by itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the documentation needs mkdocs: pip install 'torchmultiset[docs]'")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "", "")
    return folder


def test_every_public_loss_is_in_the_reference_with_its_formula(site):
    from torchmultiset import losses

    page = (site / "api" / "losses" / "index.html").read_text()
    for name in losses.__all__:
        assert f'id="torchmultiset.losses.{name}"' in page
    assert page.count("<math") >= 10
    assert "arithmatex" not in page
    prose = re.sub(r'<details class="mkdocstrings-source">.*?</details>', "", page, flags=re.DOTALL)
    assert ":math:" not in prose
    assert ".. math" not in prose


def test_what_pages_link_to_outside_of_the_docs_is_part_of_the_site(site):
    page = (site / "performance" / "index.html").read_text()
    (record,) = set(re.findall(r'href="([^"]*bench\.json[^"]*)"', page))
    assert (site / "performance" / record).resolve().read_bytes() == (ROOT / "results/bench/bench.json").read_bytes()


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?://[^"]+)"', path.read_text())
        assert not fetched, path
