"""`python -m paper report`."""

from __future__ import annotations

import sys

import pytest
from command_line import cells, runner
from made_records import place, write_record

from paper.__main__ import app
from paper.cells import all_cells, describe, find
from torchmultiset._install import pip_install

pytestmark = pytest.mark.slow

MULTI = "mnist-multi-4/multi/seed-0"


def record(folder, cell, right, scale="smoke"):
    """Write a record of a declared cell."""
    tables = describe(find(scale, cell))["tables"]
    return write_record(folder / "results" / scale, cell, tables, right, scale=scale)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch, app)


def test_the_report_prints_tables_and_writes_pages(run, tmp_path):
    record(tmp_path, MULTI, [True] * 30 + [False] * 10)
    record(tmp_path, "mnist-multi-4/rl/seed-0", [True] * 10 + [False] * 30)
    code, lines, err = run("report", "--scale", "smoke")
    assert (code, err) == (0, "")
    start = next(i for i, line in enumerate(lines) if line == "Table 3, losses: MNIST Multi (4), test data")
    block = lines[start : next(i for i, line in enumerate(lines) if i > start and line.startswith("Table 3"))]
    assert max(map(len, block)) <= 80
    section = block[: block.index("F1 per example")]
    assert cells(section, "L_multi") == ["0.750", "0.598-0.858", "0.950", "-0.200"]  # Wilson's interval, for 30 of 40
    assert cells(section, "L_RL") == ["0.250", "0.142-0.402", "0.912", "-0.662"]
    assert cells(section, "L_seq") == ["missing", "0.906", "-"]
    assert " ".join(block).count("L_multi is first among the rows that have results; missing: L_dm^1, L_dm^KL,") == 1
    out = tmp_path / "docs" / "results"
    assert (out / "smoke.md").is_file()
    assert (out / "smoke" / "curves-mnist-multi-4.png").is_file()
    number = len(all_cells("smoke"))
    assert lines[-1] == f"2 of {number} runs are done. Wrote docs/results/smoke.md with 4 figures."


def test_the_default_is_the_small_scale(run, tmp_path):
    record(tmp_path, MULTI, [True, False], scale="small")
    code, _, _ = run("report", "--out", "elsewhere")
    assert code == 0
    assert (tmp_path / "elsewhere" / "small.md").is_file()
    assert not (tmp_path / "docs").exists()


def test_undeclared_records_are_shown(run, tmp_path):
    tables = place("table-9", "mine", (0, 0), None, column="my data")
    write_record(tmp_path / "results" / "smoke", "my-data/mine/seed-0", tables, [True, False])
    code, lines, _ = run("report", "--scale", "smoke")
    assert code == 0
    assert "table-9: my data, test data" in lines


def test_without_records_the_message_has_the_next_command(run, tmp_path):
    code, out, err = run("report", "--scale", "smoke", "--results", "nowhere")
    assert (code, out) == (1, [])
    assert err.startswith(
        "python -m paper: there are no records in nowhere/smoke: run `python -m paper run all --scale smoke`"
    )
    assert [*tmp_path.iterdir()] == []


def test_a_damaged_record_is_reported_with_its_file_and_nothing_is_written(run, tmp_path):
    record(tmp_path, MULTI, [True]).with_name("epochs.jsonl").write_text("{")
    code, _, err = run("report", "--scale", "smoke")
    assert code == 1
    assert f"{MULTI}/epochs.jsonl is damaged" in err
    assert "Traceback" not in err
    assert not (tmp_path / "docs").exists()


def test_without_matplotlib_tables_and_a_hint_are_printed(run, tmp_path, monkeypatch):
    record(tmp_path, MULTI, [True])
    for name in [name for name in sys.modules if name.startswith(("paper.", "torchmultiset.viz", "matplotlib"))]:
        if name.endswith((".gallery", ".figures", ".preview")) or name.startswith("matplotlib"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, lines, err = run("report", "--scale", "smoke")
    assert code == 1
    assert "Table 3, losses: MNIST Multi (4), test data" in lines
    assert err == f"python -m paper: Figures need matplotlib, which is not installed: {pip_install('report')}\n"


def test_an_unknown_scale_is_refused(run):
    code, _, err = run("report", "--scale", "tiny")
    assert code == 2
    assert "tiny" in err
