"""The report of the experiments in a real browser, on a desk and on a phone: from made-up records, and ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import about, place, write_record
from real_browser import chromium, needs_chromium, watch

from torchmultiset.report.publish import publish
from torchmultiset.report.results import read_runs
from torchmultiset.report.summary import summarise

pytestmark = needs_chromium

OURS = Path(__file__).parents[2] / "docs" / "results" / "small.html"
SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
LONG = "x" * 150  # a word that fits no phone


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two data sets, two seeds, a method that is missing, and words that are too long wherever one can put them."""
    root = tmp_path_factory.mktemp("report")
    results, paper = root / "results" / "smoke", {"em": 0.5, "f1": 0.7}
    declared, right = [], [True] * 6 + [False] * 2
    for at, (data_set, column) in enumerate({"some": "some data", "other": LONG}.items()):
        for row, method in enumerate(("multi", "rl", "missing")):
            title = f"L_{method}, with everything that was thought of"
            tables = place("table-3", title, (row, at), paper, column=column)
            for seed in range(2):
                cell = f"{data_set}/{method}/seed-{seed}"
                declared.append(about(cell, tables))
                if method != "missing":
                    write_record(results, cell, tables, right[row:] + right[:row], command=f"multiset {LONG}")
    runs = read_runs(results, declared)
    publish(root / "docs", "smoke", runs, summarise(runs), command=f"multiset report --out {LONG}")
    return root / "docs" / "smoke.html"


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser):
    """Open a report, all its details too; until the end of the test, nothing may go wrong in it or leave it."""
    contexts, problems = [], []

    def open_page(path, screen):
        context = browser.new_context(viewport=SCREENS[screen])
        contexts.append(context)
        page = context.new_page()
        watch(page, problems, within=path.as_uri())
        page.goto(path.as_uri())
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(params=[*SCREENS])
def screen(request):
    return request.param


@pytest.fixture(params=["made-up", "ours"])
def page(request, visit, made, screen):
    return visit(made if request.param == "made-up" else OURS, screen)


def test_only_what_is_wide_scrolls_sideways(page):
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("(scrollTo(500, 0), scrollX)") == 0
    boxes = page.eval_on_selector_all(".wide", "all => all.map(one => [one.clientWidth, one.scrollWidth])")
    assert max(shown for shown, _ in boxes) < width
    assert any(inside > shown for shown, inside in boxes)


def test_however_far_a_table_is_scrolled_its_first_column_stays(visit, made):
    page = visit(made, "phone")
    moved = page.eval_on_selector_all(
        "table.results",
        """tables => tables.flatMap(table => {
            const box = table.parentElement;
            box.scrollLeft = box.scrollWidth;
            const left = box.getBoundingClientRect().left;
            return [...table.rows].map(row => row.cells[0].getBoundingClientRect().left - left);
        })""",
    )
    assert len(moved) > 10
    assert moved == pytest.approx([0] * len(moved), abs=1)


def test_all_figures_are_seen(page):
    widths = page.evaluate(
        """() => Promise.all([...document.images].map(
            image => image.decode().then(() => image.naturalWidth, () => 0)
        ))"""
    )
    assert len(widths) >= 4
    assert min(widths) > 0


def test_each_link_within_the_page_arrives(page):
    links = page.eval_on_selector_all("a[href^='#']", "all => all.map(one => one.getAttribute('href'))")
    assert len({*links}) >= 5
    there = page.eval_on_selector_all("[id]", "all => all.map(one => '#' + one.id)")
    assert {*links} <= {*there}
    page.click("nav a[href='#runs']")
    assert page.evaluate("document.getElementById('runs').getBoundingClientRect().top < innerHeight")
