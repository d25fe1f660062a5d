"""Records of finished runs, and the state of each cell.

::

    RESULTS/<scale>/<cell id>/       kept in the repository; no path or host name in it
      record.json                    the cell, the paper's numbers, command, config, rule of the data, metrics, machine
      epochs.jsonl                   a line for each epoch
      predictions.npz                predicted and true counts of each example, for paired tests
      entropy.json                   for cells of the entropy figures
      worth.json                     likelihood of the true multisets, and calibration
      model/                         the predictor, if it is smaller than a megabyte and the run not a short one
    RUNS/<scale>/<cell id>/          the run folder, as `multiset train` writes it; log.txt and progress.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from paper.cells import Cell, describe, find
from paper.records import ENTROPY, RECORD, WORTH, has_entropy
from torchmultiset._files import write_whole
from torchmultiset.data import Examples
from torchmultiset.model.inputs import open_model
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.serialization import read_description
from torchmultiset.model.shipped import MODEL
from torchmultiset.multiset import equal
from torchmultiset.pipeline.predictions import COUNTS, read_counts
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.record import differences, read_json, read_record
from torchmultiset.pipeline.sweep import changed_data, changed_settings, epochs_done, forget, stale
from torchmultiset.training.checkpoint import EPOCHS
from torchmultiset.training.loop import local_fabric
from torchmultiset.viz.calibration import calibrate, log_probabilities
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.intervals import Counts

__all__ = ["CellState", "Folders", "forget_cell", "keep", "state_of"]

_KEPT_BYTES = 1_000_000
_WORTH_EXAMPLES = 2_000
_BEAM = 252  # all orders of four labels, all halves of ten
_LOWEST = -100.0  # an impossible multiset would make the mean infinite
_SPLITS = ("validation", "test", "seen")
_ELSEWHERE = ("command", "seed", "best_epoch", "validation_em", *_SPLITS)  # entries of run.json under other keys


@dataclass(frozen=True)
class Folders:
    """Folders of the experiments."""

    results: Path = Path("results")
    runs: Path = Path("runs", "experiments")
    data: Path = Path("data")

    def result(self, cell: Cell) -> Path:
        """Return the folder of a cell's record."""
        return self.results / cell.scale / cell.id

    def run(self, cell: Cell) -> Path:
        """Return the run folder of a cell."""
        return self.runs / cell.scale / cell.id


class CellState(NamedTuple):
    """State of a cell."""

    recorded: bool
    """Whether it has a record."""
    epochs: int
    """Number of epochs done."""
    changed: list[str]
    """Changes of config and data since it was run; the cell is stale if there are any."""


def state_of(cell: Cell, folders: Folders) -> CellState:
    """Return whether a cell has a record or is stale, and how many epochs are done."""
    config, path = cell.config(folders.data), folders.result(cell) / RECORD
    record = read_json(path)
    if not record:
        return CellState(False, epochs_done(folders.run(cell)), stale(folders.run(cell), config))
    if "config" not in record:
        raise ValueError(f"{path} is damaged: delete it, and the cell is run again")
    run = record.get("run", {})
    changed = changed_settings(record["config"], config) + _changed_rule(record, cell)
    data = folders.data / cell.data.path
    return CellState(True, cell.epochs, changed or changed_data(run.get("data", {}), data))


def _changed_rule(record: Mapping[str, Any], cell: Cell) -> list[str]:
    """Describe changes in the rule of the data; for records without a rule, in the numbers of examples."""
    if "rule" in record:
        return differences(record["rule"], cell.data.rule(cell.data_set))
    before, now = record.get("run", {}).get("examples", {}), cell.data
    return [
        f"the number of {name} examples was {before[name]:,} and is now {number:,}"
        for name, number in (("train", now.train), ("validation", now.validation), ("test", now.test))
        if before.get(name, number) != number
    ]


def forget_cell(cell: Cell, folders: Folders) -> None:
    """Delete the record and the run folder of a cell."""
    (folders.result(cell) / RECORD).unlink(missing_ok=True)  # first: a cell without a record counts as not run
    shutil.rmtree(folders.result(cell), ignore_errors=True)
    forget(folders.run(cell))


def keep(name: str, folder: Path, task: Task, *, scale: Any, results: str) -> None:
    """Write the results of a finished run, the record last; called by the worker that trained it.

    Args:
        name: Id of the cell.
        folder: Its run folder.
        task: Its data.
        scale: Name of the scale.
        results: Folder of the records.
    """
    cell, run, result = find(scale, name), read_record(folder), Path(results, scale, name)
    model = open_model(folder).to(local_fabric().device)
    record = {
        "format": 1,
        "scale": scale,
        **describe(cell),
        "config": model.record["config"],
        "rule": cell.data.rule(cell.data_set),
        "weights_sha256": read_description(folder / MODEL)["weights_sha256"],
        "best_epoch": run["best_epoch"],
        "metrics": {split: run[split] for split in _SPLITS if split in run},
        "run": {key: value for key, value in run.items() if key not in _ELSEWHERE},
    }
    result.mkdir(parents=True, exist_ok=True)
    for file in (EPOCHS, COUNTS):
        write_whole(result / file, (folder / file).read_bytes())
    if has_entropy(cell.tables):
        curves = {"split": "validation", **entropy_curves(model, task.splits["validation"])}
        write_whole(result / ENTROPY, json.dumps(curves, indent=1, allow_nan=False) + "\n")
    if not cell.short:
        _keep_model(folder / MODEL, result / MODEL)
    counts = read_counts(folder / COUNTS, "test", fix="delete the run folder, and the cell is run again")
    worth = _worth(model, task.splits["test"], counts)
    write_whole(result / WORTH, json.dumps(worth, indent=1, allow_nan=False) + "\n")
    write_whole(result / RECORD, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _worth(model: Predictor, examples: Examples, counts: Counts) -> dict[str, Any]:
    """Measure the likelihood of true and predicted multisets on the first 2,000 test examples.

    The result is empty if it cannot be computed: for a policy, if a multiset has more orders than the beam can hold. A
    policy that sees only counts does not distinguish orders of the same labels.
    """
    some = examples.subset(np.arange(min(len(examples), _WORTH_EXAMPLES)))
    predicted, true = (torch.from_numpy(part[: len(some)].astype(np.int64)) for part in counts)
    beam = model.exact_beam(int(torch.cat([predicted, true]).sum(-1).max()))
    if not model.probabilistic or beam > _BEAM:
        return {}
    of_truth = log_probabilities(model, some, true, beam=beam)
    confidence = log_probabilities(model, some, predicted, beam=beam).exp()
    return {
        "split": "test",
        "examples": len(some),
        "beam": beam,
        "impossible": int((of_truth == -torch.inf).sum()),
        "negative_log_likelihood": -float(of_truth.clamp(min=_LOWEST).mean()),
        "calibration": asdict(calibrate(confidence, equal(predicted, true))),
    }


def _keep_model(model: Path, kept: Path) -> None:
    """Copy a model, unless it is large."""
    shutil.rmtree(kept, ignore_errors=True)  # left by an attempt that was interrupted
    if sum(path.stat().st_size for path in model.iterdir()) < _KEPT_BYTES:
        shutil.copytree(model, kept)
