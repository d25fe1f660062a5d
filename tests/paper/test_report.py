"""The Markdown page and the figures of a report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from made_records import CLASSES, place, write_record
from made_records import declared as about
from PIL import Image

from paper.figures import draw_curves, error_rates, losses_plot, plots
from paper.gallery import draw_gallery, galleries
from paper.records import read_runs
from paper.report import publish
from paper.summary import summarise
from paper.tables import TABLES
from torchmultiset.data.examples import Examples

PAPER = {"em": 0.5, "f1": 0.7}
MARKUP = '<script src="http://evil"></script>|_x_'
CORRECT = [True] * 6 + [False] * 2
COMMAND = "python -m paper report --scale smoke"
RESULTS = Path(__file__).parents[2] / "results" / "full"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on a method with two of its three seeds, a complete one, and one without runs."""
    root = tmp_path_factory.mktemp("report")
    results = root / "results of ours" / "smoke"
    multi = place("table-3", "L_multi", (0, 0), PAPER) | place("entropy", "L_multi", (0, 0), None)
    evil, gone = place("table-3", MARKUP, (1, 0), PAPER), place("table-3", "L_1-step", (2, 0), PAPER)
    for seed in (0, 1):
        write_record(results, f"d/multi/seed-{seed}", multi, CORRECT)
    write_record(results, "d/evil/seed-0", evil, CORRECT[::-1], command=f"multiset {MARKUP}")
    declared = [about(f"d/multi/seed-{seed}", multi) for seed in range(3)]
    runs = read_runs(results, [*declared, about("d/evil/seed-0", evil), about("d/one-step/seed-0", gone)])
    written = publish(root / "docs" / "out", "smoke", runs, summarise(runs), command=COMMAND)
    assert sorted(path for path in (root / "docs").rglob("*") if path.is_file()) == sorted(written)
    return root / "docs" / "out"


@pytest.fixture(scope="module")
def markdown(folder):
    return (folder / "smoke.md").read_text()


def test_the_page_has_scores_and_missing_runs(markdown):
    text = markdown.replace("\\", "")
    for words in (
        *("3 of 5 runs are done", "Our data: some-data, 8 test examples.", "Test images with predictions are left out"),
        *("L_multi (2 of 3 seeds)", "missing", "exact match", "F1 per example", "class F1"),
        "majority baseline: cat ×2",  # noqa: RUF001  (the multiplication sign is intended)
        *("--only d/multi/seed-0", "--only d/multi/seed-2", "--only d/one-step/seed-0"),
        MARKUP,
    ):
        assert words in text


def test_the_page_starts_with_findings_and_ends_with_explanations(markdown):
    parts = (
        "- **MNIST Multi (4)**, 2 epochs: at or above the paper's exact match: 2 of 2 losses. No row is first",
        "## Exact match at a glance: Losses beside the paper",
        "| MNIST Multi (4) | L\\_multi | [0.750](#d-multi) ±0.000 | 0.500 |",
        "](smoke/curves-d.png)",
        "3 of 5 runs are done, 2 are still to be run.",
        "## Table 3, losses",
        "](smoke/losses.png)",
        "## Runs",
        "## How to read these tables\n\n- ± is",
    )
    found = [markdown.index(part) for part in parts]
    assert found == sorted(found)
    assert [markdown.count(part) for part in parts] == [1] * len(parts)
    assert "## " not in markdown.split(parts[-1])[1]


def test_tables_without_a_result_are_listed(tmp_path):
    done, not_yet = (place("table-3", "L_multi", (0, i), PAPER, column=f"data {i}") for i in range(2))
    write_record(tmp_path / "smoke", "d/multi/seed-0", done, CORRECT)
    runs = read_runs(tmp_path / "smoke", [about("d/multi/seed-0", done), about("e/multi/seed-0", not_yet)])
    publish(tmp_path, "smoke", runs, summarise(runs), command=COMMAND)
    text = (tmp_path / "smoke.md").read_text()
    assert "- **data 0**, 2 epochs: L\\_multi has 0.750; the paper has 0.500.\n" in text
    assert "\n## Tables without a result\n\n- Table 3, losses: data 1, test data. Our data: none yet.\n" in text
    assert "## Table 3, losses: data 1" not in text


