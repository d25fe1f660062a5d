"""One cell, from its config to its record.

::

    RESULTS/<scale>/<cell id>/       to keep; nothing in it names a place or a machine
      record.json                    what it is, what the paper says, how to run it again, how it went; written last
      epochs.jsonl                   a line for each epoch
      predictions.npz                predicted and true counts of each test example, for paired tests
      entropy.json                   for cells of the entropy figures
      worth.json                     how probable it found the truth, and its predictions
      model/                         the predictor, if it is smaller than a megabyte
    RUNS/<scale>/<cell id>/          the run folder, as `multiset train` leaves it; log.txt and progress.json
"""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from torchmultiset._files import write_whole
from torchmultiset.data import Examples
from torchmultiset.experiments.cells import Cell
from torchmultiset.model.predictor import Predictor, read_description
from torchmultiset.multiset import equal
from torchmultiset.pipeline.inputs import MODEL, open_model
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.run import Watch, train
from torchmultiset.report.results import has_entropy
from torchmultiset.training.evaluation import Evaluation, evaluate
from torchmultiset.training.loop import EPOCHS, Progress, local_fabric
from torchmultiset.viz.calibration import calibrate, log_probabilities
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.scores import report

__all__ = [
    "ENTROPY",
    "LOG",
    "PREDICTIONS",
    "PROGRESS",
    "RECORD",
    "WORTH",
    "Folders",
    "is_done",
    "read_json",
    "run_cell",
]

RECORD, PREDICTIONS, ENTROPY, WORTH = "record.json", "predictions.npz", "entropy.json", "worth.json"
LOG, PROGRESS = "log.txt", "progress.json"
_KEPT_BYTES = 1_000_000
_WORTH_EXAMPLES = 2_000
_BEAM = 252  # all orders of four labels, all halves of ten
_LOWEST = -100.0  # a multiset that a model finds impossible would make the mean infinite


@dataclass(frozen=True)
class Folders:
    """Where things are."""

    results: Path = Path("results")
    runs: Path = Path("runs", "experiments")
    data: Path = Path("data")

    def result(self, cell: Cell) -> Path:
        """What is kept of a cell."""
        return self.results / cell.scale / cell.id

    def run(self, cell: Cell) -> Path:
        """Its run folder."""
        return self.runs / cell.scale / cell.id

    def lock(self, cell: Cell) -> FileLock:
        """Held by the one process that works on a cell; the system frees it when that is killed."""
        run = self.run(cell)
        run.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(run.with_name(f"{run.name}.lock"))


def run_cell(cell: Cell, folders: Folders, *, threads: int, mnist: str = "") -> None:
    """Train it, or go on where that was stopped; look at validation and test data; write the record.

    If another process works on the same cell, this one waits, and finds it done.

    Args:
        cell: Which one. Its data has been made.
        folders: Where things are.
        threads: That PyTorch may use.
        mnist: Where the digits are, for cells that make new images of them; empty: as for `load_digits`.
    """
    torch.set_num_threads(threads)
    run, result = folders.run(cell), folders.result(cell)
    with folders.lock(cell):
        if is_done(cell, folders):
            return
        if (result / RECORD).exists():  # by a version that left out the rest
            _complete(cell, result, folders, mnist)
            return
        run.mkdir(parents=True, exist_ok=True)
        write_whole(run / PROGRESS, json.dumps({"pid": os.getpid()}))
        config, tasks = cell.config(folders.data, mnist=mnist), list[Task]()

        def watch(task: Task) -> Watch:
            tasks.append(task)
            return _Notes(run / PROGRESS, task)

        # One process: what there is to do at once are other cells.
        told = train(config, run, resume=True, devices=1, command=cell.command.split(), say=print, watch=watch).record
        _write_results(cell, run, result, tasks[0] if tasks else prepare(config), told)


def is_done(cell: Cell, folders: Folders) -> bool:
    """Whether there is a record, and all else that can still be made."""
    result = folders.result(cell)
    made = (result / RECORD).exists()
    return made and (not _missing(cell, result) or _with_model(cell, folders) is None)


def read_json(path: Path) -> dict[str, Any]:
    """What a file says; empty if there is none.

    Raises:
        ValueError: It is damaged.
    """
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the cell is run again") from None
    return told


class _Notes:
    """Writes down where a run is, about once a second."""

    def __init__(self, path: Path, task: Task) -> None:
        self.path, self.optim, self.examples = path, task.config.optim, len(task.splits["train"])
        self.written, self.epoch = 0.0, -1

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.written < 1 and progress.epoch == self.epoch:
            return
        self.written, self.epoch = now, progress.epoch
        seen = progress.seen(self.examples, self.optim.batch_size)
        told = {
            "pid": os.getpid(),
            "epoch": progress.epoch,
            "epochs": self.optim.epochs,
            "em": progress.history[-1]["validation_em"] if progress.history else None,
            "share": seen / (self.optim.epochs * self.examples),
        }
        write_whole(self.path, json.dumps(told))


