"""The training loop, and evaluation.

Every random choice is drawn from (seed, epoch, step, process), and a checkpoint holds all the rest. So a run that was
killed and resumed ends with the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.config import OptimConfig
from torchmultiset.data import Batch, Examples
from torchmultiset.objectives import Objective
from torchmultiset.predictor import Predictor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Evaluation", "NotFiniteError", "Progress", "evaluate", "fit", "local_fabric"]

CHECKPOINT, EPOCHS, BEST, BAD_BATCH = "checkpoint.pt", "epochs.jsonl", "best", "bad-batch.pt"


class NotFiniteError(ValueError):
    """The loss became infinite or NaN."""


class Evaluation(NamedTuple):
    """Predictions for a whole split, in its order."""

    counts: Int64[Tensor, "n c"]
    target: Int64[Tensor, "n c"]


@dataclass
class Progress:
    """Where a run is; what a checkpoint keeps apart from weights and optimiser."""

    epoch: int = 0
    step: int = 0
    """Steps done in this epoch."""
    loss: float = math.nan
    """Of the last step."""
    loss_sum: float = 0.0
    """Of this epoch's steps."""
    best_em: float = -1.0
    """Best exact match on the validation data so far."""
    history: list[dict[str, float]] = field(default_factory=list)
    """A line for each epoch that is done."""


def local_fabric() -> Fabric:
    """One process on the CPU, or on the GPU if there is one: what `fit` uses unless it is told otherwise."""
    from lightning_fabric import Fabric

    return Fabric(devices=1)


