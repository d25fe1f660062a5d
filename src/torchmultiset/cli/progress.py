"""Progress of a training run: a bar on a terminal, and a line for each epoch everywhere."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.run import Watch
from torchmultiset.training.loop import Progress

__all__ = ["TrainingProgress"]


class TrainingProgress:
    """Progress display: epoch, loss, images per second, best exact match and remaining time.

    Args:
        console: Console to print to.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self.console = console

    def start(self, task: Task) -> Watch:
        """Start the display; call the returned object at the start, and after each step and each epoch."""
        self.epochs = task.config.optim.epochs
        self.batch = task.config.optim.batch_size
        self.examples = len(task.splits["train"])
        self.bar: TaskID | None = None
        self.printed = -1  # the last epoch with a line
        self.seen, self.since, self.rate = 0, time.monotonic(), 0.0
        self.bars.start()
        return self

    def stop(self) -> None:
        """Stop the display; its last state stays on the terminal."""
        self.bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Update the display."""
        seen = progress.seen(self.examples, self.batch)
        if self.bar is None:  # first call: a resumed run does not start at 0
            self.bar = self.bars.add_task("", total=self.epochs * self.examples, completed=seen)
            self.seen, self.since, self.printed = seen, time.monotonic(), progress.epoch
        now = time.monotonic()
        if now - self.since > 1:
            self.rate = (seen - self.seen) / (now - self.since)
            self.seen, self.since = seen, now
        best = f"{progress.best_em:.3f}" if progress.history else "-"
        loss = "-" if math.isnan(progress.loss) else f"{progress.loss:.3f}"
        epoch = min(progress.epoch + 1, self.epochs)
        state = f"epoch {epoch}/{self.epochs}  loss {loss}  {self.rate:,.0f} images/s  best EM {best}"
        self.bars.update(self.bar, completed=seen, description=state)
        if progress.epoch > self.printed:
            self._print(progress)
            self.printed = progress.epoch

    def _print(self, progress: Progress) -> None:
        line = progress.history[-1]
        self.console.print(
            f"epoch {progress.epoch}/{self.epochs}  loss {line['loss']:.3f}  validation EM {line['validation_em']:.3f}"
            f"  F1 {line['validation_f1']:.3f}  {time.strftime('%H:%M:%S')}",
            highlight=False,
        )
