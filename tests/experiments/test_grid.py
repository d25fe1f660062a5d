from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from torchmultiset.experiments import grid
from torchmultiset.experiments.cells import all_cells, find
from torchmultiset.experiments.grid import failures_in_words, forget, look, refuse_changed, run_grid
from torchmultiset.experiments.work import Folders
from torchmultiset.experiments.worker import CellError
from torchmultiset.pipeline.config import to_dict
from torchmultiset.pipeline.record import write_config

CELL = find("smoke", "mnist-multi-4/multi/seed-0")
OTHER = find("smoke", "mnist-multi-4/rl/seed-0")


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "results", tmp_path / "runs", tmp_path / "data")


def finish(cell, folders, **other):
    """As if it had been run; what the data settles is settled."""
    settled = {"encoder": "conv", "policy": "conv-lstm", "stop": "fixed", "max_size": 4, "data": "mnist-multi-4"}
    config = to_dict(cell.config()) | settled | other
    folder = folders.result(cell)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"config": config}))


def begin(cell, folders, *, epochs=2):
    folder = folders.run(cell)
    folder.mkdir(parents=True)
    write_config(folder, cell.config())
    (folder / "epochs.jsonl").write_text("{}\n" * epochs)
    (folder / "checkpoint.pt").write_bytes(b"")


def edit_config(cell, folders, before, after):
    path = folders.run(cell) / "config.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_how_far_a_cell_is(folders):
    assert look(CELL, folders) == (False, 0, [])
    begin(CELL, folders)
    assert look(CELL, folders) == (False, 2, [])
    finish(CELL, folders)
    assert look(CELL, folders) == (True, 3, [])
    refuse_changed([CELL, OTHER], folders)
    (folders.result(CELL) / "model").mkdir()  # with which more can be measured
    assert look(CELL, folders) == (False, 3, [])
    (folders.result(CELL) / "worth.json").write_text("{}")
    assert look(CELL, folders) == (True, 3, [])


def test_a_changed_config_is_refused_with_what_differs(folders):
    finish(CELL, folders, epochs=5, channels=[10, 10, 64])
    begin(OTHER, folders)
    edit_config(OTHER, folders, "hidden = 16", "hidden = 48")
    with pytest.raises(ValueError, match="another config") as error:
        refuse_changed([CELL, OTHER, find("smoke", "mnist-multi-4/seq/seed-0")], folders)
    assert error.value.args[0].splitlines()[1:3] == [
        "  mnist-multi-4/multi/seed-0: channels was 10 10 64 and is now 10 10 32; epochs was 5 and is now 3",
        "  mnist-multi-4/rl/seed-0: hidden was 48 and is now 16",
    ]
    assert "--again" in error.value.args[0]


def test_a_run_that_learned_nothing_yet_is_in_nobodys_way(folders):
    begin(CELL, folders)
    (folders.run(CELL) / "checkpoint.pt").unlink()
    edit_config(CELL, folders, "hidden = 16", "hidden = 48")
    refuse_changed([CELL], folders)


def test_where_the_data_lies_and_what_it_settles_is_no_difference(folders):
    finish(CELL, folders, data="elsewhere", mnist="download", max_size=7, stop="policy")
    assert look(CELL, folders).differs == []


def test_a_field_that_is_newer_than_the_record_had_its_default(folders):
    finish(CELL, folders)
    path = folders.result(CELL) / "record.json"
    told = json.loads(path.read_text())
    del told["config"]["value_weight"]
    path.write_text(json.dumps(told))
    assert look(CELL, folders).differs == []


def test_a_damaged_record_is_named(folders):
    finish(CELL, folders)
    (folders.result(CELL) / "record.json").write_text('{"config"')
    with pytest.raises(ValueError, match=r"record.json is damaged .*: delete it"):
        look(CELL, folders)


def test_forgetting_one_cell_leaves_the_others(folders):
    for cell in (CELL, OTHER):
        finish(cell, folders)
        begin(cell, folders)
    forget(CELL, folders)
    assert look(CELL, folders) == (False, 0, [])
    assert not folders.run(CELL).exists()
    assert look(OTHER, folders).done
    assert folders.run(OTHER).exists()
    forget(CELL, folders)


class Engine:
    """Cells that end when and as they are told to."""

    def __init__(self, folders):
        self.folders, self.futures = folders, {}

    def submit(self, job):
        self.futures[job.cell] = Future()
        return self.futures[job.cell]

    def end(self, cell):
        finish(cell, self.folders)
        self.futures[cell.id].set_result(None)

    def fail(self, cell, error):
        self.futures[cell.id].set_exception(error)


