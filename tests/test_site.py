"""The documentation builds without a warning, and the site is complete and self-contained."""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import torchmultiset

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="the documentation needs mkdocs: pip install 'torchmultiset[docs]'")
ROOT = Path(__file__).parent.parent
# Modules without an underscore that are not in the reference, and the reason.
LEFT_OUT = {
    "cli": "the command, whose reference is `multiset --help`",
    "page": "the implementation of `multiset demo`",
    "viz.card": "the README of a model, which `pipeline.run.train_run` writes",
    "viz.stages": "the output of `multiset data build coco-easy`",
    "viz.terminal": "the layout of tables in a terminal",
    "model.serialization": "the files that `Predictor.save` writes",
}


def public_modules():
    """The package and its modules, without private modules and those that are left out."""
    names = [module.name for module in walk_packages(torchmultiset.__path__, "torchmultiset.")]
    private = [name for name in names if "._" in name]
    internal = tuple(f"torchmultiset.{name}." for name in LEFT_OUT)
    assert all(any(f"{name}.".startswith(prefix) for name in names) for prefix in internal)
    chosen = [name for name in names if name not in private and not f"{name}.".startswith(internal)]
    return [import_module(name) for name in ["torchmultiset", *chosen]]


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


def test_every_public_name_is_in_the_reference_once(site):
    pages = [path.read_text() for path in (site / "api").rglob("*.html")]
    entries = Counter(name for page in pages for name in re.findall(r'id="(torchmultiset[\w.]*)"', page))
    paths = defaultdict(list)  # of each object: a package exports objects that its modules define
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not isinstance(value, str | int | float):  # names of files, and numbers, need no entry
                paths[name, id(value)].append(f"{module.__name__}.{name}")
    assert len(paths) > 250
    assert not any("<blockquote>" in page for page in pages)  # an example that was rendered as a quotation
    wrong = [same for same in paths.values() if sum(entries[path] for path in same) != 1]
    assert wrong == []


def test_linked_files_outside_the_docs_are_part_of_the_site(site):
    page = (site / "performance" / "index.html").read_text()
    (record,) = set(re.findall(r'href="([^"]*bench\.json[^"]*)"', page))
    assert (site / "performance" / record).resolve().read_bytes() == (ROOT / "results/bench/bench.json").read_bytes()


def test_the_page_of_results_links_to_its_records(site):
    text = (site / "results" / "small" / "index.html").read_text()
    records = set(re.findall(r'href="([^"#]*record\.json[^"]*)"', text))
    assert len(records) > 100
    assert all((site / "results" / "small" / record).is_file() for record in records)
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(re.findall(r'id="([^"]+)"', text))


def test_pages_load_nothing_from_other_sites(site):
    for path in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?://[^"]+)"', path.read_text())
        assert not fetched, path


def test_options_do_not_break_at_their_hyphens(site):
    page = (site / "troubleshooting" / "index.html").read_text()
    assert '<code><span class="word">--minutes</span> <span class="word">2</span></code>' in page
    assert not re.search(r'<pre>.*?class="word".*?</pre>', page)
    assert ".word { white-space: nowrap" in (site / "site.css").read_text()
