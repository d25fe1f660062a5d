"""What is killed: commands and calls that can be repeated, and what must be the same after that."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from campaign.kinds import KINDS, Pool, write_table
from torchmultiset.cli import main
from torchmultiset.data.views import cache_views
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate
from torchmultiset.pipeline.config import DataConfig, RunConfig

__all__ = ["SCENARIOS", "Scenario"]

_TRAIN = ["--objective", "multi", "--batch-size", "8", "--units", "16", "--resume"]


@dataclass(frozen=True)
class Scenario:
    """Something that is killed.

    Attributes:
        run: Called in a process of its own with the folder; the same call again resumes.
        outcome: Returns what must be the same as without kills.
        prepare: Writes what `run` needs.
        share: Share of all kills.
    """

    name: str
    run: Callable[[Path], object]
    outcome: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda _: None
    share: float = 0.1


def _main(*tokens: object) -> None:
    code = main([str(token) for token in tokens])
    if code:
        sys.exit(code)


def _train(folder: Path) -> None:
    _main("train", folder / "table.csv", "--out", folder / "run", "--epochs", 12, "--devices", 1, *_TRAIN)


def _two(folder: Path) -> None:
    command = [sys.executable, "-m", "torchmultiset", "train", str(folder / "table.csv"), "--out", str(folder / "run")]
    os.execve(sys.executable, [*command, "--epochs", "3", "--devices", "2", *_TRAIN], dict(os.environ))


def _weights(folder: Path) -> object:
    """Return the names of the weights, which contain their SHA-256, and the epochs without their times."""
    run = folder / "run"
    lines = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    kept = [
        {key: value for key, value in line.items() if key not in ("seconds", "images_per_second")} for line in lines
    ]
    return [sorted(path.name for path in (run / part).glob("weights-*")) for part in ("best", "model")], kept


def _finetune(folder: Path) -> None:
    flags = "--objective counts --finetune last --backbone efficientnet-lite0 --image-size 96 --epochs 2 --batch-size 8"
    _main("train", folder / "list.jsonl", "--out", folder / "run", *flags.split(), "--devices", 1, "--resume")


def _portfolio(folder: Path) -> None:
    values = {"objective": "counts", "batch_size": 8, "units": (8,), "epochs": 3}
    only = [Candidate("good", values, "learns"), Candidate("bad", {**values, "lr": 1e-9}, "does not learn")]
    train_portfolio(RunConfig(DataConfig(str(folder / "table.csv"))), folder / "run", only=only, resume=True)


def _winner(folder: Path) -> object:
    standings = json.loads((folder / "run" / "leaderboard.json").read_text())
    return [(one["name"], one["f1"]) for one in standings], _weights(folder)


def _digits(folder: Path) -> None:
    (folder / "mnist").mkdir()
    KINDS["digits (idx)"].build(folder / "mnist")


def _build(folder: Path) -> None:
    sizes = ("--train", 4000, "--validation", 50, "--test", 50, "--seen", 0, "--workers", 2)
    _main("data", "build", "mnist-multi", folder / "data", "--mnist", folder / "mnist", *sizes)


def _contents(name: str) -> Callable[[Path], object]:
    def digest(folder: Path) -> object:
        files = sorted(file for file in (folder / name).rglob("*") if file.is_file() and file.suffix != ".lock")
        return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]

    return digest


def _views(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    keys = [f"image {i}" for i in range(60)]
    cache = cache_views(
        Pool(8), images, folder / "cache", keys=keys, families=("flip", "colour"), views=4, batch_size=4
    )
    read = cache.epoch(1, seed=3)[np.arange(60)]
    (folder / "read.txt").write_text(hashlib.sha256(read.tobytes()).hexdigest())


def _sweep(folder: Path) -> None:
    flags = "--objective counts --epochs 3 --units 8 --batch-size 8 --lr 0.001 0.01 --workers 2"
    _main("sweep", folder / "table.csv", "--out", folder / "run", *flags.split())


def _swept(folder: Path) -> object:
    return sorted(path.name for path in (folder / "run").glob("*/model/weights-*"))


def _save(folder: Path) -> None:
    """Save one model over another, many times, and end with the first."""
    for number in (*range(30), 0):
        model = Predictor.load(folder / "model")
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, number)
        model.save(folder / "model", record=model.record)


def _export(folder: Path) -> None:
    if (folder / "model.onnx").exists():  # an export never replaces a file
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _main("export", folder / "model", "--out", folder / "model.onnx")


def _exported(folder: Path) -> object:
    from onnxruntime import InferenceSession

    session = InferenceSession(folder / "model.onnx")
    return sorted(output.name for output in session.get_outputs())


def _serve(folder: Path) -> None:
    """Serve until a client has requested the list of models, then stop."""
    from torchmultiset.page import server
    from torchmultiset.page.watching import PageModel

    port = int((folder / "port").read_text())

    def ask() -> None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/models") as answer:
            (folder / "answer.json").write_bytes(answer.read())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.7, ask).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.serve([PageModel.open(str(folder / "model"))], "127.0.0.1", port, ready=lambda _: None)


def _port(folder: Path) -> None:
    _MODEL(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))


_MODEL = KINDS["array (.npy)"].build
_TABLE = partial(write_table, examples=48)
SCENARIOS = {
    one.name: one
    for one in (
        Scenario("training", _train, _weights, _TABLE, 0.35),
        Scenario("training in two processes", _two, _weights, _TABLE, 0.02),
        Scenario("fine-tuning", _finetune, _weights, KINDS["list of images (JSONL)"].build, 0.04),
        Scenario("portfolio", _portfolio, _winner, _TABLE, 0.015),
        Scenario("data build", _build, _contents("data"), _digits, 0.15),
        Scenario("feature cache with views", _views, _contents("cache"), share=0.15),
        Scenario("sweep", _sweep, _swept, _TABLE, 0.025),
        Scenario("save", _save, _contents("model"), _MODEL, 0.13),
        Scenario("export", _export, _exported, _MODEL, 0.03),
        Scenario("serve", _serve, lambda folder: (folder / "answer.json").exists(), _port, 0.06),
    )
}
