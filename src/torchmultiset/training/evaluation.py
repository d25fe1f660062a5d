"""Predictions for a whole split."""

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

_LARGEST = 2**23
"""Maximum number of input values in a batch: 27 photographs of 320x320 pixels, whose feature maps take gigabytes."""


class Evaluation(NamedTuple):
    """Predicted and true counts of a whole split, in the order of its examples."""

    counts: Int64[Tensor, "n c"]
    """Predicted counts."""
    target: Int64[Tensor, "n c"]
    """True counts."""


def evaluate(
    predictor: Predictor,
    examples: Examples,
    *,
    batch_size: int = 64,
    watch: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Predict the multisets of a whole split with the predictor's own decoding.

    Args:
        predictor: The model. It stays on its device; on a CPU, every core processes its own batches.
        examples: Examples of the split.
        batch_size: Maximum number of examples per batch; of large images, fewer are processed at a time.
        watch: Called after each batch with its number of examples.

    Returns:
        Predicted and true counts (N, C), on the CPU.
    """
    check(batch_size >= 1, "batch_size", "at least 1", batch_size)
    device = next(predictor.parameters()).device
    order, lengths = np.arange(len(examples)), examples.lengths
    if lengths is not None:  # inputs of similar length share a batch, which reduces padding
        order = lengths.argsort(kind="stable")
    elif len(examples):
        batch_size = min(batch_size, max(_LARGEST // examples.inputs[order[:1]].size, 1))
    batches = [order[start : start + batch_size] for start in range(0, len(examples), batch_size)]

    def predict(batch: np.ndarray) -> Tensor:
        with torch.inference_mode():
            return predictor.predict(examples.batch(batch).x.to(device)).cpu()

    counts = [torch.zeros(0, len(predictor.classes), dtype=torch.int64)]
    with predictor.evaluating():
        for predicted in _in_threads(predict, batches, torch.get_num_threads() if device.type == "cpu" else 1):
            counts.append(predicted)
            watch(len(predicted))
    predictions = torch.cat(counts)
    if lengths is not None:
        predictions = predictions[torch.from_numpy(order.argsort())]
    return Evaluation(predictions, torch.from_numpy(examples.counts))


def _in_threads(act: Callable[[np.ndarray], Tensor], batches: list[np.ndarray], threads: int) -> Iterator[Tensor]:
    """Yield the result for each batch, in order. One batch per thread is faster than all threads sharing each batch."""
    if threads == 1 or len(batches) <= 1:
        yield from map(act, batches)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(act, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # part of the setting is global: the initializer changed it here as well
