"""One-second training runs, in this process or in new ones.

`python tests/tiny_runs.py FOLDER` trains in two processes, which Fabric starts.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from torchmultiset.data import Batch, Examples
from torchmultiset.encoders import ConvEncoder, MLPEncoder
from torchmultiset.model.objectives import MultisetObjective, Objective, ReinforceObjective, SequenceObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import ConvLSTMPolicy, LSTMPolicy
from torchmultiset.training import NotFiniteError, Progress, checkpoint, fit
from torchmultiset.training.checkpoint import read_checkpoint
from torchmultiset.training.config import OptimConfig

CLASSES = ("a", "b", "c")
DEADLINE = 120


def vectors(count: int, *, seed: int = 0) -> Examples:
    """Multisets of one to three labels; an input is the counts, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, (count, 3))
    labels[np.arange(3) >= rng.integers(1, 4, count)[:, None]] = -1
    counts = (labels[:, :, None] == np.arange(3)).sum(1)
    return Examples((counts + rng.normal(0, 0.3, counts.shape)).astype(np.float32), labels, CLASSES)


def images(count: int, *, seed: int = 0) -> Examples:
    """The multisets of `vectors` as 24x24 images: each class has a row with one stripe per item."""
    examples = vectors(count, seed=seed)
    pixels = np.random.default_rng(seed).integers(0, 60, (count, 1, 24, 24), dtype=np.uint8)
    for image, counts in zip(pixels[:, 0], examples.counts, strict=True):
        for row, stripes in enumerate(counts):
            image[8 * row : 8 * row + 8, : 8 * stripes : 2] = 255
    return Examples(pixels, examples.labels, CLASSES)


