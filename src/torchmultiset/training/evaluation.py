"""What a predictor makes of a whole split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.data import Examples
from torchmultiset.model.predictor import Predictor

__all__ = ["Evaluation", "evaluate"]


class Evaluation(NamedTuple):
    """Predictions for a whole split, in its order."""

    counts: Int64[Tensor, "n c"]
    target: Int64[Tensor, "n c"]


def evaluate(
    predictor: Predictor,
    examples: Examples,
    *,
    batch_size: int = 64,
    watch: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Predict a whole split, greedily.

    Args:
        predictor: What predicts, on the device where it is. On a CPU each core has batches of its own.
        examples: The split.
        batch_size: Examples at a time. With many, the memory of each batch is handed back to the system and asked for
            again, which costs threads more than larger batches save.
        watch: Called with the number of examples after each batch.

    Returns:
        Predicted and true counts (N, C), on the CPU.
    """
    check(batch_size >= 1, "batch_size", "at least 1", batch_size)
    device = next(predictor.parameters()).device
    everyone = np.arange(len(examples))
    batches = [everyone[start : start + batch_size] for start in range(0, len(examples), batch_size)]

    def predict(batch: np.ndarray) -> Tensor:
        with torch.inference_mode():
            return predictor.predict(examples.batch(batch).x.to(device)).cpu()

    counts = [torch.zeros(0, len(predictor.classes), dtype=torch.int64)]
    with predictor.evaluating():
        for predicted in _in_threads(predict, batches, torch.get_num_threads() if device.type == "cpu" else 1):
            counts.append(predicted)
            watch(len(predicted))
    return Evaluation(torch.cat(counts), torch.from_numpy(examples.counts))


def _in_threads(act: Callable[[np.ndarray], Tensor], batches: list[np.ndarray], threads: int) -> Iterator[Tensor]:
    """What it makes of each batch, in their order; a batch is one thread's, which is faster than sharing each."""
    if threads == 1 or len(batches) <= 1:
        yield from map(act, batches)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(act, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # part of it is not the thread's own