def fit(
    predictor: Predictor,
    objective: Objective,
    train: Examples,
    validation: Examples,
    optim: OptimConfig,
    folder: str | Path,
    *,
    seed: int = 0,
    resume: bool = False,
    fabric: Fabric | None = None,
    save_every: int = 200,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Train a predictor; the weights that were best on the validation data are saved in ``folder/best``.

    Args:
        predictor: What is trained, in place; at the end it has the last weights, not the best.
        objective: How to roll in, and which loss.
        train: Examples to learn from.
        validation: Examples whose exact match, after each epoch, chooses the best weights.
        optim: How long, how fast.
        folder: For checkpoint, best weights and `epochs.jsonl`.
        seed: Of the order of the examples and of all sampling.
        resume: Go on from the checkpoint in the folder, if there is one.
        fabric: Devices, precision and processes; launched by the caller. One process if None.
        save_every: Steps between checkpoints; there is always one after an epoch.
        watch: Called after each step and each epoch.

    Returns:
        Where the run is at its end.
    """
    check(len(train) >= 1, "train", "at least one example", len(train))
    check(len(validation) >= 1, "validation", "at least one example", len(validation))
    fabric = fabric or local_fabric()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    per_epoch = _steps(len(train), optim.batch_size, fabric.world_size)
    adam = torch.optim.Adam(predictor.parameters(), lr=optim.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
    model, optimiser = fabric.setup(predictor, adam)
    schedule = _schedule(adam, optim, per_epoch * optim.epochs)
    progress = Progress()
    if resume and (folder / CHECKPOINT).exists():
        progress = _load(folder, fabric, predictor, adam, schedule)

    while progress.epoch < optim.epochs:
        model.train()
        batches = _batches(train, optim.batch_size, seed, progress.epoch, progress.step, per_epoch, fabric)
        for batch, share in batches:
            generator = _generator(fabric, seed, progress.epoch, progress.step, fabric.global_rank)
            plan = objective(batch, generator)
            loss = plan.loss(model(batch.x, plan.choose)) * share
            progress.loss = loss.item()
            if not math.isfinite(progress.loss):
                raise _not_finite(folder, batch, progress)
            optimiser.zero_grad()
            fabric.backward(loss)
            if optim.clip:
                fabric.clip_gradients(model, optimiser, max_norm=optim.clip, error_if_nonfinite=False)
            optimiser.step()
            schedule.step()
            progress.step += 1
            progress.loss_sum += progress.loss
            if progress.step % save_every == 0 and progress.step < per_epoch:
                _save(folder, fabric, predictor, adam, schedule, progress)
            watch(progress)
        _end_epoch(folder, fabric, predictor, validation, progress, per_epoch)
        _save(folder, fabric, predictor, adam, schedule, progress)
        watch(progress)
    return progress


def evaluate(
    predictor: Predictor,
    examples: Examples,
    *,
    batch_size: int = 256,
    watch: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Predict a whole split, greedily.

    Args:
        predictor: What predicts.
        examples: The split.
        batch_size: Examples at a time.
        watch: Called with the number of examples after each batch.
    """
    device = next(predictor.parameters()).device
    counts, target = [], []
    for start in range(0, len(examples), batch_size):
        batch = examples.batch(np.arange(start, min(start + batch_size, len(examples))))
        counts.append(predictor.predict(batch.x.to(device)).cpu())
        target.append(batch.target)
        watch(len(batch.target))
    return Evaluation(torch.cat(counts), torch.cat(target))


def _steps(examples: int, batch_size: int, processes: int) -> int:
    """Steps of an epoch: a last batch that has not an example for each process is left out."""
    whole, rest = divmod(examples, batch_size)
    check(batch_size >= processes, "batch_size", f"at least {processes}, one example for each process", batch_size)
    steps = whole + (rest >= processes)
    check(steps >= 1, "train", f"at least {processes} examples, one for each process", examples)
    return steps


def _batches(
    train: Examples, size: int, seed: int, epoch: int, done: int, steps: int, fabric: Fabric
) -> Iterator[tuple[Batch, float]]:
    """This process's part of each batch of the epoch, and what its mean loss weighs in the mean over processes."""
    order = np.random.default_rng([seed, epoch]).permutation(len(train))
    for step in range(done, steps):
        together = order[step * size : (step + 1) * size]
        mine = together[fabric.global_rank :: fabric.world_size]
        batch: Batch = fabric.to_device(train.batch(mine))
        yield batch, len(mine) * fabric.world_size / len(together)


def _generator(fabric: Fabric, *seeds: int) -> torch.Generator:
    drawn = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(fabric.device).manual_seed(drawn)


def _schedule(adam: torch.optim.Adam, optim: OptimConfig, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    if optim.schedule == "constant":
        return torch.optim.lr_scheduler.ConstantLR(adam, factor=1.0)
    # Momentum stays: cycling it, as is the default, gains nothing here.
    return torch.optim.lr_scheduler.OneCycleLR(
        adam, max_lr=optim.lr, total_steps=max(steps, 2), pct_start=0.1, cycle_momentum=False
    )


def _end_epoch(
    folder: Path, fabric: Fabric, predictor: Predictor, validation: Examples, progress: Progress, steps: int
) -> None:
    from torchmultiset.metrics import F1, ExactMatch

    em, f1 = ExactMatch().to(fabric.device), F1().to(fabric.device)
    mine = np.arange(fabric.global_rank, len(validation), fabric.world_size)
    for start in range(0, len(mine), 256):
        batch = validation.batch(mine[start : start + 256])
        target = fabric.to_device(batch.target)
        counts = predictor.predict(fabric.to_device(batch.x))
        em.update(counts, target)
        f1.update(counts, target)
    progress.epoch += 1
    line = {
        "epoch": progress.epoch,
        "loss": progress.loss_sum / steps,
        "validation_em": float(em.compute()),
        "validation_f1": float(f1.compute()),
    }
    progress.history.append(line)
    progress.step, progress.loss_sum = 0, 0.0
    if line["validation_em"] > progress.best_em:
        progress.best_em = line["validation_em"]
        if fabric.is_global_zero:
            predictor.save(folder / BEST, record={"epoch": progress.epoch, "validation_em": progress.best_em})


def _save(
    folder: Path,
    fabric: Fabric,
    predictor: Predictor,
    adam: torch.optim.Adam,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    progress: Progress,
) -> None:
    """Write the checkpoint beside, then put it in place at once: a kill leaves the old one or the new one."""
    if fabric.is_global_zero:
        _write_epochs(folder, progress)
        state = {
            "predictor": predictor.state_dict(),
            "adam": adam.state_dict(),
            "schedule": schedule.state_dict(),
            "random": torch.get_rng_state(),
            "progress": vars(progress),
        }
        temporary = folder / (CHECKPOINT + ".partial")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / CHECKPOINT)
    fabric.barrier()


def _load(
    folder: Path,
    fabric: Fabric,
    predictor: Predictor,
    adam: torch.optim.Adam,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> Progress:
    state: Mapping[str, Any] = torch.load(folder / CHECKPOINT, map_location=fabric.device, weights_only=True)
    predictor.load_state_dict(state["predictor"])
    adam.load_state_dict(state["adam"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"].cpu())
    return Progress(**state["progress"])


def _write_epochs(folder: Path, progress: Progress) -> None:
    """A line for each epoch; those that a checkpoint does not know will be made again."""
    temporary = folder / (EPOCHS + ".partial")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in progress.history))
    temporary.replace(folder / EPOCHS)


def _not_finite(folder: Path, batch: Batch, progress: Progress) -> NotFiniteError:
    torch.save(batch._asdict(), folder / BAD_BATCH)
    return NotFiniteError(
        f"the loss became {progress.loss} in epoch {progress.epoch + 1} at step {progress.step + 1}; the batch is in"
        f" {folder / BAD_BATCH}. Try a lower learning rate (lr), or clip the gradient (clip)"
    )