def _write_results(cell: Cell, run: Path, result: Path, task: Task, told: Mapping[str, Any]) -> None:
    model = open_model(run).to(local_fabric().device)
    about, constant = model.record, torch.tensor(model.record["constant"])
    tested = [split for split in ("validation", "test", "seen") if len(task.splits.get(split, ()))]
    evaluations = {split: evaluate(model, task.splits[split]) for split in tested}
    metrics = {
        split: report(*evaluation, model.classes, split=split, constant=constant).to_json()
        for split, evaluation in evaluations.items()
    }
    kept = {name: one for name, one in evaluations.items() if name != "validation" or "table-1" in cell.tables}
    record = {
        "format": 1,
        "scale": cell.scale,
        **cell.to_json(),
        "config": about["config"],
        "weights_sha256": read_description(run / MODEL)["weights_sha256"],
        "best_epoch": told["best_epoch"],
        "metrics": metrics,
        "run": {name: value for name, value in told.items() if name not in _TOLD_ABOVE},
    }
    result.mkdir(parents=True, exist_ok=True)
    write_whole(result / EPOCHS, (run / EPOCHS).read_bytes())
    write_whole(result / PREDICTIONS, _predictions(kept, model.classes))
    if has_entropy(cell.tables):
        _measure_entropy(model, task.splits["validation"], result)
    _keep_model(run / MODEL, result / MODEL)
    _measure_worth(model, task.splits["test"], evaluations["test"], result)
    write_whole(result / RECORD, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _measure_entropy(model: Predictor, examples: Examples, result: Path) -> None:
    """Write down how sure the policy is at each step, on validation data."""
    curves = {"split": "validation", **entropy_curves(model, examples)}
    write_whole(result / ENTROPY, json.dumps(curves, indent=1, allow_nan=False) + "\n")


def _measure_worth(model: Predictor, examples: Examples, evaluation: Evaluation, result: Path) -> None:
    """Write down how probable the model finds true and predicted multisets; nothing if that cannot be known.

    It cannot for a policy where a multiset has more orders than are followed: what they come to would be too little.
    For a policy that sees only counts, orders of the same labels are one.

    Args:
        model: The model.
        examples: The test examples; the first 2,000 are looked at.
        evaluation: What was predicted for them, and what is true.
        result: Folder of the cell.
    """
    some = examples.subset(np.arange(min(len(examples), _WORTH_EXAMPLES)))
    counts, target = (part[: len(some)] for part in evaluation)
    beam = model.exact_beam(int(torch.cat([counts, target]).sum(-1).max()))
    if not model.probabilistic or beam > _BEAM:
        write_whole(result / WORTH, "{}\n")
        return
    of_truth = log_probabilities(model, some, target, beam=beam)
    sure = calibrate(log_probabilities(model, some, counts, beam=beam).exp(), equal(counts, target))
    told = {
        "split": "test",
        "examples": len(some),
        "beam": beam,
        "impossible": int((of_truth == -torch.inf).sum()),
        "negative_log_likelihood": -float(of_truth.clamp(min=_LOWEST).mean()),
        "calibration": sure.to_json(),
    }
    write_whole(result / WORTH, json.dumps(told, indent=1, allow_nan=False) + "\n")


def _with_model(cell: Cell, folders: Folders) -> Path | None:
    """The folder that still has the trained model, if one has."""
    places = (folders.result(cell), folders.run(cell))
    return next((place for place in places if (place / MODEL).exists()), None)


def _missing(cell: Cell, result: Path) -> list[str]:
    """What belongs beside the record, can be measured with the model alone, and is not there."""
    wanted = [WORTH, ENTROPY] if has_entropy(cell.tables) else [WORTH]
    return [name for name in wanted if not (result / name).exists()]


def _complete(cell: Cell, result: Path, folders: Folders, mnist: str) -> None:
    """Measure what is missing, with the model that was kept."""
    with_model = _with_model(cell, folders)
    assert with_model is not None
    model = open_model(with_model).to(local_fabric().device)
    splits, missing = prepare(cell.config(folders.data, mnist=mnist)).splits, _missing(cell, result)
    if ENTROPY in missing:
        _measure_entropy(model, splits["validation"], result)
    if WORTH in missing:
        _measure_worth(model, splits["test"], evaluate(model, splits["test"]), result)


def _keep_model(model: Path, kept: Path) -> None:
    """A copy, unless it is large."""
    shutil.rmtree(kept, ignore_errors=True)  # of an attempt that was cut short
    if sum(path.stat().st_size for path in model.iterdir()) < _KEPT_BYTES:
        shutil.copytree(model, kept)


_TOLD_ABOVE = ("command", "seed", "test", "best_epoch", "validation_em")


def _predictions(evaluations: Mapping[str, Evaluation], classes: tuple[str, ...]) -> bytes:
    """Counts as bytes: 255 stands for what is more, which no true count is."""
    arrays: dict[str, Any] = {
        f"{split}_{name}": counts.clamp(max=255).numpy().astype(np.uint8)
        for split, (predicted, true) in evaluations.items()
        for name, counts in (("predicted", predicted), ("true", true))
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, classes=np.array(classes), **arrays)
    return buffer.getvalue()
