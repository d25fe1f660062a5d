"""Cost of a training step of each objective, with the networks of the table "beyond", on one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.contestant import BATCH, CLASSES, SIDE
from benchmarks.timing import interleaved, peak_bytes
from paper.cells import Cell, all_cells
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.data import Batch
from torchmultiset.model.build import build_objective, build_predictor
from torchmultiset.multiset import from_labels


def training_step(cell: Cell, labels: int) -> tuple[Callable[[], object], int]:
    """Return a function that trains on a batch of random images, and the number of trainable weights."""
    torch.manual_seed(0)
    config, names = cell.config(), [str(digit) for digit in range(CLASSES)]
    predictor = build_predictor(
        config.model, config.objective, shape=(1, SIDE, SIDE), classes=names, max_size=labels, stop="fixed"
    )
    objective = build_objective(config.objective, predictor, seed=0)
    items = torch.randint(0, CLASSES, (BATCH, labels))
    images = torch.randint(0, 256, (BATCH, 1, SIDE, SIDE), dtype=torch.uint8)
    batch, generator = Batch(images, from_labels(items, CLASSES), items), torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(predictor.parameters(), fused=True)

    def act() -> None:
        loss = objective.loss(predictor, batch, generator)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()

    return act, sum(weight.numel() for weight in predictor.parameters())


def measure(data_set: str, labels: int) -> list[dict[str, Any]]:
    """Measure each objective of a data set; return one row per objective."""
    cells = {cell.tables["beyond"].row: cell for cell in all_cells("small", ["beyond"]) if cell.data_set == data_set}
    made = {row: training_step(cell, labels) for row, cell in cells.items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = interleaved({row: step for row, (step, _) in made.items()}, repeats=7)
    torch.set_num_threads(threads)
    return [
        {
            "objective": row,
            "steps": labels,
            "images/s": BATCH / seconds[row],
            "peak_mb": peak_bytes(step) / 1e6,
            "parameters": parameters,
        }
        for row, (step, parameters) in made.items()
    ]


def measure_all() -> list[dict[str, Any]]:
    """Measure the objectives on both data sets."""
    keep_freed_memory()
    return [*measure("mnist-multi-4", 4), *measure("mnist-multi-10", 10)]
