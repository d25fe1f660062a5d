"""Training in two processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_runs
import torch
from lightning_fabric import Fabric
from tiny_runs import outcome, pair, task, weights

from torchmultiset.model.predictor import Predictor
from torchmultiset.training import fit
from torchmultiset.training.checkpoint import read_checkpoint
from torchmultiset.training.evaluation import evaluate

pytestmark = pytest.mark.slow


def alone(name: str, folder: Path, **options: int) -> dict[str, torch.Tensor]:
    """The weights that one process ends with."""
    ours = task(name, **options)
    fit(*ours, folder, fabric=Fabric(accelerator="cpu", devices=1))
    return weights(ours.predictor)


def ranks(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights that each of two processes ended with."""
    return [torch.load(folder.with_name(f"{folder.name}-rank-{rank}.pt"), weights_only=True) for rank in range(2)]


def epochs(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def together(name: str, folder: Path, **options: int) -> None:
    with pair(name, folder, **options) as processes:
        assert [process.end() for process in processes] == [0, 0]


def assert_same_run(folder: Path, one: Path, weights_of_one: dict[str, torch.Tensor]) -> None:
    first, second = ranks(folder)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, weights_of_one, rtol=1e-4, atol=1e-5)
    for line, expected in zip(epochs(folder), epochs(one), strict=True):
        assert line["validation_em"] == expected["validation_em"]  # a count: each example once
        assert line["validation_f1"] == pytest.approx(expected["validation_f1"], abs=1e-6)
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("count", "validation"),
    [
        (45, 13),  # a last batch of 5: 3 and 2
        (17, 1),  # a last batch of 1: process 1 has none, nor has it anything to validate
        (1, 2),  # fewer examples than processes
    ],
)
def test_two_processes_do_what_one_does(count, validation, tmp_path):
    sizes = {"count": count, "validation": validation, "epochs": 4}
    one = alone("plain", tmp_path / "one", **sizes)
    together("plain", tmp_path / "two", **sizes)
    assert_same_run(tmp_path / "two", tmp_path / "one", one)


def test_processes_that_fabric_starts(tmp_path):
    one = alone("plain", tmp_path / "one")
    script = [sys.executable, tiny_runs.__file__, str(tmp_path / "two")]
    ended = subprocess.run(
        script, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert_same_run(tmp_path / "two", tmp_path / "one", one)


def test_two_processes_are_killed_and_resumed(tmp_path):
    together("dropout", tmp_path / "whole")
    with pair("dropout", tmp_path / "run") as processes:
        processes[0].wait_for(lambda: processes[0].steps.value >= 20)
        for process in processes:
            process.send(signal.SIGKILL)
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["epoch"] >= 1
    together("dropout", tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    torch.testing.assert_close(ranks(tmp_path / "run"), ranks(tmp_path / "whole"), rtol=0, atol=0)


def test_ctrl_c_that_one_process_has_seen_stops_both_after_the_same_step(tmp_path):
    together("dropout", tmp_path / "whole")
    with pair("dropout", tmp_path / "run") as processes:
        processes[1].wait_for(lambda: processes[1].steps.value >= 20)
        processes[1].send(signal.SIGINT)
        assert [process.end() for process in processes] == [3, 3]
        assert processes[0].steps.value == processes[1].steps.value
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["epoch"] >= 1
    together("dropout", tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_batch_normalisation_is_that_of_process_0_everywhere(tmp_path):
    # Each process normalises over its own part, so this is another run than that of one process; but all processes
    # have one model, and the validation metrics are that model's.
    together("batch norm", tmp_path / "two", epochs=1)
    first, second = ranks(tmp_path / "two")
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    best = Predictor.load(tmp_path / "two" / "best")
    torch.testing.assert_close(weights(best), first, rtol=0, atol=0)
    counts, target = evaluate(best, task("batch norm").validation)
    assert epochs(tmp_path / "two")[0]["validation_em"] == pytest.approx((counts == target).all(1).double().mean())


def test_a_loss_that_is_not_finite_in_one_process_stops_both(tmp_path):
    folder = tmp_path / "run"
    with pair("plain", folder, spoil=0) as processes:
        assert [process.end() for process in processes] == [4, 4]
    parts = [torch.load(folder / f"bad-batch-{rank}.pt", weights_only=True)["x"] for rank in range(2)]
    assert sorted(int(part.isnan().any()) for part in parts) == [0, 1]
