"""Measures how fast a config trains, so that a time budget can be turned into a number of epochs."""

from __future__ import annotations

import time

import numpy as np
import torch
from jaxtyping import Int64

from torchmultiset.data import Examples
from torchmultiset.model.build import build_objective
from torchmultiset.pipeline.config import RunConfig, changed
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.run import untrained_predictor

__all__ = ["fitting_epochs", "seconds_per_example"]

_STEPS = 4
"""Number of measured training steps, after one for warm-up."""
_OVERHEAD = 1.3
"""Time of an epoch divided by that of its steps alone, without augmentation, optimiser and validation."""


def fitting_epochs(config: RunConfig, seconds: float, *, examples: int, threads: int) -> int:
    """Measure a few training steps, and return the number of epochs for which there is time, at least 1.

    Args:
        config: Settings of a run.
        seconds: Time for training.
        examples: Number of training examples.
        threads: Threads that training will use.
    """
    return max(1, int(seconds / (_OVERHEAD * seconds_per_example(config, threads=threads) * examples)))


def seconds_per_example(config: RunConfig, *, threads: int) -> float:
    """Measure the seconds of a training step per example, without augmentation: the fastest of a few steps.

    The fastest one is the least disturbed by other programs.

    Args:
        config: Settings of a run.
        threads: Threads that training will use.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        task = prepare(changed(config, {"epochs": 1}))
        predictor = untrained_predictor(task).train()
        objective = build_objective(task.config.objective, predictor, seed=0)
        train = task.splits["train"]
        if task.fresh is not None and train.tokens is not None:  # joined inputs are longer
            train = task.fresh(0)
        batch = train.batch(_typical(train, task.config.optim.batch_size))
        mixed = task.config.optim.precision == "bf16-mixed"
        seconds = []
        for _ in range(1 + _STEPS):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = objective.loss(predictor, batch, torch.Generator().manual_seed(0))
            loss.backward()  # type: ignore[no-untyped-call]
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return min(seconds[1:]) / len(batch.x)


def _typical(examples: Examples, size: int) -> Int64[np.ndarray, " b"]:
    """Return the indices of a batch: the first examples or, if lengths vary, some of about the mean length."""
    lengths, size = examples.lengths, min(size, len(examples))
    if lengths is None:
        return np.arange(size)
    order = lengths.argsort(kind="stable")
    middle = int(np.searchsorted(lengths[order], lengths.mean()))
    start = min(max(middle - size // 2, 0), len(order) - size)
    return order[start : start + size]
