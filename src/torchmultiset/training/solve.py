"""Training in closed form, for ridge regression."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.data import Examples
from torchmultiset.metrics import exact_match, f1
from torchmultiset.model.predictor import Predictor
from torchmultiset.training.checkpoint import BEST, EPOCHS, Progress
from torchmultiset.training.evaluation import evaluate

__all__ = ["solve"]


@torch.no_grad()
def solve(predictor: Predictor, train: Examples, validation: Examples, folder: str | Path) -> Progress:
    """Fit a predictor whose head has a method `solve`, such as `RidgeCounts`, and save it like the best epoch of `fit`.

    Args:
        predictor: Predictor to fit, in place; its encoder is not trained.
        train: Training examples.
        validation: Examples whose scores are recorded.
        folder: Folder for the weights and `epochs.jsonl`.

    Returns:
        Progress with one epoch.
    """
    head: Any = predictor.module
    what = "one whose head is fitted in closed form, such as one with the head RidgeCounts"
    check(hasattr(head, "solve"), "predictor", what, type(head).__name__)
    began = time.perf_counter()
    with predictor.evaluating():
        error = head.solve((predictor.encoder(batch.x) for batch in train.batches()), torch.from_numpy(train.counts))
    counts, target = evaluate(predictor, validation)
    em, mean_f1 = float(exact_match(counts, target).mean()), float(f1(counts, target).mean())
    seconds = time.perf_counter() - began
    line = {
        "epoch": 1,
        "loss": error,
        "validation_em": em,
        "validation_f1": mean_f1,
        "seconds": round(seconds, 3),
        "images_per_second": round(len(train) / seconds, 1),
    }
    folder = Path(folder)
    record = {"epoch": 1, "validation_em": em, "validation_f1": mean_f1}
    predictor.save(folder / BEST, record=record)
    write_whole(folder / EPOCHS, json.dumps(line) + "\n")
    return Progress(epoch=1, loss=error, best_em=em, best_f1=mean_f1, history=[line])
