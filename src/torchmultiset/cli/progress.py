"""How a training run is shown while it goes: a bar on a terminal, and a line for each epoch anywhere."""

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
    """Shows epoch, loss, images a second, best exact match and the time that is left.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self.console = console

    def start(self, task: Task) -> Watch:
        """Begin; what it gives is to be called at the start, and after each step and each epoch."""
        self.epochs = task.config.optim.epochs
        self.batch = task.config.optim.batch_size
        self.examples = len(task.splits["train"])
        self.bar: TaskID | None = None
        self.told = -1
        self.seen, self.since, self.rate = 0, time.monotonic(), 0.0
        self.bars.start()
        return self

    def stop(self) -> None:
        """End; the last state stays on the terminal."""
        self.bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Show where the run is."""
        seen = progress.seen(self.examples, self.batch)
        if self.bar is None:  # the start: a run that was resumed does not begin at 0
            self.bar = self.bars.add_task("", total=self.epochs * self.examples, completed=seen)
            self.seen, self.since, self.told = seen, time.monotonic(), progress.epoch
        now = time.monotonic()
        if now - self.since > 1:
            self.rate = (seen - self.seen) / (now - self.since)
            self.seen, self.since = seen, now
        best = f"{progress.best_em:.3f}" if progress.history else "-"
        loss = "-" if math.isnan(progress.loss) else f"{progress.loss:.3f}"
        epoch = min(progress.epoch + 1, self.epochs)
        state = f"epoch {epoch}/{self.epochs}  loss {loss}  {self.rate:,.0f} images/s  best EM {best}"
        self.bars.update(self.bar, completed=seen, description=state)
        if progress.epoch > self.told:
            self._tell(progress)
            self.told = progress.epoch

    def _tell(self, progress: Progress) -> None:
        line = progress.history[-1]
        self.console.print(
            f"epoch {progress.epoch}/{self.epochs}  loss {line['loss']:.3f}  validation EM {line['validation_em']:.3f}"
            f"  F1 {line['validation_f1']:.3f}  {time.strftime('%H:%M:%S')}",
            highlight=False,
        )
