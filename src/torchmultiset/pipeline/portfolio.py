"""State of a portfolio while it runs: its runs and the scores of its candidates."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchmultiset.pipeline.baselines import predict_baselines
from torchmultiset.pipeline.config import RunConfig
from torchmultiset.pipeline.prepare import Task, held_out
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.standings import STANDINGS, Standing, score
from torchmultiset.pipeline.sweep import FinishedRun, Running, Snapshot, Workers, is_finished, sweep
from torchmultiset.pipeline.workers import LOG

__all__ = ["CANDIDATES", "Portfolio"]

CANDIDATES = "candidates"
"""Folder of the runs of candidates, in that of the portfolio."""
_MOST_OF_IT, _FAR = 0.6, 0.2
"""Share of its epochs after which a run is stopped if its score is lower than the best one by more than this. The score
still rises while the learning rate falls, but by less."""


@dataclass
class Portfolio:
    """State of a portfolio while it runs."""

    config: RunConfig
    folder: Path
    minutes: float
    command: Sequence[str]
    say: Callable[[str], None]
    watch: Callable[[Snapshot, Sequence[Standing]], None]
    progress: bool
    began: float = field(default_factory=time.monotonic)
    about: dict[str, str] = field(default_factory=dict)
    """Descriptions of the candidates."""
    ridge: dict[str, Tensor] = field(default_factory=dict)
    """Counts that ridge regression predicts for held-out examples, by `DataConfig.holdout`."""
    trained: dict[str, list[FinishedRun]] = field(default_factory=dict)
    """Finished runs of each candidate."""
    standings: dict[str, Standing] = field(default_factory=dict)
    """Scores of the baselines and of the candidates so far."""
    holdout: str = "none"
    """`DataConfig.holdout` of a winner that is trained again: "validation" if there is no other data to test it."""

    @property
    def trained_on(self) -> str:
        """Data on which a winner is trained again, for messages."""
        return "the training data" if self.holdout == "validation" else "training and validation data together"

    @property
    def compared(self) -> bool:
        """Whether the winner was chosen before the portfolio was resumed; if so, no further candidates are trained."""
        return (self.folder / STANDINGS).exists()

    def add_baselines(self, task: Task, folds: int, *, validation: bool) -> None:
        """Score the baselines on the examples that candidates are compared on, and keep the predictions of ridge.

        Args:
            task: Data, prepared with the user's settings.
            folds: Number of parts of a cross-validation; 0: candidates are compared on the validation data.
            validation: Whether one candidate is compared on the validation data in any case.
        """
        parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
        holdouts = [f"{part}/{folds}" for part in range(1, folds + 1)] or ["validation"]
        for holdout in dict.fromkeys([*holdouts, *(["validation"] if validation else [])]):
            splits = task.splits if holdout == "validation" else held_out(task.splits, holdout)
            target = torch.from_numpy(splits["validation"].counts)
            predicted = predict_baselines(splits["train"], splits["validation"])
            self.ridge[holdout] = predicted["ridge"]
            for name, counts in predicted.items() if holdout in holdouts else ():
                parts.setdefault(name, []).append((counts, target))
        about = {"majority": "the most frequent multiset", "neighbour": "the nearest training example"}
        ridge = [self.ridge[holdout] for holdout in holdouts]
        for name, pairs in parts.items():
            title, what = f"{name} baseline", about.get(name, "regression of counts on pooled inputs")
            self.standings[title] = score(title, what, pairs, 0.0, ridge=ridge)

    def run(
        self, runs: Mapping[str, RunConfig], workers: Workers, seconds: float, *, keep: Collection[str] = ()
    ) -> dict[str, FinishedRun]:
        """Train runs within a time limit, extended until one candidate has finished.

        Runs that are far behind the best candidate when most of their epochs are done are stopped as well. Those in
        `keep` are never stopped.
        """
        folder, until = self.folder / CANDIDATES, time.monotonic() + seconds
        if self.compared:
            runs = {name: config for name, config in runs.items() if is_finished(folder / name)}
        if not runs:
            return {}

        def watch(snapshot: Snapshot) -> None:
            for name in snapshot.ended:
                self.add(FinishedRun(name, runs[name], folder / name, read_record(folder / name)))
            self.watch(snapshot, [*self.standings.values()])

        def stop(snapshot: Snapshot) -> list[str]:
            if not self.trained:
                return []
            late = time.monotonic() > until
            hopeless = {one.name for one in snapshot.running if self._is_hopeless(one)}
            return [name for name in runs if name not in keep and (late or name in hopeless)]

        result = sweep(
            runs, folder, workers=workers, command=self.command, watch=watch, stop=stop, progress=self.progress
        )
        for failure in result.failures:
            self.say(f"{failure.name} failed: {failure.reason}. Its log: {folder / failure.name / LOG}")
        for run in result.finished.values():
            self.add(run)
        return result.finished

    def _is_hopeless(self, run: Running) -> bool:
        """Return whether a run is far behind the best candidate, though most of its epochs are done."""
        if run.share < _MOST_OF_IT or run.em is None or run.f1 is None:
            return False
        best = max(self.standings[name].score for name in self.trained)
        return (run.em + run.f1) / 2 < best - _FAR

    def add(self, run: FinishedRun) -> None:
        """Add a finished run to the scores of its candidate, unless it is there."""
        name = run.name.split("/")[0]
        runs = self.trained.setdefault(name, [])
        if any(run.name == one.name for one in runs):
            return
        runs.append(run)
        minutes = sum(float(one.record["minutes"]) for one in runs)
        ridge = [self.ridge[one.config.data.holdout] for one in runs]
        self.standings[name] = score(name, self.about[name], [_counts(one) for one in runs], minutes, ridge=ridge)


def _counts(run: FinishedRun) -> tuple[Tensor, Tensor]:
    predicted, true = (torch.from_numpy(np.asarray(counts, dtype=np.int64)) for counts in run.counts("validation"))
    return predicted, true
