"""Kills: SIGKILL at random moments, then the same command again, until the result can be compared."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SCENARIOS", "Scenario", "kill_all"]

DEADLINE = 240.0
_TRAIN = ("--batch-size", "8", "--units", "16", "--devices", "1")
_CHAIN = 5
"""Kills of one run before it may end."""


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
    from torchmultiset.cli import main

    code = main([str(token) for token in tokens])
    if code:
        sys.exit(code)


def _table(folder: Path) -> None:
    from campaign.kinds import write_table

    write_table(folder, 48)


def _train(folder: Path) -> None:
    _main(
        "train",
        folder / "table.csv",
        "--out",
        folder / "run",
        "--objective",
        "multi",
        "--epochs",
        12,
        *_TRAIN,
        "--resume",
    )


def _two(folder: Path) -> None:
    flags = (
        "--objective",
        "multi",
        "--epochs",
        "3",
        "--batch-size",
        "8",
        "--units",
        "16",
        "--devices",
        "2",
        "--resume",
    )
    command = [
        sys.executable,
        "-m",
        "torchmultiset",
        "train",
        str(folder / "table.csv"),
        "--out",
        str(folder / "run"),
        *flags,
    ]
    os.execve(sys.executable, command, dict(os.environ))


def _weights(folder: Path) -> object:
    """Return the names of the weights, which contain their SHA-256, and the epochs without their times."""
    run = folder / "run"
    lines = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    kept = [
        {key: value for key, value in line.items() if key not in ("seconds", "images_per_second")} for line in lines
    ]
    return [sorted(path.name for path in (run / part).glob("weights-*")) for part in ("best", "model")], kept


def _photos(folder: Path) -> None:
    from campaign.kinds import KINDS

    KINDS["list of images (JSONL)"].build(folder)


def _finetune(folder: Path) -> None:
    flags = (
        "--finetune",
        "last",
        "--backbone",
        "efficientnet-lite0",
        "--image-size",
        96,
        "--epochs",
        2,
        "--batch-size",
        8,
    )
    _main(
        "train",
        folder / "list.jsonl",
        "--out",
        folder / "run",
        "--objective",
        "counts",
        *flags,
        "--devices",
        1,
        "--resume",
    )


def _portfolio(folder: Path) -> None:
    from torchmultiset.pipeline.auto import train_portfolio
    from torchmultiset.pipeline.candidates import Candidate
    from torchmultiset.pipeline.config import DataConfig, RunConfig

    values = {"objective": "counts", "batch_size": 8, "units": (8,), "epochs": 3}
    only = [Candidate("good", values, "learns"), Candidate("bad", {**values, "lr": 1e-9}, "does not learn")]
    train_portfolio(RunConfig(DataConfig(str(folder / "table.csv"))), folder / "run", only=only, resume=True)


def _winner(folder: Path) -> object:
    standings = json.loads((folder / "run" / "leaderboard.json").read_text())
    return [(one["name"], one["f1"]) for one in standings], _weights(folder)


def _digits(folder: Path) -> None:
    from campaign.kinds import KINDS

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
    import torch

    from torchmultiset.data.views import cache_views

    class Pool(torch.nn.AvgPool2d):
        name = "pool"

        def fingerprint(self) -> str:
            return "pool"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float())

    images = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    keys = [f"image {i}" for i in range(60)]
    cache = cache_views(
        Pool(8), images, folder / "cache", keys=keys, families=("flip", "colour"), views=4, batch_size=4
    )
    read = cache.epoch(1, seed=3)[np.arange(60)]
    (folder / "read.txt").write_text(hashlib.sha256(read.tobytes()).hexdigest())


def _sweep(folder: Path) -> None:
    flags = (
        "--objective",
        "counts",
        "--epochs",
        3,
        "--units",
        8,
        "--batch-size",
        8,
        "--lr",
        0.001,
        0.01,
        "--workers",
        2,
    )
    _main("sweep", folder / "table.csv", "--out", folder / "run", *flags)


def _swept(folder: Path) -> object:
    return sorted(path.name for path in (folder / "run").glob("*/model/weights-*"))


def _model(folder: Path) -> None:
    from campaign.kinds import KINDS

    KINDS["array (.npy)"].build(folder)


def _save(folder: Path) -> None:
    """Save one model over another, many times, and end with the first."""
    import torch

    from torchmultiset.model.predictor import Predictor

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
    """Serve until somebody has asked for the models, then stop."""
    import threading
    import urllib.request

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
    _model(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("training", _train, _weights, _table, 0.35),
        Scenario("training in two processes", _two, _weights, _table, 0.02),
        Scenario("fine-tuning", _finetune, _weights, _photos, 0.04),
        Scenario("portfolio", _portfolio, _winner, _table, 0.015),
        Scenario("data build", _build, _contents("data"), _digits, 0.15),
        Scenario("feature cache with views", _views, _contents("cache"), share=0.15),
        Scenario("sweep", _sweep, _swept, _table, 0.025),
        Scenario("save", _save, _contents("model"), _model, 0.13),
        Scenario("export", _export, _exported, _model, 0.03),
        Scenario("serve", _serve, lambda folder: (folder / "answer.json").exists(), _port, 0.06),
    )
}


def _victim(name: str, folder: Path, log: Path) -> None:
    import torch

    os.setsid()
    torch.set_num_threads(1)
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # figures take longer than training here
    SCENARIOS[name].run(folder)


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["campaign.kills", "campaign.kinds", "lightning_fabric", "torchmultiset.cli.train"])


def _start(name: str, folder: Path, log: Path) -> Any:
    process = _FORKS.Process(target=_victim, args=(name, folder, log), daemon=False)
    process.start()
    return process


def half_written(folder: Path) -> Iterator[str]:
    """Yield the files that look whole by their names, but cannot be read."""
    from torchmultiset.model.predictor import Predictor
    from torchmultiset.training.checkpoint import read_checkpoint

    for file in sorted(folder.rglob("*")):
        try:
            if file.suffix == ".json" and file.is_file():
                json.loads(file.read_text())
            elif file.suffix == ".toml":
                tomllib.loads(file.read_text())
            elif file.name == "epochs.jsonl":
                [json.loads(line) for line in file.read_text().splitlines()]
            elif file.name == "checkpoint.pt":
                read_checkpoint(file)
            elif file.suffix == ".npz":
                with np.load(file) as arrays:
                    [arrays[name] for name in arrays]
            elif file.name == "predictor.json":
                Predictor.load(file.parent)
            elif file.suffix == ".onnx":
                from onnxruntime import InferenceSession

                InferenceSession(file)
        except FileNotFoundError:
            continue  # workers of a killed command may still be ending
        except Exception as error:
            yield f"{file.relative_to(folder)}: {type(error).__name__}: {str(error)[:200]}"


def held_locks(folder: Path) -> list[str]:
    """Return the locks that somebody holds."""
    held = []
    for file in folder.rglob("*.lock"):
        with file.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.append(file.name)
    return held


def _settle(folder: Path) -> list[str]:
    """Wait until the workers of a killed command have ended, and return the locks that are held after that."""
    deadline = time.monotonic() + 60
    while (held := held_locks(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def _finish(name: str, folder: Path, log: Path) -> str | None:
    process = _start(name, folder, log)
    process.join(DEADLINE)
    if process.exitcode == 0:
        return None
    state = "did not end" if process.exitcode is None else f"ended with code {process.exitcode}"
    process.kill()
    return f"{state}: {log.read_text()[-300:]}"


def kill_scenario(name: str, root: Path, wanted: int, seed: int, seconds: float = math.inf) -> dict[str, Any]:
    """Kill one scenario so many times; compare each chain of kills with a run that was never killed."""
    scenario, rng = SCENARIOS[name], random.Random(f"{seed} {name}")
    failures: list[str] = []
    whole = root / "whole"
    _fresh(scenario, whole)
    start = time.monotonic()
    problem = _finish(name, whole, root / "whole.log")
    if problem:
        return {"kills": 0, "chains": 0, "failures": [f"without kills: {problem}"]}
    lasts, expected = time.monotonic() - start, scenario.outcome(whole)
    kills = chains = 0
    until = time.monotonic() + seconds
    while kills < wanted and not failures and chains < 3 * wanted and time.monotonic() < until:
        folder, log = root / "killed", root / "killed.log"
        _fresh(scenario, folder)
        log.write_text("")
        chains += 1
        for _ in range(min(_CHAIN, wanted - kills)):
            process = _start(name, folder, log)
            start = time.monotonic()
            process.join(rng.uniform(0.02, 0.8) * lasts)
            if process.exitcode is not None:
                lasts = min(lasts, 0.9 * (time.monotonic() - start) + 0.1)
                if process.exitcode != 0:
                    failures.append(f"resumed, it ended with code {process.exitcode}: {log.read_text()[-300:]}")
                break
            os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                if name == "training in two processes":  # as a shell does that ends a job
                    os.killpg(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            failures += [f"half-written: {file}" for file in half_written(folder)]
            failures += [f"a lock is held: {file}" for file in _settle(folder)]
        finished = {
            path: path.stat().st_mtime_ns for path in folder.glob("run/candidates/**/run.json") if _is_finished(path)
        }
        problem = _finish(name, folder, log)
        if problem:
            failures.append(f"after kills, it {problem}")
        elif scenario.outcome(folder) != expected:
            failures.append("the outcome differs from that of a run that was never killed")
        again = [str(path.relative_to(folder)) for path, when in finished.items() if path.stat().st_mtime_ns != when]
        failures += [f"a finished candidate was trained again: {path}" for path in again]
        left = [path.name for path in folder.rglob("*.partial")]
        failures += [f"left behind: {path}" for path in left] + [f"a lock is held: {path}" for path in _settle(folder)]
        shutil.rmtree(folder)
    return {"kills": kills, "chains": chains, "failures": failures}


def _is_finished(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text()).get("finished"))
    except (OSError, ValueError):
        return False


def _fresh(scenario: Scenario, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scenario.prepare(folder)


def kill_all(
    root: Path,
    kills: int,
    seed: int,
    *,
    names: Sequence[str] = tuple(SCENARIOS),
    seconds: float = math.inf,
    shown: bool = False,
) -> dict[str, Any]:
    """Kill all scenarios, about so many times in all, and begin no chain of kills after so many seconds."""
    told = {}
    total = sum(SCENARIOS[name].share for name in names)
    for name in names:
        share, start = SCENARIOS[name].share / total, time.monotonic()
        wanted = max(1, math.ceil(kills * share))
        told[name] = kill_scenario(name, root / name.replace(" ", "-"), wanted, seed, seconds * share)
        told[name]["minutes"] = round((time.monotonic() - start) / 60, 2)
        if shown:
            print(name, told[name], flush=True)
    return {
        "seed": seed,
        "tried": sum(one["kills"] for one in told.values()),
        "scenarios": told,
        "failures": [f"{name}: {failure}" for name, one in told.items() for failure in one["failures"]],
    }
