"""Progress of training: bars on a terminal, and lines for the epochs of a run or the runs of a sweep."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from torchmultiset.pipeline.config import RunConfig
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.record import Watch, read_record
from torchmultiset.pipeline.standings import Standing, standings_table
from torchmultiset.pipeline.sweep import Snapshot, SweepResult, sweep
from torchmultiset.training.checkpoint import Progress

__all__ = ["PortfolioProgress", "SweepProgress", "TrainingProgress", "duration", "sweep_with_progress"]

_LINES = 20


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
        self.epochs = task.config.optim.last_epoch
        self.batch = task.config.optim.batch_size
        self.examples = len(task.splits["train"])
        self.scored = "training" if task.config.data.holdout == "none" else "validation"  # the scored split
        self.bar: TaskID | None = None
        self.printed = -1  # last epoch with a line
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
        state = f"epoch {epoch}/{self.epochs}  loss {loss}  {self.rate:,.0f} examples/s  best EM {best}"
        self.bars.update(self.bar, completed=seen, description=state)
        if progress.epoch > self.printed:
            self._print(progress)
            self.printed = progress.epoch

    def _print(self, progress: Progress) -> None:
        """Print a line for an epoch, for about twenty epochs in all; nothing on a terminal, which has a bar."""
        if self.console.is_terminal or (progress.epoch % -(-self.epochs // _LINES) and progress.epoch != self.epochs):
            return
        line = progress.history[-1]
        self.console.print(
            f"epoch {progress.epoch}/{self.epochs}  loss {line['loss']:.3f}"
            f"  {self.scored} EM {line['validation_em']:.3f}"
            f"  F1 {line['validation_f1']:.3f}  {time.strftime('%H:%M:%S')}",
            highlight=False,
        )


class SweepProgress:
    """Progress display of a sweep: a bar for all runs, one for each active run, and a line for each finished run.

    Args:
        console: Console to print to.
        folder: Folder of the run folders.
        total: Number of runs, finished ones included.
    """

    def __init__(self, console: Console, folder: Path, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[about]}"))
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self.console, self.folder, self.total = console, folder, total
        self.whole = self.bars.add_task("all runs", total=total, about="")
        self.parts: dict[str, TaskID] = {}

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, snapshot: Snapshot) -> None:
        """Update the display."""
        done = self.total - snapshot.waiting - snapshot.failed
        left = f", {duration(snapshot.seconds_left)} left" if snapshot.waiting else ""
        for number, name in enumerate(snapshot.ended, start=1 + done - len(snapshot.ended)):
            record = read_record(self.folder / name)
            split = "test" if "test" in record else "validation"
            scores = record[split]["overall"]
            self.console.print(
                f"{name}: {split} EM {scores['exact_match']:.3f}, F1 {scores['f1']:.3f},"
                f" {record['minutes']:.1f} min ({number} of {self.total} done{left})",
                highlight=False,
                soft_wrap=True,
            )
        failed = f", {snapshot.failed} failed" if snapshot.failed else ""
        trained = sum(running.share for running in snapshot.running)
        about = f"{done} of {self.total} done{failed}{left}"
        self.bars.update(self.whole, completed=done + snapshot.failed + trained, about=about)
        for gone in self.parts.keys() - {running.name for running in snapshot.running}:
            self.bars.remove_task(self.parts.pop(gone))
        for name, epoch, epochs, em, _, share in snapshot.running:
            if name not in self.parts:
                self.parts[name] = self.bars.add_task(name, total=1, about="")
            about = f"epoch {min(epoch + 1, epochs)}/{epochs}" + ("" if em is None else f", EM {em:.3f}")
            self.bars.update(self.parts[name], completed=share, about=about if epochs else "starting")


def sweep_with_progress(runs: Mapping[str, RunConfig], folder: Path, **options: Any) -> SweepResult:
    """Train runs with a progress display; after Ctrl-C, report that the same command resumes.

    Args:
        runs: As for `sweep`.
        folder: As for `sweep`.
        **options: Other arguments of `sweep`.
    """
    console = Console(stderr=True)
    try:
        with SweepProgress(console, folder, len(runs)) as shown:
            return sweep(runs, folder, watch=shown, progress=console.is_terminal, **options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("start the same command again to resume") from None


class PortfolioProgress:
    """Live leaderboard of a portfolio, with active runs and remaining time; plain lines without a terminal.

    Args:
        console: Console to print to.
        minutes: Time budget.
    """

    def __init__(self, console: Console, minutes: float) -> None:
        self.console, self.end = console, time.monotonic() + 60 * minutes
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, snapshot: Snapshot, standings: Sequence[Standing]) -> None:
        """Update the display."""
        seconds = self.end - time.monotonic()
        left = f", {duration(seconds)} left" if seconds > 0 else ""
        if not self.console.is_terminal:
            scores = {one.name: one for one in standings}
            for name in snapshot.ended:
                one = scores[name.split("/")[0]]  # of all parts of a cross-validation so far
                self.console.print(
                    f"{name} finished: EM {one.exact_match:.3f}, F1 {one.f1:.3f}"
                    f" on {one.examples:,} held-out examples{left}",
                    highlight=False,
                    soft_wrap=True,
                )
            return
        self.live.start()  # if it has not been started
        lines = [
            f"training {one.name}: epoch {min(one.epoch + 1, one.epochs)}/{one.epochs}"
            + ("" if one.em is None else f", exact match {one.em:.3f}, F1 {one.f1 or 0:.3f}")
            for one in snapshot.running
            if one.epochs
        ]
        text = Text("\n".join([*lines, f"{snapshot.waiting} runs remaining{left}"]), style="dim")
        self.live.update(Group(standings_table(standings), text), refresh=True)

    def stop(self) -> None:
        """Remove the display."""
        self.live.stop()


def duration(seconds: int | float | None) -> str:
    """Return a duration in words, rounded.

    Example:
        >>> duration(42), duration(600), duration(9000), duration(400_000)
        ('42 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds is None:
        return "unknown time"
    for unit, size, until in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86_400:.1f} days"