def progress(cell, folders, **told):
    path = folders.run(cell) / "progress.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))


def test_a_grid_with_a_failure_runs_to_its_end_and_tells_how_it_goes(folders):
    engine, seen = Engine(folders), []
    progress(OTHER, folders, epoch=2, share=0.9)  # of a try before

    def watch(snapshot):
        seen.append(snapshot)
        if len(seen) == 1:
            progress(CELL, folders, epoch=1, em=0.25, share=0.5)
            (folders.run(OTHER) / "log.txt").parent.mkdir(parents=True, exist_ok=True)
            (folders.run(OTHER) / "log.txt").write_text("".join(f"line {i}\n" for i in range(50)))
        elif len(seen) == 2:
            engine.fail(OTHER, CellError("failed 2 times"))
        elif len(seen) == 3:
            engine.end(CELL)

    failures = run_grid([CELL, OTHER], engine.submit, folders, threads=1, watch=watch, every=0.001)
    assert [(s.waiting, s.failed, [c.id for c in s.ended]) for s in seen] == [
        (2, 0, []),
        (2, 0, []),
        (1, 1, []),
        (0, 1, [CELL.id]),
    ]
    assert [[(r.cell.id, r.epoch, r.em, r.share) for r in s.running] for s in seen[:3]] == [
        [],
        [(CELL.id, 1, 0.25, 0.5)],
        [(CELL.id, 1, 0.25, 0.5)],
    ]
    ((cell, reason, tail),) = failures
    assert (cell, reason) == (OTHER, "failed 2 times")
    assert [line.strip() for line in tail.splitlines()] == [f"line {i}" for i in range(38, 50)]
    words = failures_in_words(failures)
    assert words.startswith("1 cell failed")
    assert "mnist-multi-4/rl/seed-0: failed 2 times. Its log ends:\n  line 38\n" in words


def test_a_worker_that_ends_without_a_record_has_failed(folders):
    engine = Engine(folders)
    failures = run_grid([CELL], lambda job: _ended(engine.submit(job)), folders, threads=1)
    assert [failure.reason for failure in failures] == ["ended without a record"]
    assert failures[0].tail == "  (there is none)"


def _ended(future: Future) -> Future:
    future.set_result(None)
    return future


def test_the_jobs_say_all_that_another_process_must_know(folders, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    jobs = []

    def submit(job):
        jobs.append(job)
        return _ended(Future())

    run_grid([CELL], submit, Folders(Path("r"), Path("s"), Path("d")), threads=3, mnist="m")
    assert jobs == [("smoke", CELL.id, str(tmp_path), "r", "s", "d", 3, "m")]


# Time left


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(grid.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_time_left_is_assumed_until_it_is_measured(clock):
    cells = [find("small", f"mnist-multi-4/{name}/seed-0") for name in ("multi", "rl", "seq")]
    coco = find("small", "coco-medium/multi/seed-0")
    measured = grid._Clock([*cells, coco])
    assert measured.left([*cells, coco], 0) == pytest.approx(3 * cells[0].seconds + coco.seconds)
    measured.note(cells[0], 0.0)
    clock(100)
    measured.note(cells[0], 0.25)  # 400 seconds for a whole one
    expected = 0.75 * 400 + 2 * 400 + coco.seconds * 400 / cells[0].seconds
    assert measured.left([*cells, coco], 1) == pytest.approx(expected)
    assert measured.left([*cells, coco], 2) == pytest.approx(expected / 2)
    # What was measured on a data set counts for it, and not for another one that was measured, too.
    measured.note(coco, 0.5)
    clock(10)
    measured.note(coco, 0.75)
    assert measured.left([coco], 1) == pytest.approx(0.25 * 40)
    # One cell cannot be divided among workers.
    assert measured.left([cells[1]], 2) == pytest.approx(400)
    assert measured.left([], 0) == 0


def test_a_cell_that_was_resumed_is_measured_from_there(clock):
    cell = find("small", "mnist-multi-4/multi/seed-0")
    measured = grid._Clock([cell])
    measured.note(cell, 0.5)
    clock(60)
    measured.note(cell, 0.75)
    assert measured.left([cell], 1) == pytest.approx(60)


def test_nobody_knows_how_long_the_papers_setting_takes_before_it_is_measured(clock):
    cells = all_cells("paper", ["table-1"])
    measured = grid._Clock(cells)
    assert measured.left(cells, 1) is None
    measured.note(cells[0], 0.0)
    clock(3600)
    measured.note(cells[0], 0.5)
    assert measured.left(cells[:1], 1) == pytest.approx(3600)
    assert measured.left(cells, 1) > 3600
