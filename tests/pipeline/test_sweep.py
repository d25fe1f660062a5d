from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
from pet_table import FAST, write_pets

from torchmultiset.pipeline import sweep as module
from torchmultiset.pipeline.config import config_of, to_dict
from torchmultiset.pipeline.record import data_record, write_config, write_record
from torchmultiset.pipeline.sweep import (
    Workers,
    changed_data,
    describe_failures,
    forget,
    is_finished,
    stale,
    sweep,
)
from torchmultiset.pipeline.workers import WorkerError

pytestmark = pytest.mark.slow

ONE, TWO = "multi/seed-0", "counts/seed-0"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs on a table in the working folder."""
    monkeypatch.chdir(tmp_path)
    write_pets(tmp_path)
    values = {"data": "pets.csv", **FAST}
    return {ONE: config_of({**values, "objective": "multi"}), TWO: config_of({**values, "objective": "counts"})}


def finish(folder, config, *, data="pets.csv", **other):
    """Write the files of a finished run, with its automatic settings chosen."""
    begin(folder, config)
    write_config(folder, replace(config, model=replace(config.model, max_size=6, stop="policy", encoder="mlp")))
    write_record(folder, {"finished": True, "data": data_record(data), **other})


def begin(folder, config, *, epochs=2):
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    write_record(folder, {"finished": False, "data": data_record("pets.csv")})
    (folder / "epochs.jsonl").write_text("{}\n" * epochs)
    (folder / "checkpoint.pt").write_bytes(b"")


def edit(folder, before, after):
    path = folder / "config.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


class Crew:
    """Workers whose jobs end when the test ends them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.futures, self.jobs, self.stopped = folder, {}, {}, []
        monkeypatch.setattr(Workers, "crew", lambda _: self)
        monkeypatch.setattr(module, "prepare", lambda *_, **__: None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, job):
        self.jobs[job.name], self.futures[job.name] = job, Future()
        return self.futures[job.name]

    def stop(self, name):
        self.stopped.append(name)
        self.futures[name].set_exception(WorkerError("stopped"))

    def end(self, name):
        finish(self.folder / name, config_of(self.jobs[name].config))
        self.futures[name].set_result(None)

    def progress(self, name, **values):
        path = self.folder / name / "progress.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


@pytest.fixture
def crew(tmp_path, monkeypatch, without_shape_hook):
    return Crew(tmp_path / "runs", monkeypatch)


# Stale runs


def test_a_run_is_stale_if_its_config_has_changed(runs, tmp_path):
    finish(tmp_path / "run", runs[ONE])
    assert is_finished(tmp_path / "run")
    assert stale(tmp_path / "run", runs[ONE]) == []  # automatic settings may have any value
    other = config_of(to_dict(runs[ONE]) | {"epochs": 5, "units": (64, 32)})
    assert stale(tmp_path / "run", other) == [
        "units was 8 and is now 64 32",
        "epochs was 2 and is now 5",
    ]


def test_a_run_is_stale_if_its_data_changed_but_not_if_it_moved(runs, tmp_path):
    finish(tmp_path / "run", runs[ONE])
    before = data_record("pets.csv")["sha256"]
    (tmp_path / "pets.csv").rename(tmp_path / "elsewhere.csv")
    moved = config_of(to_dict(runs[ONE]) | {"data": "elsewhere.csv"})
    assert stale(tmp_path / "run", moved) == []
    write_pets(tmp_path, seed=1)
    (message,) = stale(tmp_path / "run", runs[ONE])
    assert message == f"the data was {before[:12]}... and is now {data_record('pets.csv')['sha256'][:12]}..."
    assert changed_data({"sha256": before}, "nowhere.csv") == []  # the data cannot be compared


def test_automatic_and_newer_settings_do_not_make_a_run_stale(runs, tmp_path):
    finish(tmp_path / "run", runs[ONE])
    edit(tmp_path / "run", "value_weight = 0.5\n", "")
    open_ = config_of(to_dict(runs[ONE]) | dict.fromkeys(("epochs", "batch_size", "objective", "precision")))
    assert stale(tmp_path / "run", open_) == []


def test_a_run_without_a_checkpoint_is_not_stale(runs, tmp_path):
    begin(tmp_path / "run", runs[ONE])
    (tmp_path / "run" / "checkpoint.pt").unlink()
    assert stale(tmp_path / "run", runs[TWO]) == []


def test_stale_runs_are_refused_with_their_differences_unless_run_again(runs, tmp_path, crew):
    finish(crew.folder / ONE, runs[ONE])
    begin(crew.folder / TWO, runs[TWO])
    edit(crew.folder / ONE, "epochs = 2", "epochs = 30")
    edit(crew.folder / TWO, "hidden = 8", "hidden = 48")
    with pytest.raises(ValueError, match="these runs are stale") as error:
        sweep(runs, crew.folder)
    assert error.value.args[0].splitlines()[1:3] == [
        f"  {ONE}: epochs was 30 and is now 2",
        f"  {TWO}: hidden was 48 and is now 8",
    ]
    assert "--again" in error.value.args[0]
    result = sweep(runs, crew.folder, again=True, watch=lambda _: [crew.end(n) for n in open_jobs(crew)], every=0.001)
    assert [*result.finished] == [ONE, TWO]


def test_forget_deletes_a_single_run(runs, tmp_path):
    for name in runs:
        finish(tmp_path / name, runs[name])
    forget(tmp_path / ONE)
    assert not (tmp_path / ONE).exists()
    assert is_finished(tmp_path / TWO)
    forget(tmp_path / ONE)


# The loop


def open_jobs(crew):
    return [name for name, future in crew.futures.items() if not future.done()]


