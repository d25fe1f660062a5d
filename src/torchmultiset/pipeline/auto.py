"""Automatic training: try a portfolio of candidates under a time budget, and keep the winner.

::

    folder/
      portfolio.json          data, budget and candidates; a resumed portfolio reads it
      candidates/<name>/...   run folders, as `pipeline.sweep` writes them
      leaderboard.json        validation scores of all candidates, and of the baselines
      model/, run.json, ...   the winner, as `multiset train` leaves any run

Candidates are compared on examples that they were not trained on: by cross-validation if there are few examples, else
on the validation data. The score of an example is the mean of its exact match and F1. With cross-validation, the winner
is trained again on training and validation data together. The test data is used once, for the winner.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.pipeline.baselines import predict_baselines
from torchmultiset.pipeline.candidates import Candidate, candidates, finetuned
from torchmultiset.pipeline.config import RunConfig, config_of, to_dict
from torchmultiset.pipeline.finish import Result, compare_with_baselines
from torchmultiset.pipeline.journal import Watch
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.prepare import Task, held_out, prepare
from torchmultiset.pipeline.record import data_record, portable_command, read_json, read_record, write_record
from torchmultiset.pipeline.run import train
from torchmultiset.pipeline.speed import seconds_per_example
from torchmultiset.pipeline.standings import Standing, read_standings, score, write_standings
from torchmultiset.pipeline.sweep import FinishedRun, Snapshot, Workers, sweep
from torchmultiset.pipeline.workers import LOG, PROGRESS
from torchmultiset.training.evaluation import Evaluation

__all__ = ["CANDIDATES", "MINUTES", "PORTFOLIO", "train_portfolio"]

MINUTES = 10.0
"""Default time budget, on two cores."""
PORTFOLIO, CANDIDATES = "portfolio.json", "candidates"
_SMALL = 1_000
"""Number of training and validation examples below which candidates are cross-validated."""
_FOLDS = 3
_BEST = 2
"""Number of candidates that are trained on all parts of a cross-validation; the others only on the first."""
_FROZEN_SHARE = 0.25
"""Share of the budget that candidates with frozen features may take if fine-tuning follows."""
_FINETUNE_SHARE = 0.6
"""Share of the budget for fine-tuning; the rest is for reading data, testing and pictures."""
_ALONE_SHARE = 0.8
"""Share of the budget for training if there is only one stage, frozen or fine-tuned."""
_OVERHEAD = 1.3
"""Time of an epoch divided by that of its steps alone, without augmentation, optimiser and validation."""
_LEAST_MINUTES = 3.0
"""Budget below which no backbone is fine-tuned."""


@dataclass
class _Portfolio:
    """State of a portfolio while it runs."""

    config: RunConfig
    folder: Path
    minutes: float
    command: Sequence[str]
    say: Callable[[str], None]
    watch: Callable[[Snapshot, Sequence[Standing]], None]
    progress: bool
    standings: list[Standing]

    def run(self, runs: Mapping[str, RunConfig], workers: Workers, seconds: float) -> dict[str, FinishedRun]:
        """Train runs for a limited time, but at least until one of them is finished."""
        until = time.monotonic() + seconds
        done: list[str] = []

        def stop(snapshot: Snapshot) -> list[str]:
            done.extend(snapshot.ended)
            return [one.name for one in snapshot.running] if done and time.monotonic() > until else []

        while True:
            folder = self.folder / CANDIDATES
            result = sweep(
                runs,
                folder,
                workers=workers,
                command=self.command,
                watch=lambda snapshot: self.watch(snapshot, self.standings),
                stop=stop,
                progress=self.progress,
            )
            if result.finished or not result.stopped:
                for failure in result.failures:
                    self.say(f"{failure.name} failed: {failure.reason}. Its log: {folder / failure.name / LOG}")
                return result.finished


def train_portfolio(
    config: RunConfig,
    folder: str | Path,
    *,
    minutes: float = MINUTES,
    only: Sequence[Candidate] | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
    progress: bool = False,
    say: Callable[[str], None] = lambda _: None,
    watch: Callable[[Snapshot, Sequence[Standing]], None] = lambda *_: None,
    watch_winner: Callable[[Task], Watch] = lambda _: lambda _: None,
) -> tuple[Result, list[Standing]]:
    """Try candidates under a time budget, and leave the winner in the folder.

    Args:
        config: Settings that all candidates share; the objective is not set.
        folder: Folder for the winner and all candidates.
        minutes: Time budget. The best guess is always trained to the end.
        only: Candidates to try instead of those for the data, without a time limit.
        resume: Resume the portfolio in the folder, if there is one. No finished candidate is trained again.
        command: Command line for the records.
        progress: Show progress bars while data is read.
        say: Called with progress messages.
        watch: Called with a snapshot and the standings so far while candidates are trained.
        watch_winner: As for `train`, while the winner is trained again.

    Returns:
        The result of the winner, and the leaderboard, best first.

    Raises:
        FileExistsError: The folder holds a training run, and `resume` is not set.
        ValueError: The settings or the data are wrong.
    """
    folder = Path(folder)
    check(minutes > 0, "minutes", "above 0", minutes)
    record = read_record(folder)
    if record.get("finished") and resume:
        return Result(record, None), read_standings(folder)
    if (folder / PORTFOLIO).exists() and not resume:
        raise FileExistsError(
            f"{folder} already holds a training run: resume it (--resume), or choose another folder (--out)"
        )
    task = prepare(config, progress=progress)
    here = _Portfolio(config, folder, minutes, command, say, watch, progress, [])
    plan, tuned = _plan(here, task, only)
    examples = len(task.splits["train"]) + len(task.splits["validation"])
    folds = _FOLDS if examples < _SMALL else 0
    how = f"by {folds}-fold cross-validation" if folds else f"on {len(task.splits['validation']):,} validation examples"
    number, budget = len(plan) + (tuned is not None), f"{minutes:g} minute{'s' * (minutes != 1)} in total"
    say(f"Comparing {number} candidate{'s' * (number != 1)} and 3 baselines {how}, {budget}.")
    here.standings = _baselines(task, folds)
    runs: dict[str, RunConfig] = {}
    if plan:
        runs = _try(here, plan, folds, tuned is not None, clock=only is None)
    if tuned is not None:
        runs |= _finetune(here, tuned)
    standings = sorted(here.standings, key=lambda standing: -standing.score)
    write_standings(folder, standings)
    winner = next(standing.name for standing in standings if standing.name in runs)
    result = _keep(here, winner, runs[winner], folds, watch_winner)
    return result, standings


def _plan(here: _Portfolio, task: Task, only: Sequence[Candidate] | None) -> tuple[list[Candidate], Candidate | None]:
    """Return the candidates and the one to fine-tune; a resumed portfolio reads them from its folder."""
    path, data = here.folder / PORTFOLIO, data_record(str(here.config.data.data))
    saved = read_json(path)
    if saved:
        if saved["data"]["sha256"] != data["sha256"]:
            raise ValueError(
                f"the data has changed since the portfolio in {here.folder} was started: choose another --out"
            )
        given = [Candidate(**one) for one in saved["candidates"]]
        return given, None if saved["finetuned"] is None else Candidate(**saved["finetuned"])
    wanted = here.config.data.finetune != "none"  # then nothing else is tried
    plan = [*only] if only is not None else [] if wanted else candidates(task)
    tuned = None
    if only is None and (wanted or here.minutes >= _LEAST_MINUTES):
        tuned = finetuned(task)
    if tuned is not None:
        share = _ALONE_SHARE if wanted else _FINETUNE_SHARE
        tuned = tuned._replace(values={**tuned.values, "epochs": _fitting_epochs(here, task, tuned, share)})
    here.folder.mkdir(parents=True, exist_ok=True)
    content = {
        "data": data,
        "minutes": here.minutes,
        "command": portable_command(here.command),
        "candidates": [one._asdict() for one in plan],
        "finetuned": None if tuned is None else tuned._asdict(),
    }
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return plan, tuned


def _fitting_epochs(here: _Portfolio, task: Task, tuned: Candidate, share: float) -> int:
    """Measure a few training steps, and return the number of epochs that fit into the share of the budget."""
    each = seconds_per_example(_as_candidate(here.config, tuned), threads=os.cpu_count() or 1)
    seconds = 60 * here.minutes * share
    return max(1, int(seconds / (_OVERHEAD * each * len(task.splits["train"]))))


def _try(
    here: _Portfolio, plan: Sequence[Candidate], folds: int, followed: bool, *, clock: bool
) -> dict[str, RunConfig]:
    """Train the candidates: all on the first part, and the best ones on the others."""
    cores = os.cpu_count() or 1
    workers = Workers(max(1, cores // 2) if cores > 4 else cores)
    share = _FROZEN_SHARE if followed else _ALONE_SHARE
    budget = 60 * here.minutes * share if clock else float("inf")
    until = time.monotonic() + budget
    configs = {one.name: _as_candidate(here.config, one) for one in plan}
    first = {_run_name(name, 1, folds): _fold(config, 1, folds) for name, config in configs.items()}
    finished: dict[str, FinishedRun] = {}
    for features in dict.fromkeys(map(_features, first.values())):  # computed before the runs that read them start
        if not finished or time.monotonic() < until:
            runs = {name: config for name, config in first.items() if _features(config) == features}
            finished |= here.run(runs, workers, until - time.monotonic())
    if not finished:
        raise ValueError(f"no candidate could be trained; see the logs in {here.folder / CANDIDATES}")
    groups = {one.name: [run for name, run in finished.items() if name.split("/")[0] == one.name] for one in plan}
    if folds:
        ranked = sorted((name for name in groups if groups[name]), key=lambda name: -_mean_score(groups[name]))
        more = {
            _run_name(name, part, folds): _fold(configs[name], part, folds)
            for name in ranked[:_BEST]
            for part in range(2, folds + 1)
        }
        left = until - time.monotonic()
        if left > 0:
            for name, run in here.run(more, workers, left).items():
                groups[name.split("/")[0]].append(run)
    here.standings += [_standing(one, groups[one.name]) for one in plan if groups[one.name]]
    return {name: config for name, config in configs.items() if groups[name]}


def _finetune(here: _Portfolio, tuned: Candidate) -> dict[str, RunConfig]:
    """Fine-tune a backbone on the training data, to be compared with the others on the validation data."""
    config = _as_candidate(here.config, tuned)
    finished = here.run({tuned.name: config}, Workers(1, threads=os.cpu_count() or 1), float("inf"))
    if tuned.name not in finished:
        return {}
    here.standings.append(_standing(tuned, [finished[tuned.name]]))
    return {tuned.name: config}


def _keep(here: _Portfolio, winner: str, config: RunConfig, folds: int, watch: Callable[[Task], Watch]) -> Result:
    """Train the winner again on all but the test data, or copy its run if that is not needed."""
    if folds and config.data.finetune == "none":
        here.say(f"Winner: {winner}. Training it again on training and validation data together.")
        values = {"holdout": "none", "select": "last"}
        if config.model.decoding == "best":  # there is no validation data left to choose on
            first = read_record(here.folder / CANDIDATES / _run_name(winner, 1, folds))
            values["decoding"] = first["decoding"]
        final = _with(config, values)
        return train(
            final, here.folder, resume=True, command=here.command, progress=here.progress, watch=watch, say=here.say
        )
    here.say(f"Winner: {winner}.")
    source = here.folder / CANDIDATES / winner
    skipped = shutil.ignore_patterns(LOG, PROGRESS, "*.lock", "checkpoint.pt")
    shutil.copytree(source, here.folder, dirs_exist_ok=True, ignore=skipped)
    return _with_baselines(here.folder, config)


def _with_baselines(folder: Path, config: RunConfig) -> Result:
    """Add the baselines to the record of a run that was trained without them."""
    record, task = read_record(folder), prepare(config)
    split = "test" if "test" in record else "validation"
    counts = read_counts(folder / COUNTS, split, fix="delete the folder, and train again")
    predicted, true = (torch.from_numpy(np.asarray(each, dtype=np.int64)) for each in counts)
    report, more = compare_with_baselines(task, Evaluation(predicted, true), split)
    record |= more
    write_record(folder, record)
    return Result(record, report)


def _baselines(task: Task, folds: int) -> list[Standing]:
    """Score the baselines on the examples that candidates are compared on."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for part in range(1, max(folds, 1) + 1):
        splits = task.splits
        if folds:
            splits = held_out(task.splits, f"{part}/{folds}")
        target = torch.from_numpy(splits["validation"].counts)
        for name, counts in predict_baselines(splits["train"], splits["validation"]).items():
            parts.setdefault(name, []).append((counts, target))
    about = {"majority": "the most frequent multiset", "neighbour": "the nearest training example"}
    return [
        score(f"{name} baseline", about.get(name, "regression of counts on pooled inputs"), pairs, 0.0)
        for name, pairs in parts.items()
    ]