class Dropout(nn.Module):
    """A user-defined encoder that draws from PyTorch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Task(NamedTuple):
    """Arguments of `fit`."""

    predictor: Predictor
    objective: Objective
    train: Examples
    validation: Examples
    optim: OptimConfig


def task(name: str, *, count: int = 93, validation: int = 13, epochs: int = 6) -> Task:
    """A new task; by default it has six epochs of eleven batches of eight examples and one of five."""
    torch.manual_seed(0)
    make = images if name == "batch norm" else vectors
    optim = OptimConfig(epochs=epochs, batch_size=8, lr=1e-2, schedule="constant" if name == "plain" else "one-cycle")
    data = make(count), make(validation, seed=1)
    objective: Objective = MultisetObjective()
    if name == "batch norm":
        encoder = ConvEncoder(1, (4, 8), norm="batch")
        predictor = Predictor(encoder, ConvLSTMPolicy(3, encoder.memory_shape(24, 24), hidden=8), CLASSES, max_size=3)
        objective = MultisetObjective("stochastic")
    elif name == "reinforce":
        policy = LSTMPolicy(4, 16, hidden=16)
        predictor = Predictor(MLPEncoder(3, (16,)), policy, CLASSES, max_size=3, stop="end", baseline=True)
        objective = ReinforceObjective()
    elif name == "dropout":
        predictor = Predictor(Dropout(), LSTMPolicy(3, 16, hidden=16), CLASSES, max_size=3)
        objective = SequenceObjective(rank="random-per-batch")
        optim = replace(optim, ema=0.9, weight_decay=0.1)
    else:
        assert name == "plain"
        predictor = Predictor(MLPEncoder(3, (16,)), LSTMPolicy(3, 16, hidden=16), CLASSES, max_size=3)
    return Task(predictor, objective, *data, optim)


def weights(predictor: Predictor) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in predictor.state_dict().items()}


def outcome(folder: Path) -> dict[str, Any]:
    """All outputs of a run except its timings."""
    timing = {"seconds", "images_per_second"}

    def without_time(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_time(entry) for key, entry in value.items() if key not in timing}
        if isinstance(value, Tensor):
            return value.dtype, value.shape, value.numpy().tobytes()  # to the bit
        return [without_time(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    lines = (folder / "epochs.jsonl").read_text().splitlines()
    return {
        "checkpoint": without_time(read_checkpoint(folder / "checkpoint.pt")),
        "epochs": [without_time(json.loads(line)) for line in lines],
        "best": {path.name: path.read_bytes() for path in sorted((folder / "best").iterdir())},
        "files": sorted(path.name for path in folder.iterdir()),
    }


# A fork server imports PyTorch and Fabric once, which takes seconds; the new processes are forked from it.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["lightning_fabric", "torchmultiset.training"])


class Child:
    """A run in a new process; `steps` counts its steps, and `reached` is set once it waits to be killed."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.steps = _FORKS.Value("i", 0)
        self.reached = _FORKS.Event()
        self.process: BaseProcess = _FORKS.Process(
            target=_run, args=(name, folder, self.steps, self.reached), kwargs=options, daemon=True
        )
        self.process.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while self.process.is_alive() and not condition():
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.0005)

    def send(self, number: signal.Signals) -> None:
        """Send a signal and wait for the process to end."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.end()

    def end(self) -> int:
        """Wait for the process to end; return its exit code."""
        self.process.join(DEADLINE)
        assert self.process.exitcode is not None, "the process does not end"
        return self.process.exitcode


def _run(
    name: str,
    folder: Path,
    steps: Any,
    reached: Any,
    *,
    resume: bool = True,
    stop_at: tuple[str, int] | None = None,
    rank: tuple[int, int] | None = None,
    spoil: int | None = None,
    interrupt: tuple[int, ...] = (),
    **options: Any,
) -> None:
    """Train in the new process; the exit code is 3 after Ctrl-C, 4 after a loss that is not finite.

    Args:
        stop_at: The moment at which to wait to be killed, and at which of its occurrences.
        rank: Rank of this process of two, and their port.
        spoil: Index of an example whose input becomes NaN.
        interrupt: Steps at whose start Ctrl-C is sent.
    """
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=1)
    if rank is not None:
        fabric = _one_of_two(*rank)
    ours = task(name, **options)
    if spoil is not None:
        ours.train.inputs[spoil] = math.nan  # type: ignore[index]

    def watch(progress: Progress) -> None:
        steps.value += 1

    class Interrupted(MultisetObjective):
        def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
            for _ in range(interrupt.count(steps.value)):
                os.kill(os.getpid(), signal.SIGINT)
            return ours.objective.loss(predictor, batch, generator)

    if stop_at is not None:
        _wait_to_be_killed(*stop_at, reached)
    if fabric.global_rank > 0:
        sys.addaudithook(_forbid_writing(folder))
    try:
        fit(*ours._replace(objective=Interrupted()), folder, resume=resume, save_every=5, fabric=fabric, watch=watch)
    except KeyboardInterrupt:
        sys.exit(3)
    except NotFiniteError:
        sys.exit(4)
    if rank is not None:
        torch.save(weights(ours.predictor), folder.with_name(f"{folder.name}-rank-{fabric.global_rank}.pt"))


def _wait_to_be_killed(moment: str, left: int, reached: Any) -> None:
    """Wait when a file that matches `moment` would be moved into place, or when half of a checkpoint is written."""

    def stop() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            reached.set()
            time.sleep(DEADLINE)

    replace, write = Path.replace, checkpoint.write_whole

    def slow_replace(path: Path, target: Path) -> Path:
        if path.match(moment):
            stop()
        return replace(path, target)

    def slow_write(path: Path, content: Any) -> None:
        if path.name == checkpoint.CHECKPOINT:
            path.with_name(f"{path.name}.partial").write_bytes(content[: len(content) // 2])
            stop()
        write(path, content)

    if moment == "half a checkpoint":
        checkpoint.write_whole = slow_write
    else:
        Path.replace = slow_replace  # type: ignore[method-assign, assignment]


def _one_of_two(rank: int, port: int) -> Fabric:
    """Launch Fabric as one of two processes, with the environment variables that its launcher sets."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank)}
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    assert fabric.world_size == 2
    assert torch.distributed.get_world_size() == 2
    return fabric


def _forbid_writing(folder: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that allows no writes to the folder except this process's part of a bad batch."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(f"{folder}/") and "r" not in str(arguments[1]):
            assert "bad-batch-1" in str(arguments[0]), f"process 1 writes {arguments[0]}"

    return hook


@contextmanager
def pair(name: str, folder: Path, **options: Any) -> Iterator[tuple[Child, Child]]:
    """Run one training in two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = tuple(Child(name, folder, rank=(rank, port), **options) for rank in range(2))
    assert len(children) == 2
    yield children
    for child in children:
        child.process.kill()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    assert fabric.world_size == 2
    ours = task("plain")
    fit(*ours, folder, fabric=fabric)
    torch.save(weights(ours.predictor), folder.with_name(f"{folder.name}-rank-{fabric.global_rank}.pt"))
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
