"""Keeps the record of a run up to date during training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from torchmultiset.pipeline.record import write_record
from torchmultiset.training.checkpoint import Progress

__all__ = ["Journal", "Watch"]

Watch: TypeAlias = Callable[[Progress], None]


class Journal:
    """Updates ``run.json`` and TensorBoard after each epoch, and passes progress on to another function.

    Args:
        folder: Run folder.
        record: Content of ``run.json``.
        watch: Function to pass progress on to.
    """

    def __init__(self, folder: Path, record: dict[str, Any], watch: Watch) -> None:
        self.folder, self.record, self.watch = folder, record, watch
        self.minutes, self.start, self.epochs = record["minutes"], time.monotonic(), -1

    def __call__(self, progress: Progress) -> None:
        """Update the record after an epoch, and pass the progress on."""
        if self.epochs < 0:
            self.epochs = len(progress.history)
        if len(progress.history) > self.epochs:
            self.update()
            _tensorboard(self.folder, progress.history[self.epochs :])
            self.epochs = len(progress.history)
        self.watch(progress)

    def update(self) -> None:
        """Write the record with the minutes so far."""
        self.record["minutes"] = round(self.minutes + (time.monotonic() - self.start) / 60, 3)
        write_record(self.folder, self.record)


def _tensorboard(folder: Path, lines: Sequence[Mapping[str, int | float]]) -> None:
    if find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for line in lines:
            for name in line.keys() - {"epoch"}:
                writer.add_scalar(name, line[name], int(line["epoch"]))
