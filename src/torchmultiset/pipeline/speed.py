"""Measures how fast a config trains, so that a time budget can be turned into a number of epochs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from torchmultiset.model.build import build_objective
from torchmultiset.pipeline.config import RunConfig
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.run import build

__all__ = ["seconds_per_example"]

_STEPS = 4
"""Number of measured training steps, after one for warm-up."""


def seconds_per_example(config: RunConfig, *, threads: int) -> float:
    """Measure the seconds of a training step per example, without augmentation.

    Args:
        config: Settings of a run.
        threads: Threads that training will use.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        task = prepare(replace(config, optim=replace(config.optim, epochs=1)))
        predictor = build(task).train()
        objective = build_objective(task.config.objective, predictor, seed=0)
        train = task.splits["train"]
        batch = train.batch(np.arange(min(task.config.optim.batch_size, len(train))))
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
    return float(np.median(seconds[1:])) / len(batch.x)
