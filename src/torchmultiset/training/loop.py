"""The training loop.

All random numbers derive from (seed, epoch, step, process), and a checkpoint holds the rest of the state. A run that
was killed and resumed therefore ends with the same weights, bit for bit, as an uninterrupted one.

With several processes, each takes a part of every batch, and gradients are averaged so that a step equals that of the
whole batch. Batch normalisation is the exception: each process normalises over its own part, and the running statistics
of process 0 are saved.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, OneCycleLR

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.data import Batch, Examples
from torchmultiset.data.augment import AUGMENTATIONS, smooth_labels
from torchmultiset.data.photos import PHOTO_FAMILIES, PhotoAugmentation
from torchmultiset.encoders.optional import parameter_groups
from torchmultiset.metrics import exact_match, f1
from torchmultiset.model.objectives import Objective
from torchmultiset.model.predictor import Predictor
from torchmultiset.training.checkpoint import BEST, Checkpoint, MovingAverage, Progress
from torchmultiset.training.config import OptimConfig, Selection
from torchmultiset.training.evaluation import evaluate

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["NotFiniteError", "fit", "local_fabric"]

BAD_BATCH = "bad-batch.pt"
_AT_A_TIME = 64
"""Number of validation examples whose loss is computed at a time."""
_WINDOW = 32
"""Number of batches whose examples are sorted by length."""


class NotFiniteError(ValueError):
    """The loss or its gradient became infinite or NaN."""


def local_fabric() -> Fabric:
    """Return a Fabric with one process, on an NVIDIA GPU if available, else on the CPU: the default of `fit`."""
    return make_fabric(devices=1)


def make_fabric(**settings: Any) -> Fabric:
    """Return a Fabric on NVIDIA GPUs if available, else on the CPU.

    Other accelerators are not used: they lack double precision, which count heads need.

    Args:
        settings: Arguments of Fabric.
    """
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # hides one start-up message per process
    return Fabric(**{"accelerator": "cuda" if torch.cuda.is_available() else "cpu"} | settings)


def fit(
    predictor: Predictor,
    objective: Objective,
    train: Examples | Callable[[int], Examples],
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
    """Train a predictor, and save the weights with the best validation score in ``folder/best``.

    Ctrl-C finishes the current step, writes a checkpoint and raises `KeyboardInterrupt`; a second Ctrl-C interrupts
    immediately.

    Args:
        predictor: Model to train in place. It ends with the weights of the last epoch, not of the best.
        objective: Training objective.
        train: Training examples; or a function from an epoch, starting at 0, to its training examples, whose number
            must not change.
        validation: Examples that select the best epoch. Unless ``optim.select`` is set, it is the one with the
            highest exact match, the earliest in case of a tie; while exact match is 0, the one with the highest F1.
        optim: Optimiser settings.
        folder: Folder for the checkpoint, the best weights and `epochs.jsonl`; written by process 0.
        seed: Seed of the order of the examples and of all sampling. PyTorch's global generator is seeded from it at
            every step.
        resume: Resume from the checkpoint in the folder, if any. All other arguments must be the same as before.
        fabric: Devices, precision and processes; launched by the caller. None: `local_fabric()`.
        save_every: Number of steps between checkpoints; one is also written after every epoch.
        watch: Called at the start and after every step and epoch, in every process.

    Returns:
        State of the run at its end.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is False.
        NotFiniteError: The loss or its gradient became infinite or NaN. The batch is saved in the folder.
    """
    examples = _examples(train, 0, predictor)
    optim = optim.resolved(len(examples))
    _check_examples("validation", validation, predictor)
    check(save_every >= 1, "save_every", "at least 1", save_every)
    check(seed >= 0, "seed", "at least 0", seed)
    joined = optim.augment in PHOTO_FAMILIES or examples.tokens is not None  # the caller joins tokens: `joined_epochs`
    what = "0 unless augment is one of those for photographs, or the inputs are text, sets or sequences"
    check(joined or not optim.mosaic, "mosaic", what, optim.mosaic)
    augment = AUGMENTATIONS.get(optim.augment) or PhotoAugmentation(
        PHOTO_FAMILIES[optim.augment], mosaic=optim.mosaic, max_size=predictor.max_size
    )
    fabric = fabric or local_fabric()
    # A fused Adam would hide the unscaled gradients of half precision.
    scaled = getattr(fabric.strategy.precision, "scaler", None) is not None
    adam = torch.optim.AdamW(_groups(predictor, optim.lr, optim.weight_decay), lr=optim.lr, fused=not scaled)
    model, optimiser = fabric.setup(_Training(predictor, objective), adam)
    steps = math.ceil(len(examples) / optim.batch_size)
    schedule = _schedule(adam, optim, optim.epochs * steps)
    settings = {"seed": seed, "examples": len(examples), **asdict(optim)}
    del settings["precision"]  # set by the fabric; a run may be resumed in another one
    average = MovingAverage(predictor, optim.ema) if optim.ema else None
    checkpoint = Checkpoint(Path(folder), fabric, predictor, average, adam, schedule, settings)
    progress = checkpoint.load(resume=resume)
    watch(progress)

    by_loss = optim.select == "loss"
    with _deferred_interrupt() as interrupt:
        while progress.epoch < optim.last_epoch and not (optim.patience and progress.since_best >= optim.patience):
            model.train()
            began = time.perf_counter() - progress.seconds
            examples = _examples(train, progress.epoch, predictor)
            for batch, share in _batches(examples, optim.batch_size, seed, progress, fabric):
                generator = _generator(fabric, seed, progress.epoch, progress.step, fabric.global_rank)
                batch = augment(batch, generator)
                if optim.label_smoothing:
                    batch = smooth_labels(batch, generator, probability=optim.label_smoothing)
                loss = model(batch, generator) * share
                optimiser.zero_grad()
                fabric.backward(loss)
                # Without a bound, the norm is only computed.
                norm = fabric.clip_gradients(
                    model, optimiser, max_norm=optim.clip or math.inf, error_if_nonfinite=False
                )
                progress.loss, stopped = _over_processes(fabric, interrupt.with_loss(loss), "mean").tolist()
                # A gradient scaler skips steps with an infinite gradient.
                if not math.isfinite(progress.loss + (0.0 if scaled or norm is None else norm.item())):
                    raise _not_finite(checkpoint, batch, progress)
                optimiser.step()
                schedule.step()
                if average is not None:
                    average.update_parameters(predictor)
                progress.step += 1
                progress.loss_sum += progress.loss
                progress.seconds = time.perf_counter() - began
                watch(progress)
                if progress.step % save_every == 0 or stopped:
                    checkpoint.save(progress)
                if stopped:
                    raise _stop(fabric)
            loss = _validation_loss(checkpoint, objective, validation, seed, progress) if by_loss else math.inf
            _end_epoch(checkpoint, validation, progress, len(examples), optim.select, loss)
            checkpoint.save(progress)
            watch(progress)
            if _over_processes(fabric, torch.tensor(float(interrupt.pending)), "sum"):
                raise _stop(fabric)
    fabric.barrier()
    return progress


class _Training(nn.Module):
    """Module whose forward pass is the loss of a predictor: distributed training wraps exactly one forward pass."""

    def __init__(self, predictor: Predictor, objective: Objective) -> None:
        super().__init__()
        self.predictor, self.objective = predictor, objective

    def forward(self, batch: Batch, generator: torch.Generator) -> Tensor:
        return self.objective.loss(self.predictor, batch, generator)


def _examples(train: Examples | Callable[[int], Examples], epoch: int, predictor: Predictor) -> Examples:
    """Return the training examples of an epoch, checked."""
    examples = train(epoch) if callable(train) else train
    _check_examples("train", examples, predictor)
    largest = int((examples.labels >= 0).sum(1).max())
    if largest > predictor.max_size:
        raise ValueError(
            f"train contains a multiset of {largest} labels, but the predictor emits at most {predictor.max_size}:"
            f" build it with max_size={largest}, or remove such examples"
        )
    return examples


def _check_examples(name: str, examples: Examples, predictor: Predictor) -> None:
    check(len(examples) >= 1, name, "at least one example", len(examples))
    check(examples.classes == predictor.classes, name, f"of the classes {predictor.classes}", examples.classes)


def _batches(
    train: Examples, size: int, seed: int, progress: Progress, fabric: Fabric
) -> Iterator[tuple[Batch, float]]:
    """Yield this process's part of each remaining batch of the epoch, with its weight in the mean over processes."""
    rng = np.random.default_rng([seed, progress.epoch])
    order = rng.permutation(len(train))
    if train.lengths is not None:
        order = _near(order, train.lengths, size, rng)
    for start in range(progress.step * size, len(train), size):
        together = order[start : start + size]
        part = together[fabric.global_rank :: fabric.world_size]
        # A process without examples still takes part, with weight 0, since the others would wait for it.
        batch: Batch = fabric.to_device(train.batch(part if len(part) else together[:1]))
        yield batch, len(part) * fabric.world_size / len(together)


