"""What the command line shows while it trains, and while it runs experiments."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from torchmultiset.cli.experiment import _Shown
from torchmultiset.cli.progress import TrainingProgress
from torchmultiset.experiments.cells import all_cells, choose
from torchmultiset.experiments.grid import Running, Snapshot
from torchmultiset.experiments.work import RECORD, Folders
from torchmultiset.training import Progress

pytestmark = pytest.mark.usefixtures("without_shape_hook")  # the task is none

LINE = {"loss": 1.0, "validation_em": 0.5, "validation_f1": 0.75}


def shown(*moments: Progress) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    optim = SimpleNamespace(epochs=3, batch_size=8)
    task = SimpleNamespace(config=SimpleNamespace(optim=optim), splits={"train": range(90)})
    watch = TrainingProgress(console).start(task)
    for progress in moments:
        watch(progress)
    return console.file.getvalue().splitlines()


def test_a_line_for_each_epoch_that_ends():
    lines = shown(Progress(), Progress(0, 1, 2.0), Progress(1, 0, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[:4] for line in lines] == [
        [f"epoch {epoch}/3", "loss 1.000", "validation EM 0.500", "F1 0.750"] for epoch in (1, 2)
    ]


def test_a_run_resumed_after_the_last_step_of_an_epoch_tells_its_end():
    lines = shown(Progress(1, 12, history=[LINE]), Progress(2, 0, history=[LINE] * 2))
    assert [line.split("  ")[0] for line in lines] == ["epoch 2/3"]


def test_examples_seen():
    assert Progress().seen(90, 8) == 0
    assert Progress(2, 3).seen(90, 8) == 2 * 90 + 24
    assert Progress(2, 12).seen(90, 8) == 3 * 90


def test_experiments_have_one_display_with_a_bar_for_all_and_for_each_and_the_time_left(tmp_path):
    folders = Folders(tmp_path / "results", tmp_path / "runs", tmp_path / "data")
    one, two, three = choose(all_cells("smoke", ["table-3"]), ["mnist-multi-4/multi", "mnist-multi-4/seq", "*-10/rl"])
    folders.result(one).mkdir(parents=True)
    scores = {"test": {"overall": {"exact_match": 0.25, "f1": 0.5}}}
    (folders.result(one) / RECORD).write_text(json.dumps({"metrics": scores, "run": {"minutes": 1.5}}))
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    display = _Shown(console, folders, total=3, done=0)
    running = Running(two, 1, 0.125, 0.5)
    display(Snapshot([], 0, 3, [Running(one, 0, None, 0.25), running], 600))
    bars = {bar.description: bar for bar in display.bars.tasks}
    assert bars.keys() == {"all cells", one.id, two.id}
    assert bars["all cells"].fields["about"] == "0 of 3 done, 10 min left"
    assert bars["all cells"].completed == 0.75
    assert bars[one.id].fields["about"] == "epoch 1/3"
    assert (bars[two.id].fields["about"], bars[two.id].completed) == ("epoch 2/3, EM 0.125", 0.5)
    display(Snapshot([one], 0, 2, [running, Running(three, 0, None, 0.0)], 90))
    bars = {bar.description: bar for bar in display.bars.tasks}
    assert bars.keys() == {"all cells", two.id, three.id}
    assert bars["all cells"].fields["about"] == "1 of 3 done, 2 min left"
    assert f"{one.id}: test EM 0.250, F1 0.500, 1.5 min (1 of 3 done, 2 min left)" in console.file.getvalue()