def test_a_failure_does_not_stop_the_others_and_progress_is_reported(runs, crew):
    snapshots = []
    crew.progress(TWO, epoch=2, share=0.9)  # from an earlier attempt

    def watch(snapshot):
        snapshots.append(snapshot)
        if len(snapshots) == 1:
            crew.progress(ONE, epoch=1, epochs=2, em=0.25, f1=0.5, share=0.5)
            (crew.folder / TWO).mkdir(parents=True, exist_ok=True)
            (crew.folder / TWO / "log.txt").write_text("".join(f"line {i}\n" for i in range(50)))
        elif len(snapshots) == 2:
            crew.futures[TWO].set_exception(WorkerError("failed 2 times"))
        elif len(snapshots) == 3:
            crew.end(ONE)

    result = sweep(runs, crew.folder, watch=watch, every=0.001)
    assert [(s.waiting, s.failed, s.ended) for s in snapshots] == [(2, 0, []), (2, 0, []), (1, 1, []), (0, 1, [ONE])]
    assert [s.running for s in snapshots[:3]] == [[], [(ONE, 1, 2, 0.25, 0.5, 0.5)], [(ONE, 1, 2, 0.25, 0.5, 0.5)]]
    assert [*result.finished] == [ONE]
    ((name, reason, tail),) = result.failures
    assert (name, reason) == (TWO, "failed 2 times")
    assert [line.strip() for line in tail.splitlines()] == [f"line {i}" for i in range(38, 50)]
    text = describe_failures(result.failures)
    assert text.startswith("1 run failed")
    assert f"{TWO}: failed 2 times. Its log ends:\n  line 38\n" in text


def test_a_worker_that_ends_without_a_result_has_failed(runs, crew):
    def watch(_):
        for name in open_jobs(crew):
            crew.futures[name].set_result(None)

    result = sweep({ONE: runs[ONE]}, crew.folder, watch=watch, every=0.001)
    assert [(failure.reason, failure.tail) for failure in result.failures] == [
        ("ended without a result", "  (there is none)")
    ]


def test_a_run_can_be_stopped_early(runs, crew):
    def stop(snapshot):
        crew.end(ONE) if not crew.futures[ONE].done() else None
        return [TWO, "an unknown run"]

    result = sweep(runs, crew.folder, stop=stop, every=0.001)
    assert crew.stopped == [TWO]
    assert ([*result.finished], result.failures, result.stopped) == ([ONE], [], [TWO])


def test_finished_runs_are_skipped_without_a_function_to_call_after_them(runs, crew):
    for name in runs:
        finish(crew.folder / name, runs[name])
    result = sweep(runs, crew.folder)
    assert [*result.finished] == [ONE, TWO]
    assert crew.jobs == {}

    def watch(_):
        for name in open_jobs(crew):
            crew.end(name)

    sweep(runs, crew.folder, after=("json:dumps", {"indent": 2}), watch=watch, every=0.001)
    assert {(job.after, job.arguments["indent"]) for job in crew.jobs.values()} == {("json:dumps", 2)}


def test_a_job_contains_everything_that_its_process_needs(runs, crew, tmp_path):
    workers = Workers(2, threads=3)

    def watch(_):
        for name in open_jobs(crew):
            crew.end(name)

    sweep({ONE: runs[ONE]}, "runs", workers=workers, command=["a", "b"], watch=watch, every=0.001)
    job = crew.jobs[ONE]
    assert (job.name, job.root, job.folder, job.threads, job.command) == (
        ONE,
        str(tmp_path),
        f"runs/{ONE}",
        3,
        ("a", "b"),
    )
    assert config_of(json.loads(json.dumps(job.config))) == runs[ONE]


@pytest.mark.parametrize("name", ["", "/tmp/run", "../run"])
def test_names_are_relative_paths(runs, tmp_path, name):
    with pytest.raises(ValueError, match="name must be relative"):
        sweep({name: runs[ONE]}, tmp_path / "runs")


def test_missing_data_is_reported_before_any_process_starts(runs, tmp_path):
    (tmp_path / "pets.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"pets\.csv"):
        sweep(runs, tmp_path / "runs")
    assert not [*(tmp_path / "runs").rglob("log.txt")]


# Remaining time


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_the_remaining_time_uses_assumed_speeds_until_they_are_measured(clock):
    groups = {"a": "digits", "b": "digits", "c": "digits", "d": "photographs"}
    measured = module._Clock(groups, {"a": 100.0, "b": 100.0, "c": 100.0, "d": 50.0})
    assert measured.left([*groups], 0) == pytest.approx(350)
    measured.note("a", 0.0)
    clock(100)
    measured.note("a", 0.25)  # 400 seconds for a complete run
    expected = 0.75 * 400 + 2 * 400 + 50 * 4
    assert measured.left([*groups], 1) == pytest.approx(expected)
    assert measured.left([*groups], 2) == pytest.approx(expected / 2)
    # A data set with its own measured speed is not estimated from others.
    measured.note("d", 0.5)
    clock(10)
    measured.note("d", 0.75)
    assert measured.left(["d"], 1) == pytest.approx(0.25 * 40)
    # One run cannot be divided among workers.
    assert measured.left(["b"], 2) == pytest.approx(400)
    assert measured.left([], 0) == 0


def test_the_speed_of_a_resumed_run_is_measured_from_its_resumption(clock):
    measured = module._Clock({"a": "x"}, None)
    assert measured.left(["a"], 1) is None
    measured.note("a", 0.5)
    assert measured.left(["a"], 1) is None
    clock(60)
    measured.note("a", 0.75)
    assert measured.left(["a"], 1) == pytest.approx(60)
