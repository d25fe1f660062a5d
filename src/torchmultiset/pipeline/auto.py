"""Automatic training: try a portfolio of candidates under a time budget, and keep the winner.

::

    folder/
      portfolio.json          data, budget and candidates; a resumed portfolio reads it
      candidates/<name>/...   run folders, as `pipeline.sweep` writes them
      leaderboard.json        validation scores of all candidates, and of the baselines
      model/, run.json, ...   the winner, as `multiset train` leaves any run

Candidates are compared on examples that they were not trained on: by cross-validation if there are few examples, else
on the validation data. The one with the largest lead over ridge regression on the same examples, minus its standard
error, wins; `pipeline.standings` has the reasons. With cross-validation, the winner is trained again on training and
validation data together; without, it is if it keeps its last epoch, so that no data has to choose one, and if there is
time: a fine-tuned winner is, in a budget of 20 minutes or more. With ``--finetune`` there is only one candidate, so it
is trained on both from the start if there are few examples. Nothing is chosen by the test data. Without test data, the
validation data tests the winner, and is not trained on.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.pipeline.candidates import Candidate, augmented_like, candidates, enlarged, finetuned
from torchmultiset.pipeline.config import RunConfig, changed
from torchmultiset.pipeline.finish import Result, compare_with_baselines
from torchmultiset.pipeline.portfolio import CANDIDATES, Portfolio
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.record import (
    CONFIG,
    Watch,
    portable_command,
    read_config,
    read_json,
    read_record,
    write_record,
)
from torchmultiset.pipeline.run import describe_data, train_run
from torchmultiset.pipeline.speed import fitting_epochs
from torchmultiset.pipeline.standings import PORTFOLIO, Standing, ranked, read_standings, write_standings
from torchmultiset.pipeline.sweep import FinishedRun, Snapshot, Workers
from torchmultiset.pipeline.workers import LOG, PROGRESS, available_cores
from torchmultiset.training.checkpoint import CHECKPOINT
from torchmultiset.training.evaluation import Evaluation

__all__ = ["MINUTES", "train_portfolio"]

MINUTES = 10.0
"""Default time budget, on two cores."""
_SMALL = 1_000
"""Number of training and validation examples below which candidates are cross-validated."""
_FOLDS = 3
_BEST = 2
"""Number of leading candidates that are trained on all parts of a cross-validation; the others only on the first."""
_FROZEN_SHARE = 0.25
"""Share of the budget that candidates with frozen features may take if fine-tuning follows."""
_FINETUNE_SHARE = 0.6
"""Share of the budget for fine-tuning; the rest is for reading data, testing and pictures."""
_ON_ALL_CORES = 0.8
"""Time of a run that has all cores, relative to that of one that shares them with other candidates."""
_TWICE_SHARE, _TWICE_MINUTES = 0.3, 20.0
"""Share of the budget for fine-tuning, and the budget from which there is time to train the winner again."""
_TUNED_EPOCHS = 5, 120
"""Epochs of fine-tuning: with fewer it is not tried, because it would end far from its best; more do not help."""
_ALONE_SHARE = 0.8
"""Share of the budget for training if there is only one stage, frozen or fine-tuned."""
_REFITTED_SHARE = 0.45
"""Share of the budget for candidates if the best guess would be trained again, on more examples."""
_LEAST_MINUTES = 3.0
"""Budget below which no backbone is fine-tuned."""


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
        watch_winner: As for `train_run`, while the winner is trained again.

    Returns:
        The result of the winner, and the leaderboard, best first; empty if nothing was compared.

    Raises:
        FileExistsError: The folder holds a training run, and `resume` is not set.
        ValueError: The settings or the data are wrong.
    """
    folder, holdout = Path(folder), config.data.holdout
    check(minutes > 0, "minutes", "above 0", minutes)
    check(holdout == "validation", "holdout", "left out if several models are compared", holdout)
    record = read_record(folder)
    if record.get("finished") and resume:
        return Result(record, None), read_standings(folder)
    begun, trained = (folder / PORTFOLIO).exists(), record.get("finished") or (folder / CHECKPOINT).exists()
    if (begun or trained) and not resume:
        raise FileExistsError(
            f"{folder} already holds a training run: resume it (--resume), or choose another folder (--out)"
        )
    if trained and not begun:
        raise FileExistsError(f"{folder} holds an unfinished run of one model: choose another folder (--out)")
    task = prepare(config, progress=progress)
    here = Portfolio(config, folder, minutes, command, say, watch, progress)
    for line in describe_data(task, [one for one in task.read_as if one.what != "image_size"]):
        say(line)
    if not len(task.splits.get("test", ())):
        here.holdout = "validation"
        say("There are no test examples: the validation examples also test the winner, whose scores may be too high.")
    plan, tuned = _plan(here, task, only)
    folds = _FOLDS if _is_small(task) else 0
    if tuned is not None and not plan and folds:
        say(f"Fine-tuning on {here.trained_on}: there is only one candidate.")
        return _train_again(here, tuned.applied_to(config), watch_winner), []
    how = f"by {folds}-fold cross-validation" if folds else f"on {len(task.splits['validation']):,} validation examples"
    here.about = {one.name: one.about for one in (*plan, tuned) if one is not None}
    number, budget = len(here.about), f"{minutes:g} minute{'s' * (minutes != 1)} in total"
    say(f"Comparing {number} candidate{'s' * (number != 1)} and 3 baselines {how}, {budget}.")
    here.add_baselines(task, folds, validation=tuned is not None)
    runs: dict[str, RunConfig] = {}
    if plan:
        runs = _try(here, plan, folds, tuned is not None, clock=only is None)
    if tuned is not None:
        runs |= _finetune(here, tuned)
    order = [*runs]  # of equal ones, the earlier guess wins
    standings = ranked(
        sorted(here.standings.values(), key=lambda one: order.index(one.name) if one.name in runs else -1)
    )
    write_standings(folder, standings)
    winner = next((standing.name for standing in standings if standing.name in runs), None)
    if winner is None:
        raise _nothing_trained(here)
    again = _is_trained_again(here, winner, runs[winner], task)
    result = _keep(here, winner, runs[winner], folds, again, watch_winner)
    return result, standings


