"""The documentation's links, names, numbers and tables agree with the repository."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import own_data, photographs
from benchmarks.document import PAGE, TABLES, document
from tools.quote_results import PAGES as QUOTING
from tools.quote_results import quoted
from tools.registry_tables import PAGES as LISTING
from tools.registry_tables import filled
from torchmultiset.model.registry import BACKBONES, OBJECTIVES

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def links(page):
    """Targets of all links of a page, inline and by reference."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^\[[^\]]+\]: (\S+)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_linked_file_exists(page):
    targets = [link.split("#")[0] for link in links(page) if not link.startswith(("http", "#"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_name_in_the_paper_map_occurs_in_the_file_it_links_to():
    page = ROOT / "docs" / "paper-map.md"
    text = page.read_text()
    files = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, flags=re.MULTILINE))
    named = re.findall(r"\[`([A-Za-z_]\w+)`\]\[([^\]]+)\]", text)
    assert len(named) > 200

    def missing(name, reference):
        target = page.parent / files[reference]
        sources = target.glob("*.py") if target.is_dir() else [target]
        return not any(re.search(rf"\b{name}\b", source.read_text()) for source in sources)

    assert [pair for pair in named if missing(*pair)] == []


def numbers(record):
    """All numbers of a record."""
    if isinstance(record, dict):
        record = list(record.values())
    if isinstance(record, list):
        return [number for part in record for number in numbers(part)]
    return [record] if isinstance(record, (int, float)) else []


@pytest.mark.parametrize(
    ("page", "least"),
    [("docs/results.md", 50), ("docs/which-loss.md", 12), ("docs/tour.md", 4), ("README.md", 5)],
)
def test_numbers_that_link_to_a_record_occur_in_it(page, least):
    page = ROOT / page
    text = re.sub(r"<!-- quote.*?<!-- /quote -->", "", page.read_text(), flags=re.DOTALL)  # tested below
    found = re.findall(r"\[([^\]]*\d\.\d+[^\]]*)\]\(([^)]+)\)", text)
    assert len(found) >= least
    results = (ROOT / "docs" / "results" / "small.md").read_text()
    for text, target in found:
        path, _, anchor = target.partition("#")
        if anchor:
            assert f"[{text}](#{anchor})" in results
            continue
        if f"[{text}](../{path})" in results:  # a score of a subset, computed by the report
            continue
        content = (page.parent / path).read_text()
        parts = content.splitlines() if path.endswith(".jsonl") else [content]
        values = [number for part in parts for number in numbers(json.loads(part))]
        for number in re.findall(r"\d\.\d+", text):
            decimals = len(number.partition(".")[2])
            assert number in {f"{value:.{decimals}f}" for value in values}, (text, target)


def test_the_tables_of_speeds_match_their_record():
    record = json.loads(Path("results/bench/bench.json").read_text())
    assert set(record) >= set(TABLES)
    assert document(record, PAGE.read_text()) == PAGE.read_text()
    with pytest.raises(ValueError, match="no <!-- training --> and <!-- /training -->"):
        document(record, "a page without tables")


def test_the_table_of_photographs_matches_its_record():
    record, page = json.loads(photographs.RECORD.read_text()), photographs.PAGE.read_text()
    assert photographs.document(record, page) == page
    assert record["means"] == photographs.means([run for run in record["runs"] if not run["flags"]])


def test_the_table_of_own_data_matches_its_record():
    record, page = json.loads(own_data.RECORD.read_text()), own_data.PAGE.read_text()
    assert own_data.document(record, page) == page
    assert {*record} >= {"trips", "easy", "medium", "dice"}


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.name)
def test_quoted_tables_match_the_results(page):
    text = page.read_text()
    assert "<!-- quote" in text
    assert quoted(text, page.parent) == text
    with pytest.raises(ValueError, match=r"full\.md has no table 'Nonsense'"):
        quoted("<!-- quote full: Nonsense -->\n<!-- /quote -->", page.parent)


def rows(page, heading):
    """Cells of the rows of a table, which is identified by the first cell of its heading."""
    text = (ROOT / "docs" / page).read_text()
    table = text[text.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("page", LISTING, ids=lambda page: page.name)
def test_rows_about_the_registry_are_up_to_date(page):
    text = page.read_text()
    assert "<!-- registry" in text
    written = [line for line in text.splitlines() if line not in filled(text).splitlines()]
    assert written == [], "run python tools/registry_tables.py"


def test_objectives_and_backbones_on_pages_are_registered():
    named = [name for row in rows("which-loss.md", "`--objective`") for name in re.findall("`(.*?)`", row[0])]
    assert len({*named}) == len(named) > 10
    assert {*named} <= {*OBJECTIVES}
    (paragraph,) = re.findall("^(`--backbone` .*?)\n\n", (ROOT / "docs/training.md").read_text(), re.M | re.S)
    assert {*re.findall("`(.*?)`", paragraph)} == {"--backbone", *BACKBONES}