def test_a_chart_compares_the_losses_with_the_paper(tmp_path):
    places = {name: place("table-3", f"L_{name}", (i, 0), PAPER) for i, name in enumerate(("multi", "rl", "seq"))}
    for name in ("multi", "rl"):
        path = write_record(tmp_path, f"d/{name}/seed-0", places[name], CORRECT)
    record = json.loads(path.read_text())
    record["metrics"]["seen"] = {"overall": {"exact_match": 0.875}}
    path.write_text(json.dumps(record))
    blocks = summarise(read_runs(tmp_path, [about(f"d/{name}/seed-0", at) for name, at in places.items()]))
    (plot,) = losses_plot(blocks)
    (axes,) = plot.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["L_multi", "L_rl", "L_seq"]
    assert [bar.get_width() for bar in axes.patches] == [0.75, 0.5, 0.75, 0.5]
    assert [text.get_text() for text in axes.texts] == ["0.750", "0.500", "0.750", "0.500", "not run yet"]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0.875]]
    assert losses_plot([block for block in blocks if block.table != "table-3"]) == []


def test_cells_not_run_with_the_corrected_rule_are_marked(tmp_path):
    tables = place("table-3", "L_multi", (0, 4), PAPER, column="COCO Medium")
    (block,) = summarise(read_runs(tmp_path, [about("coco-medium/multi/seed-0", tables)]))
    assert block.data == ("Our data: not run yet with the corrected rule for images that mix common and rare classes.")


def test_means_link_to_the_list_of_their_runs(markdown):
    (row,) = re.findall(r"^\| L\\_multi.*$", markdown, flags=re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        *("[0.750](#d-multi) ±0.000", "0.500", "+0.250"),
        *("[0.750](#d-multi) ±0.000", "0.700", "+0.050"),
        *("[0.625](#d-multi) ±0.000", "0.700", "-0.075"),
    ]


def test_every_link_of_the_page_has_a_target(markdown, folder):
    links = re.findall(r"\]\(([^)\s]+)\)", markdown)
    assert len(links) > 10
    files = [unquote(link) for link in links if not link.startswith("#")]
    assert all((folder / link).is_file() for link in files)
    headings = {line.lower().replace(" ", "-") for line in re.findall(r"^## (.*)$", markdown, flags=re.MULTILINE)}
    anchors = headings | {*re.findall(r'<a id="([^"]+)">', markdown)}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors


def test_rows_of_tables_have_as_many_cells_as_their_headings(markdown):
    tables = re.findall(r"(?:^\|.*\|$\n?)+", markdown, flags=re.MULTILINE)
    assert len(tables) == 4
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_figures_of_an_earlier_report_are_removed(tmp_path):
    write_record(tmp_path / "small", "d/multi/seed-0", place("table-3", "x", (0, 0), PAPER), CORRECT)
    runs = read_runs(tmp_path / "small")
    old = tmp_path / "docs" / "small" / "curves-gone.png"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    publish(tmp_path / "docs", "small", runs, summarise(runs), command=COMMAND)
    assert not old.exists()
    assert (old.parent / "curves-d.png").exists()


def test_figures_are_drawn(folder):
    names = sorted(path.name for path in (folder / "smoke").iterdir())
    assert names == ["curves-d.png", "entropy-d.png", "errors-d.png", "losses.png", "sizes-d.png"]
    for name in names:
        with Image.open(folder / "smoke" / name) as picture:
            assert picture.format == "PNG"
            assert len({*picture.convert("L").resize((50, 50)).tobytes()}) > 5


def test_curves_are_means_over_seeds(tmp_path):
    tables = place("table-3", "L_multi", (0, 0), PAPER)
    write_record(tmp_path, "d/multi/seed-0", tables, CORRECT, epochs=(0.2, 0.4, 0.9))
    write_record(tmp_path, "d/multi/seed-1", tables, CORRECT, epochs=(0.4, 0.8))
    (line,) = draw_curves(read_runs(tmp_path)).axes[0].lines
    assert line.get_ydata().tolist() == pytest.approx([0.3, 0.6])
    assert list(line.get_xdata()) == [1, 2]