def _standing(candidate: Candidate, runs: Sequence[FinishedRun]) -> Standing:
    minutes = sum(float(run.record["minutes"]) for run in runs)
    return score(candidate.name, candidate.about, [_counts(run) for run in runs], minutes)


def _mean_score(runs: Sequence[FinishedRun]) -> float:
    return score("", "", [_counts(run) for run in runs], 0.0).score


def _counts(run: FinishedRun) -> tuple[Tensor, Tensor]:
    predicted, true = (torch.from_numpy(np.asarray(counts, dtype=np.int64)) for counts in run.counts("validation"))
    return predicted, true


def _as_candidate(config: RunConfig, candidate: Candidate) -> RunConfig:
    """Return the settings of a candidate; settings that the user has changed from their defaults are kept."""
    given, defaults = to_dict(config), to_dict(RunConfig())
    values = {name: value for name, value in candidate.values.items() if given[name] == defaults[name]}
    return _with(config, values)


def _with(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the settings with some of them replaced."""
    return config_of({**to_dict(config), **values})


def _features(config: RunConfig) -> tuple[Any, ...]:
    """Return the settings on which the features of a backbone depend."""
    return config.data.strides, config.data.image_size


def _fold(config: RunConfig, part: int, folds: int) -> RunConfig:
    return replace(config, data=replace(config.data, holdout=f"{part}/{folds}")) if folds else config


def _run_name(name: str, part: int, folds: int) -> str:
    return f"{name}/part-{part}" if folds else name