def _plan(here: Portfolio, task: Task, only: Sequence[Candidate] | None) -> tuple[list[Candidate], Candidate | None]:
    """Return the candidates and the one to fine-tune; a resumed portfolio reads them from its folder."""
    path = here.folder / PORTFOLIO
    saved = read_json(path)
    if saved:
        if saved["data"]["sha256"] != task.data["sha256"]:
            raise ValueError(
                f"the data has changed since the portfolio in {here.folder} was started: choose another --out"
            )
        given = [Candidate(**one) for one in saved["candidates"]]
        return given, None if saved["finetuned"] is None else Candidate(**saved["finetuned"])
    wanted = here.config.data.finetune not in (None, "none")  # then nothing else is tried
    plan = [*only] if only is not None else [] if wanted else candidates(task)
    if only is None and plan and task.splits["train"].tokens is not None and not _is_small(task):
        plan[0] = _shortened(here, plan[0], len(task.splits["train"]))
    tuned = None
    if only is None and (wanted or (here.config.data.finetune is None and here.minutes >= _LEAST_MINUTES)):
        tuned = finetuned(task)
    if tuned is not None:
        share, images = _FINETUNE_SHARE if here.minutes < _TWICE_MINUTES else _TWICE_SHARE, len(task.splits["train"])
        if wanted:
            share, images = _ALONE_SHARE, images + (len(task.splits["validation"]) if _is_small(task) else 0)
        seconds, threads = 60 * here.minutes * share, available_cores()
        fitting = fitting_epochs(tuned.applied_to(here.config), seconds, examples=images, threads=threads)
        least, most = _TUNED_EPOCHS
        tuned = tuned._replace(values={**tuned.values, "epochs": min(fitting, most)})
        if here.config.data.image_size is None:
            tuned = enlarged(tuned, task)
        if fitting < least and not wanted:
            here.say(f"Fine-tuning is not tried: {here.minutes:g} minutes are too few for {images:,} images.")
            tuned = None
    here.folder.mkdir(parents=True, exist_ok=True)
    content = {
        "data": task.data,
        "minutes": here.minutes,
        "command": portable_command(here.command),
        "candidates": [one._asdict() for one in plan],
        "finetuned": None if tuned is None else tuned._asdict(),
    }
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return plan, tuned