def test_tables_beyond_the_paper_have_their_own_figures(tmp_path):
    for row, method in enumerate(("multi", "rl", "counts")):
        tables = place("beyond", method, (row, 0), None)
        if method != "counts":
            tables |= place("table-3", method, (row, 0), PAPER)
        write_record(tmp_path, f"d/{method}/seed-0", tables, CORRECT, epochs=(0.2, 0.4))
    drawn = {plot.name: plot for plot in plots(read_runs(tmp_path))}
    shown = {name: [line.get_label() for line in plot.figure.axes[0].lines] for name, plot in drawn.items()}
    assert shown["curves-d"] == shown["sizes-d"] == ["multi", "rl"]
    assert shown["curves-d-beyond"] == shown["sizes-d-beyond"] == ["multi", "counts"]
    assert drawn["curves-d-beyond"].caption == "d, beyond the paper: learning curves, on validation data."


def test_each_table_of_entropies_has_its_own_figure(tmp_path):
    papers = place("entropy", "L_multi", (0, 0), None) | place("table-3", "L_multi", (0, 0), PAPER)
    write_record(tmp_path, "d/multi/seed-0", papers, CORRECT)
    for row, method in enumerate(("multi-transformer", "rl-transformer")):
        write_record(tmp_path, f"d/{method}/seed-0", place("policy", method, (row, 0), None), CORRECT)
    drawn = {plot.name: plot for plot in plots(read_runs(tmp_path)) if plot.name.startswith("entropy")}
    oracles = ["oracle, instances", "oracle, classes"]
    shown = {name: [line.get_label() for line in plot.figure.axes[0].lines] for name, plot in drawn.items()}
    assert shown == {
        "entropy-d": ["L_multi", *oracles],
        "entropy-d-policy": ["multi-transformer", "rl-transformer", *oracles],
    }
    for name in ("multi-transformer", "rl-transformer"):  # as in records made before it existed
        (tmp_path / "d" / name / "seed-0" / "entropy.json").unlink()
    assert [plot.name for plot in plots(read_runs(tmp_path)) if "entropy" in plot.name] == ["entropy-d"]
    assert drawn["entropy-d-policy"].caption.startswith("d, the paper's losses with a transformer for a policy: ")


@pytest.mark.slow
def test_a_legend_of_long_names_is_within_the_figure(tmp_path):
    for row, method in enumerate(
        ("multi", "seq-random-per-batch", "multi-transformer-faster", "a", "b" * 42, "c" * 20)
    ):
        tables = place("table-3", method, (row, 0), PAPER)
        write_record(tmp_path, f"d/{method}/seed-0", tables, CORRECT)
    figure = draw_curves(read_runs(tmp_path))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_error_rates_are_shares_of_missed_and_of_invented_labels(tmp_path):
    write_record(tmp_path, "d/multi/seed-0", place("table-3", "L_multi", (0, 0), PAPER), CORRECT)
    runs = read_runs(tmp_path)
    # Of 10 cats 6 are found, so 4 are missed; 8 are predicted, so 2 are invented.
    assert error_rates(runs, "cat") == pytest.approx((40, 20))
    assert error_rates(runs, "dog") == (100, 0)


def test_data_sets_of_one_size_have_no_figure_by_size(tmp_path):
    path = write_record(tmp_path, "d/multi/seed-0", place("table-3", "L_multi", (0, 0), PAPER), CORRECT)
    text = path.read_text()
    path.write_text(re.sub(r'"1": (\{[^{}]*\}), "2": ', '"2": ', text))
    assert [plot.name for plot in plots(read_runs(tmp_path))] == ["curves-d", "errors-d"]


# Images with predictions


def examples(counts):
    labels = [[label for label, count in enumerate(row) for _ in range(count)] for row in counts.tolist()]
    longest = max(map(len, labels))
    padded = np.array([row + [-1] * (longest - len(row)) for row in labels])
    images = np.arange(len(labels) * 36, dtype=np.uint8).reshape(-1, 1, 6, 6)
    return Examples(images, padded, tuple(CLASSES))


def test_a_gallery_shows_images_with_the_predictions_of_each_method():
    truth = np.array([[1, 1, 0], [0, 2, 0]])
    wrong = np.array([[1, 1, 0], [1, 1, 0]])
    figure = draw_gallery(examples(truth), {"multi": truth.astype(np.uint8), "rl": wrong.astype(np.uint8)})
    assert [text.get_text() for text in figure.texts] == [
        *("cat, dog", "✓ multi", "✓ rl"),
        *("dog, dog", "✓ multi", "✗ rl:", "    cat, dog"),
    ]
    assert len(figure.axes) == 2