def _near(
    order: Int64[np.ndarray, " n"], lengths: Int64[np.ndarray, " n"], size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Change a random order so that inputs of similar length share a batch, which reduces padding."""
    window = _WINDOW * size
    parts = [order[start : start + window] for start in range(0, len(order), window)]
    near = np.concatenate([part[lengths[part].argsort(kind="stable")] for part in parts])
    whole = len(near) - len(near) % size  # the last batch may be smaller, and stays the last
    return np.concatenate([rng.permutation(near[:whole].reshape(-1, size)).ravel(), near[whole:]])


def _groups(predictor: Predictor, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups: an encoder may have its own learning rates; vectors have no weight decay."""
    own = parameter_groups(predictor.encoder, lr)
    rates = {id(parameter): group["lr"] for group in own for parameter in group["params"]}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in predictor.parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rates.get(id(parameter), lr), decay), []).append(parameter)
    return [{"params": some, "lr": rate, "weight_decay": decay} for (rate, decay), some in groups.items()]


def _generator(fabric: Fabric, *place: int) -> torch.Generator:
    """Return the generator of a step, and seed PyTorch's global generator, which dropout uses."""
    for_dropout, for_objective = np.random.SeedSequence(place).generate_state(2, np.uint64) >> np.uint64(1)
    # On the CPU, torch.manual_seed would also look for other devices, which takes longer than everything else here.
    (torch.default_generator if fabric.device.type == "cpu" else torch).manual_seed(int(for_dropout))
    return torch.Generator(fabric.device).manual_seed(int(for_objective))