def _is_small(task: Task) -> bool:
    return len(task.splits["train"]) + len(task.splits["validation"]) < _SMALL


def _shortened(here: Portfolio, guess: Candidate, examples: int) -> Candidate:
    """Return the best guess with its number of epochs limited to the budget: it is always trained to the end."""
    config = guess.applied_to(here.config)
    fitting = fitting_epochs(config, 60 * here.minutes * _share(config), examples=examples, threads=1)
    epochs = min(fitting, config.optim.resolved(examples).epochs)
    return guess._replace(values={**guess.values, "epochs": epochs})


def _share(guess: RunConfig) -> float:
    """Return the share of the budget for candidates, the first of which is the best guess, without fine-tuning."""
    return _REFITTED_SHARE if guess.optim.select == "last" else _ALONE_SHARE


def _try(
    here: Portfolio, plan: Sequence[Candidate], folds: int, followed: bool, *, clock: bool
) -> dict[str, RunConfig]:
    """Train every candidate on the first fold, then the leaders on the other folds, until the leaders do not change.

    Ridge regression, which takes seconds, is trained on all folds at once.
    """
    cores = available_cores()
    workers = Workers(max(1, cores // 2) if cores > 4 else cores)
    configs = {one.name: one.applied_to(here.config) for one in plan}
    share = _FROZEN_SHARE if followed else _share(configs[plan[0].name])
    budget = 60 * here.minutes * share if clock else float("inf")
    until = time.monotonic() + budget
    first: dict[str, RunConfig] = {}
    for name, config in configs.items():
        parts = folds if config.objective.objective == "ridge" else 1
        first |= _runs(name, config, range(1, 1 + parts), folds)
    keep = {next(iter(first)), "ridge/part-1" if folds else "ridge"}  # the best guess, and the baseline
    for features in dict.fromkeys(map(_features, first.values())):  # computed before the runs that read them start
        late = here.trained and time.monotonic() > until
        runs = {
            name: config
            for name, config in first.items()
            if _features(config) == features and (name in keep or not late)
        }
        if runs:
            here.run(runs, workers, until - time.monotonic(), keep=keep)
    if not here.trained:
        raise _nothing_trained(here)
    tried = set[str]()
    # On more parts, the best ones of the first may fall behind others, which are then trained on more parts as well.
    while folds and (left := until - time.monotonic()) > 0:
        best = ranked(here.standings[name] for name in configs if name in here.trained)[:_BEST]
        more: dict[str, RunConfig] = {}
        for name in (one.name for one in best if one.name not in tried):
            more |= _runs(name, configs[name], range(2, 1 + folds), folds)
        if not more:
            break
        tried |= {one.name for one in best}
        here.run(more, workers, left)
    return {name: config for name, config in configs.items() if name in here.trained}


def _nothing_trained(here: Portfolio) -> ValueError:
    return ValueError(f"no candidate could be trained; see the logs in {here.folder / CANDIDATES}")


def _finetune(here: Portfolio, tuned: Candidate) -> dict[str, RunConfig]:
    """Fine-tune a backbone on the training data, to be compared with the others on the validation data."""
    viewed = [here.standings[name] for name, runs in here.trained.items() if runs[0].config.data.views]
    begun = here.folder / CANDIDATES / tuned.name / CONFIG
    if begun.exists():  # before an interruption, after which other candidates may lead
        tuned = tuned._replace(values={**tuned.values, "augment": read_config(begun)["augment"]})
    elif len(viewed) > 1:
        tuned = augmented_like(tuned, ranked(viewed)[0].name)
    config = tuned.applied_to(here.config)
    finished = here.run({tuned.name: config}, Workers(1, threads=available_cores()), float("inf"))
    return {tuned.name: config} if finished else {}


def _is_trained_again(here: Portfolio, winner: str, config: RunConfig, task: Task) -> bool:
    """Return whether the winner is trained again, on all but the test data."""
    if (here.folder / CHECKPOINT).exists():  # it was begun before an interruption
        return True
    if _is_small(task) and config.data.finetune in (None, "none"):  # its runs were parts of a cross-validation
        return True
    if config.optim.select != "last":  # the validation data chose its epoch
        return False
    if here.holdout == "validation":  # it has seen all training data
        return False
    minutes = sum(float(run.record["minutes"]) for run in here.trained[winner])
    minutes *= 1 + len(task.splits["validation"]) / len(task.splits["train"])
    if config.data.finetune in (None, "none"):
        minutes *= _ON_ALL_CORES
    return (time.monotonic() - here.began) / 60 + minutes <= here.minutes


def _keep(
    here: Portfolio, winner: str, config: RunConfig, folds: int, again: bool, watch: Callable[[Task], Watch]
) -> Result:
    """Train the winner again on all but the test data, or copy its run."""
    if again:
        here.say(f"Winner: {winner}. Training it again on {here.trained_on}.")
        if config.model.decoding == "best":  # there is no validation data left to choose on
            (first,) = _runs(winner, config, [1], folds)
            config = changed(config, {"decoding": read_record(here.folder / CANDIDATES / first)["decoding"]})
        config = changed(config, {"until": _until(here.trained[winner])})
        return _train_again(here, config, watch)
    here.say(f"Winner: {winner}.")
    source = here.folder / CANDIDATES / winner
    skipped = shutil.ignore_patterns(LOG, PROGRESS, "*.lock", CHECKPOINT)
    shutil.copytree(source, here.folder, dirs_exist_ok=True, ignore=skipped)
    return _with_baselines(here.folder, config)


def _train_again(here: Portfolio, config: RunConfig, watch: Callable[[Task], Watch]) -> Result:
    """Train on all but the data that tests the model, and keep the last epoch."""
    final = changed(config, {"holdout": here.holdout, "select": "last", "patience": 0})
    return train_run(
        final, here.folder, resume=True, command=here.command, progress=here.progress, watch=watch, say=here.say
    )


def _until(parts: Sequence[FinishedRun]) -> float:
    """Return the share of its epochs after which a candidate was best on held-out examples, on average over the parts.

    It is 1 if the last epoch was kept.
    """
    shares = [
        run.record["best_epoch"] / settings["epochs"]
        for run in parts
        if (settings := read_config(run.folder / CONFIG))["select"] != "last"
    ]
    return round(sum(shares) / len(shares), 3) if shares else 1.0


def _with_baselines(folder: Path, config: RunConfig) -> Result:
    """Add the baselines to the record of a run that was trained without them."""
    record, task = read_record(folder), prepare(config)
    split = "test" if "test" in record else "validation"
    counts = read_counts(folder / COUNTS, split, fix="delete the folder, and train again")
    predicted, true = (torch.from_numpy(np.asarray(each, dtype=np.int64)) for each in counts)
    report, more = compare_with_baselines(folder, task, Evaluation(predicted, true), split)
    record |= more
    write_record(folder, record)
    return Result(record, report)


def _features(config: RunConfig) -> tuple[Any, ...]:
    """Return the settings on which the features of a backbone depend."""
    return config.data.strides, config.data.image_size, config.data.views, config.optim.augment


def _runs(name: str, config: RunConfig, parts: Iterable[int], folds: int) -> dict[str, RunConfig]:
    """Return the runs of a candidate on some parts of a cross-validation; without folds, its only run.

    The best epoch is scored if the weights are averaged, else the last one. Scores then vary so much from epoch to
    epoch that the best one would be too optimistic, and a model that ended there would be worse: the learning rate has
    not fallen yet.
    """
    if not folds:
        return {name: config}
    select = "score" if config.optim.ema else "last"
    return {f"{name}/part-{i}": changed(config, {"holdout": f"{i}/{folds}", "select": select}) for i in parts}