def test_a_gallery_needs_the_tested_images(tmp_path):
    truth = np.array([[1, 1, 0], [0, 2, 0]], dtype=np.uint8)
    write_record(tmp_path, "d/multi/seed-0", place("table-3", "L_multi", (0, 0), PAPER), [True, False], true=truth)
    write_record(tmp_path, "d/multi-js/seed-0", place("variations", "JS", (0, 0), None), [True, True], true=truth)
    runs = read_runs(tmp_path)
    (plot,) = galleries(runs, {"d": examples(truth), "other": examples(truth)})
    assert plot.name == "examples-d"
    buffer = io.BytesIO()
    plot.figure.savefig(buffer, format="png")
    assert not [text for text in plot.figure.texts if "multi-js" in text.get_text()]
    assert galleries(runs, {"d": examples(truth[::-1])}) == []


def test_the_page_compares_trained_losses_with_the_paper():
    text = (Path(__file__).parents[2] / "docs" / "results" / "full.md").read_text()
    (_, table) = text.split("## Exact match at a glance: Losses beside the paper\n\n")
    rows = [line.split(" | ") for line in table.split("\n\n")[0].splitlines()[2:]]
    printed = {"mnist-multi-4/multi": "0.950 |", "mnist-multi-4/rl": "0.912 |", "mnist-multi-10/multi": "0.920 |"}
    found = {re.search(r"results/full/(\S+?)/seed", row[2])[1]: row for row in rows}
    for cell, paper in printed.items():
        record = json.loads((RESULTS / cell / "seed-0" / "record.json").read_text())
        for column, split in ((2, "test"), (3, "seen")):
            assert found[cell][column].startswith(f"[{record['metrics'][split]['overall']['exact_match']:.3f}](")
        assert found[cell][4] == paper


def test_the_short_table_has_a_row_for_each_loss_with_the_number_of_the_paper():
    text = (Path(__file__).parents[2] / "docs" / "results" / "full.md").read_text()
    (_, table) = text.split("## Exact match at a glance: Losses in short\n\n")
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines()]
    assert head[:4] == ["loss", "MNIST Multi (4)", "MNIST Multi (1-4)", "MNIST Multi (10)"]
    assert len({row[0] for row in rows}) == len(rows) == 6
    (multi,) = (row for row in rows if row[0] == r"L\_multi")
    for cell, data, paper in zip(multi[1:], ("4", "1-4", "10"), ("0.950", "0.953", "0.920"), strict=False):
        record = json.loads((RESULTS / f"mnist-multi-{data}" / "multi" / "seed-0" / "record.json").read_text())
        assert cell.startswith(f"[{record['metrics']['test']['overall']['exact_match']:.3f}](")
        assert cell.endswith(f" ({paper})")


def test_figures_have_at_most_seven_lines_with_distinct_names_and_colours(tmp_path):
    methods = [*TABLES["table-1"].rows, *TABLES["table-3"].rows, "multi-transformer", "multi-oracle"]
    for row, method in enumerate(dict.fromkeys(methods)):
        table = "table-3" if method in TABLES["table-3"].rows else "table-1"
        write_record(tmp_path, f"d/{method}/seed-0", place(table, f"name of {method}", (row, 0), PAPER), CORRECT)
    for part in range(9):
        write_record(tmp_path, f"d/b{part}/seed-0", place("beyond", "the same", (part, 0), None), CORRECT)
    drawn = [plot for plot in plots(read_runs(tmp_path)) if plot.name.startswith("curves")]
    assert len(drawn) >= 4
    all_labels = set()
    for plot in drawn:
        lines = plot.figure.axes[0].lines
        assert 1 <= len(lines) <= 7
        assert len({line.get_color() for line in lines}) == len(lines)
        labels = [line.get_label() for line in lines]
        assert len({*labels}) == len(labels)
        all_labels |= {*labels}
        assert plot.figure.get_suptitle().startswith("d")
        assert "0 to 1" in plot.figure.axes[0].get_ylabel()
    assert {"name of multi", "name of one-step", "the same (b0)", "the same (b8)"} <= all_labels