def _schedule(adam: torch.optim.AdamW, optim: OptimConfig, steps: int) -> LRScheduler:
    if optim.schedule == "constant":
        return ConstantLR(adam, factor=1.0)
    # By default the momentum is also cycled, which does not help here. With ten steps or fewer, the rise over a tenth
    # of them would divide by zero, so a cycle has at least eleven.
    peaks = [group["lr"] for group in adam.param_groups]
    return OneCycleLR(adam, max_lr=peaks, total_steps=max(steps, 11), pct_start=0.1, cycle_momentum=False)


def _end_epoch(
    checkpoint: Checkpoint, validation: Examples, progress: Progress, examples: int, select: Selection, loss: float
) -> None:
    """Validate, add the record of the epoch, and save the weights if they are the best so far."""
    predictor = checkpoint.validated
    em, mean_f1 = _validate(predictor, validation, checkpoint.fabric)
    progress.epoch += 1
    progress.history.append(
        {
            "epoch": progress.epoch,
            "loss": progress.loss_sum / progress.step,
            "validation_em": em,
            "validation_f1": mean_f1,
            **({"validation_loss": loss} if math.isfinite(loss) else {}),
            "seconds": round(progress.seconds, 3),
            "images_per_second": round(examples / progress.seconds, 1),
        }
    )
    progress.step, progress.loss_sum, progress.seconds = 0, 0.0, 0.0
    progress.since_best += 1
    better = loss < progress.best_loss
    if select != "loss":
        better = _better(select, (em, mean_f1), (progress.best_em, progress.best_f1))
    if better:
        progress.best_em, progress.best_f1, progress.best_loss, progress.since_best = em, mean_f1, loss, 0
        if checkpoint.fabric.is_global_zero:
            record = {"epoch": progress.epoch, "validation_em": em, "validation_f1": mean_f1}
            predictor.save(checkpoint.folder / BEST, record=record)


