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


def train_alone(name: str, folder: Path, **options: int) -> dict[str, torch.Tensor]:
    """The final weights of training in one process."""
    ours = task(name, **options)
    fit(*ours, folder, fabric=Fabric(accelerator="cpu", devices=1))
    return weights(ours.predictor)


def ranks(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The final weights of each of the two processes."""
    return [torch.load(folder.with_name(f"{folder.name}-rank-{rank}.pt"), weights_only=True) for rank in range(2)]


def epochs(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def train_in_two(name: str, folder: Path, **options: int) -> None:
    with pair(name, folder, **options) as processes:
        assert [process.end() for process in processes] == [0, 0]


def assert_same_run(folder: Path, one: Path, weights_of_one: dict[str, torch.Tensor]) -> None:
    first, second = ranks(folder)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, weights_of_one, rtol=1e-4, atol=1e-5)
    for line, expected in zip(epochs(folder), epochs(one), strict=True):
        assert line["validation_em"] == expected["validation_em"]  # equal only if each example counts once
        assert line["validation_f1"] == pytest.approx(expected["validation_f1"], abs=1e-6)
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("count", "validation"),
    [
        (45, 13),  # a last batch of 5: 3 and 2
        (17, 1),  # a last batch of 1: process 1 has no part of it, and no validation example
        (1, 2),  # fewer examples than processes
    ],
)
def test_two_processes_train_like_one(count, validation, tmp_path):
    sizes = {"count": count, "validation": validation, "epochs": 4}
    one = train_alone("plain", tmp_path / "one", **sizes)
    train_in_two("plain", tmp_path / "two", **sizes)
    assert_same_run(tmp_path / "two", tmp_path / "one", one)


def test_processes_started_by_fabric_train_like_one(tmp_path):
    one = train_alone("plain", tmp_path / "one")
    script = [sys.executable, tiny_runs.__file__, str(tmp_path / "two")]
    ended = subprocess.run(
        script, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert_same_run(tmp_path / "two", tmp_path / "one", one)


def test_a_run_of_two_processes_is_resumed_after_being_killed(tmp_path):
    train_in_two("dropout", tmp_path / "whole")
    with pair("dropout", tmp_path / "run") as processes:
        processes[0].wait_for(lambda: processes[0].steps.value >= 20)
        for process in processes:
            process.send(signal.SIGKILL)
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["epoch"] >= 1
    train_in_two("dropout", tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    torch.testing.assert_close(ranks(tmp_path / "run"), ranks(tmp_path / "whole"), rtol=0, atol=0)


def test_ctrl_c_in_one_process_stops_both_after_the_same_step(tmp_path):
    train_in_two("dropout", tmp_path / "whole")
    with pair("dropout", tmp_path / "run") as processes:
        processes[1].wait_for(lambda: processes[1].steps.value >= 20)
        processes[1].send(signal.SIGINT)
        assert [process.end() for process in processes] == [3, 3]
        assert processes[0].steps.value == processes[1].steps.value
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["progress"]["epoch"] >= 1
    train_in_two("dropout", tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_all_processes_have_the_batch_statistics_of_process_0(tmp_path):
    # Each process normalises over its own part of the batch, so the result differs from training in one process. All
    # processes must still end with the same model, and the validation metrics must be those of that model.
    train_in_two("batch norm", tmp_path / "two", epochs=1)
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
