"""The progress display of training runs, sweeps and portfolios."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from torchmultiset.cli.progress import PortfolioProgress, SweepProgress, TrainingProgress
from torchmultiset.pipeline.standings import Standing
from torchmultiset.pipeline.sweep import Running, Snapshot
from torchmultiset.training import Progress

pytestmark = pytest.mark.usefixtures("without_shape_hook")  # the task is a stand-in

LINE = {"loss": 1.0, "validation_em": 0.5, "validation_f1": 0.75}


def shown(*moments: Progress, holdout: str = "validation") -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    optim = SimpleNamespace(last_epoch=3, batch_size=8)
    data = SimpleNamespace(holdout=holdout)
    task = SimpleNamespace(config=SimpleNamespace(optim=optim, data=data), splits={"train": range(90)})
    watch = TrainingProgress(console).start(task)
    for progress in moments:
        watch(progress)
    return console.file.getvalue().splitlines()


def test_a_line_is_printed_at_the_end_of_each_epoch():
    lines = shown(Progress(), Progress(0, 1, 2.0), Progress(1, 0, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[:4] for line in lines] == [
        [f"epoch {epoch}/3", "loss 1.000", "validation EM 0.500", "F1 0.750"] for epoch in (1, 2)
    ]


def test_scores_of_examples_that_were_trained_on_are_labelled_as_such():
    (line,) = shown(Progress(), Progress(1, 0, history=[LINE]), holdout="none")
    assert "training EM 0.500" in line
    assert "validation" not in line


def test_a_run_resumed_after_the_last_step_of_an_epoch_reports_its_end():
    lines = shown(Progress(1, 12, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[0] for line in lines] == ["epoch 2/3"]


def test_progress_counts_the_examples_seen():
    assert Progress().seen(90, 8) == 0
    assert Progress(2, 3).seen(90, 8) == 2 * 90 + 24
    assert Progress(2, 12).seen(90, 8) == 3 * 90


def test_a_sweep_displays_bars_for_all_runs_and_each_run_and_the_remaining_time(tmp_path):
    one, two, three = "multi/seed-0", "seq/seed-0", "rl/seed-0"
    (tmp_path / one).mkdir(parents=True)
    scores = {"overall": {"exact_match": 0.25, "f1": 0.5}}
    (tmp_path / one / "run.json").write_text(json.dumps({"test": scores, "minutes": 1.5}))
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    display = SweepProgress(console, tmp_path, total=4)  # one was finished before
    running = Running(two, 1, 3, 0.125, 0.25, 0.5)
    display(Snapshot([], 0, 3, [Running(one, 0, 3, None, None, 0.25), running], 600))
    bars = {bar.description: bar for bar in display.bars.tasks}
    assert bars.keys() == {"all runs", one, two}
    assert bars["all runs"].fields["about"] == "1 of 4 done, 10 min left"
    assert bars["all runs"].completed == 1.75
    assert bars[one].fields["about"] == "epoch 1/3"
    assert (bars[two].fields["about"], bars[two].completed) == ("epoch 2/3, EM 0.125", 0.5)
    display(Snapshot([one], 0, 2, [running, Running(three, 0, 0, None, None, 0.0)], 90))
    bars = {bar.description: bar for bar in display.bars.tasks}
    assert bars.keys() == {"all runs", two, three}
    assert bars[three].fields["about"] == "starting"
    assert bars["all runs"].fields["about"] == "2 of 4 done, 2 min left"
    assert f"{one}: test EM 0.250, F1 0.500, 1.5 min (2 of 4 done, 2 min left)" in console.file.getvalue()


RIDGE = Standing("ridge baseline", "", 1_200, 0.25, 0.5, 0.01, 0.0)
TABLE = Standing("table", "counts", 1_200, 0.5, 0.75, 0.01, 1.5, lead=0.25, lead_error=0.02)


def test_without_a_terminal_each_trained_candidate_has_a_line_with_its_scores():
    console = Console(file=io.StringIO(), width=120)
    display = PortfolioProgress(console, minutes=0)
    display(Snapshot([], 0, 2, [Running("table/part-1", 1, 3, 0.1, 0.2, 0.3)], None), [RIDGE])
    display(Snapshot(["table/part-1"], 0, 1, [], None), [RIDGE, TABLE])
    display.stop()
    assert console.file.getvalue().splitlines() == [
        "table/part-1 finished: EM 0.500, F1 0.750 on 1,200 held-out examples"
    ]


def test_a_terminal_shows_the_sorted_leaderboard_the_active_runs_and_the_time():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    display = PortfolioProgress(console, minutes=1_000)
    running = [Running("table/part-2", 1, 3, 0.125, 0.25, 0.5), Running("cells/part-1", 0, 0, None, None, 0.0)]
    display(Snapshot([], 0, 3, running, None), [RIDGE, TABLE])
    text = console.file.getvalue()
    display.stop()
    assert text.index("+0.250 ±0.020") < text.index("ridge baseline")
    assert "training table/part-2: epoch 2/3, exact match 0.125, F1 0.250" in text
    assert "cells/part-1" not in text  # it has not started
    assert "3 runs remaining, 16.7 h left" in text
    assert not display.live.is_started
    before = console.file.getvalue()
    display.stop()  # a second call changes nothing
    assert console.file.getvalue() == before