def _better(select: Selection, now: tuple[float, float], best: tuple[float, float]) -> bool:
    """Return whether (exact match, F1) of this epoch is strictly better than the best so far."""
    if select == "last":
        return True
    if select == "score":
        return sum(now) > sum(best)
    return now[0] > best[0] or (now[0] == 0 == best[0] and now[1] > best[1])


@torch.no_grad()
def _validation_loss(
    checkpoint: Checkpoint, objective: Objective, validation: Examples, seed: int, progress: Progress
) -> float:
    """Return the mean loss on the validation data; each process computes that of a part of the examples.

    Examples of a size that is never predicted are left out: their loss would always be infinite.
    """
    predictor, fabric = checkpoint.validated, checkpoint.fabric
    sizes = validation.counts.sum(1)
    possible = np.flatnonzero((sizes >= predictor.min_size) & (sizes <= predictor.max_size))
    part = possible[fabric.global_rank :: fabric.world_size]
    generator = _generator(fabric, seed, progress.epoch, progress.step, fabric.global_rank)
    total = torch.zeros((), dtype=torch.float64)
    with predictor.evaluating():
        for some in validation.subset(part).batches(_AT_A_TIME):
            batch: Batch = fabric.to_device(some)
            total += len(batch.x) * objective.loss(predictor, batch, generator).double().cpu()
    return float(_over_processes(fabric, total, "sum")) / max(len(possible), 1)


def _validate(predictor: Predictor, validation: Examples, fabric: Fabric) -> tuple[float, float]:
    """Return mean exact match and F1; each process predicts a part of the examples."""
    for buffer in predictor.buffers():
        buffer.copy_(fabric.broadcast(buffer.cpu()))  # all processes validate what process 0 saves
    part = validation.subset(np.arange(fabric.global_rank, len(validation), fabric.world_size))
    counts, target = evaluate(predictor, part)
    sums = torch.stack([exact_match(counts, target).sum(), f1(counts, target).sum()])
    em, mean_f1 = (total / len(validation) for total in _over_processes(fabric, sums, "sum").tolist())
    return em, mean_f1


def _over_processes(fabric: Fabric, values: Tensor, how: Literal["mean", "sum"]) -> Tensor:
    reduced = fabric.all_reduce(fabric.to_device(values.detach().clone()), reduce_op=how)  # in place
    assert isinstance(reduced, Tensor)
    return reduced


class _Interrupt:
    """State of a deferred Ctrl-C."""

    pending = False
    """Whether Ctrl-C was pressed."""

    def with_loss(self, loss: Tensor) -> Tensor:
        """Return the loss and the flag in one tensor: reduced together, they stop all processes after the same step."""
        return torch.stack([loss.detach(), loss.new_tensor(float(self.pending))])


@contextmanager
def _deferred_interrupt() -> Iterator[_Interrupt]:
    """Defer Ctrl-C to the end of a step; a second Ctrl-C is not deferred."""
    interrupt = _Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def defer(*_: object) -> None:
        interrupt.pending = True
        signal.signal(signal.SIGINT, before)

    # Only Python's default handler is replaced, and only the main thread may do so.
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    signal.signal(signal.SIGINT, defer)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(fabric: Fabric) -> KeyboardInterrupt:
    """Wait for all processes: the first to exit terminates the others, and process 0 must have saved by then."""
    fabric.barrier()
    return KeyboardInterrupt()


def _not_finite(checkpoint: Checkpoint, batch: Batch, progress: Progress) -> NotFiniteError:
    """Save this process's part of the batch, and return the error to raise."""
    fabric, path = checkpoint.fabric, checkpoint.folder / BAD_BATCH
    if fabric.world_size > 1:
        path = path.with_stem(f"{path.stem}-{fabric.global_rank}")
    write_whole(path, lambda file: torch.save(batch._asdict(), file))
    what = f"the loss became {progress.loss}" if not math.isfinite(progress.loss) else "the gradient became infinite"
    return NotFiniteError(
        f"{what} in epoch {progress.epoch + 1} at step {progress.step + 1}; the batch is saved in {path}."
        " Try a lower learning rate (lr), or clip the gradient (clip)"
    )
