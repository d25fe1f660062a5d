"""``multiset evaluate`` and ``multiset predict``: what a saved model makes of data."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import App, Parameter
from cyclopts.validators import Number
from cyclopts.validators import Path as PathOf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Examples
from torchmultiset.model.predictor import BEAM, Prediction, Predictor
from torchmultiset.multiset import equal, from_labels
from torchmultiset.pipeline.inputs import Explained, explain, open_examples, open_inputs, open_model
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.training.evaluation import evaluate as evaluate_all
from torchmultiset.viz.calibration import calibrate, calibration_tables, log_probabilities
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.scores import best_constant, in_words, report, tables
from torchmultiset.viz.terminal import empty_table

__all__ = ["evaluate", "named", "open_splits", "predict"]

evaluate = App(
    name="evaluate",
    help_epilogue="""\
Examples:

- `multiset evaluate runs/demo data/demo`
- `multiset evaluate runs/pets pets.csv --split validation --json`
- `multiset evaluate runs/demo data/demo --figure calibration.png`
- `multiset evaluate runs/demo data/demo --entropy entropy.png`
""",
)
predict = App(
    name="predict",
    help_epilogue="""\
Examples:

- `multiset predict runs/demo photos/ more/*.png`
- `multiset predict runs/demo inputs.npy --json`
- `multiset predict runs/demo photos/ --best 3 --min-confidence 0.8`
- `multiset predict runs/demo data/demo --split test --number 12 --figure predicted.png`
""",
)

_Json = Annotated[bool, Parameter("--json", negative=())]
_Figure = Annotated[Path | None, Parameter(validator=PathOf(ext="png", dir_okay=False))]
_Beam = Annotated[int, Parameter(validator=Number(gte=1))]
_FIGURE = 48  # inputs that a picture has room for


@evaluate.default
def _evaluate(
    model: str,
    data: Path,
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    json_: _Json = False,
    calibration: bool = True,
    beam: _Beam = BEAM,
    figure: _Figure = None,
    entropy: _Figure = None,
) -> None:
    """Test a model on a data set.

    Args:
        model: Folder of a model, or of the run that made it; or the name of one that comes with the package.
        data: A folder that a build wrote, a .jsonl or .csv file of your own, or a folder of images with a labels.csv.
        split: Which examples.
        json_: Print JSON.
        calibration: Whether to compare how sure the model is with how often it is right. That takes longer than the
            predictions themselves.
        beam: How thoroughly: so many orders of the labels are followed. Wider is more exact and takes longer.
        figure: Picture of that to write, a .png file: reliability, and risk against coverage.
        entropy: Another one, for a model that names one label after another: the entropy of its distribution at each
            step, beside that of the oracle, which knows the labels.
    """
    predictor = open_model(model)
    calibration = calibration and predictor.probabilistic
    if figure is not None:
        _check_drawable(predictor, calibration)
    if entropy is not None:
        _check_steps(predictor)
    splits = open_splits(predictor, data, split)
    examples = as_trained(predictor, splits[split], split, data)
    with progress_bar(sys.stderr.isatty(), f"evaluating {split}", len(examples)) as advance:
        counts, target = evaluate_all(predictor, examples, watch=advance)
    told = report(counts, target, predictor.classes, split=split, constant=_constant(predictor, splits))
    shown, plain = tables(told), told.to_json()
    if calibration:
        with progress_bar(sys.stderr.isatty(), "how sure it is", len(examples)) as advance:
            log = log_probabilities(predictor, examples, counts, beam=beam, watch=advance)
            sure = calibrate(log.exp(), equal(counts, target))
        shown += calibration_tables(sure)
        plain["calibration"] = sure.to_json()
        if figure is not None:
            from torchmultiset.viz.calibration_figure import save_calibration

            save_calibration(sure, figure)
    if entropy is not None:
        from torchmultiset.viz.entropy_figure import save_entropy

        with progress_bar(sys.stderr.isatty(), "entropy", len(examples)) as advance:
            plain["entropy"] = entropy_curves(predictor, examples, watch=advance)
        save_entropy(plain["entropy"], entropy)
    if json_:
        print(json.dumps(plain, indent=2, allow_nan=False))
        return
    console = Console()
    for table in shown:
        console.print(table)
        console.print()
    if figure is not None:
        print(f"{figure} shows how sure the model is, and how often it is right.")
    if entropy is not None:
        print(f"{entropy} shows the entropy at each step, the policy's and the oracle's.")


@predict.default
def _predict(
    model: str,
    inputs: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    split: Literal["all", "train", "validation", "test"] = "all",
    number: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    json_: _Json = False,
    best: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    min_confidence: Annotated[float | None, Parameter(validator=Number(gte=0, lte=1))] = None,
    beam: _Beam = BEAM,
    figure: _Figure = None,
) -> None:
    """Predict multisets of images or arrays.

    Args:
        model: Folder of a model, or of the run that made it; or the name of one that comes with the package.
        inputs: Images, folders of images, patterns such as "photos/*.jpg", .npy arrays, or data sets.
        split: Which examples of data sets.
        number: Predict so many at most.
        json_: Print a line of JSON for each input, with the labels in the order in which they were named.
        best: Search for the so many most probable multisets, and predict the first; without it, labels are named
            greedily.
        min_confidence: Abstain where the prediction is less probable than this.
        beam: How thoroughly to search, and to add up the orders of a multiset. Wider is more exact and takes longer.
        figure: Picture to write, a .png file: each image with what greedy search predicts and, step by step, how likely
            each label was.
    """
    predictor = open_model(model)
    if not predictor.probabilistic and (best is not None or min_confidence is not None):
        flag = "--min-confidence" if best is None else "--best"
        raise ValueError(f"{flag} needs probabilities of multisets, and this model ({predictor.kind}) has none")
    sources = open_inputs(predictor, inputs, split=split)
    in_order, drawn, tally = predictor.steps > 0, _Panels(figure, predictor), Counter[str]()
    table = _predictions_table(in_order=in_order)
    for batch in explain(predictor, sources, number=number, best=best or 0, beam=beam):
        drawn.add(batch)
        for row in _rows(batch, predictor, min_confidence):
            if json_:
                print(json.dumps(row, ensure_ascii=False, allow_nan=False))
            else:
                _add_row(table, row, in_order=in_order)
                tally.update(name for name, value in row.items() if value not in (None, False))
    shown = drawn.save()
    if not json_:
        Console().print(table)
        if min_confidence is not None:
            print(f"\n{_abstained(tally, min_confidence)}")
        if figure is not None:
            print(f"\n{figure} shows {shown} of them.")


def open_splits(predictor: Predictor, data: Path, split: str) -> dict[str, Examples]:
    """A data set for a model; the split that is asked for is not empty."""
    splits = open_examples(predictor, data)
    if not len(splits.get(split, ())):
        filled = [name for name, examples in splits.items() if len(examples)]
        raise ValueError(f"{data} has no {split} examples: choose {' or '.join(filled)} (--split)")
    return splits


def _check_drawable(predictor: Predictor, calibration: bool) -> None:
    """Say before the work what would make a picture of it impossible."""
    if not calibration:
        why = "--no-calibration leaves that out" if predictor.probabilistic else f"{predictor.kind} does not say"
        raise ValueError(f"--figure shows how sure the model is, but {why}")
    import torchmultiset.viz.calibration_figure  # noqa: F401  (needs matplotlib)


def _check_steps(predictor: Predictor) -> None:
    if not predictor.steps:
        raise ValueError(f"--entropy shows one step after another, but {predictor.kind} predicts everything at once")
    import torchmultiset.viz.entropy_figure  # noqa: F401  (needs matplotlib)


class _Panels:
    """Collects what a picture has room for; without a file to write, nothing, so that matplotlib is not needed."""

    def __init__(self, path: Path | None, predictor: Predictor) -> None:
        self.path = path
        self.predictor = predictor
        self.panels: list[Any] = []

    def add(self, batch: Explained) -> None:
        """Take the first ones of a batch, as long as there is room."""
        if self.path is not None and len(self.panels) < _FIGURE:
            from torchmultiset.viz.figures import panels

            made = panels([*batch.inputs], batch.prediction, batch.truth)
            self.panels += made[: _FIGURE - len(self.panels)]

    def save(self) -> int:
        """Draw them; how many there are."""
        if self.path is not None:
            from torchmultiset.viz.figures import save_predictions

            save_predictions(self.panels, self.predictor.classes, self.path)
        return len(self.panels)


def _constant(predictor: Predictor, splits: Mapping[str, Examples]) -> torch.Tensor | None:
    """The most frequent multiset of the data that the model was trained on, or else of this data's training part."""
    if "constant" in predictor.record:
        return torch.tensor(predictor.record["constant"])
    train = splits.get("train")
    return best_constant(torch.from_numpy(train.counts)) if train is not None and len(train) else None


def _rows(batch: Explained, predictor: Predictor, min_confidence: float | None) -> Iterator[dict[str, Any]]:
    """What is shown of each input; `best` and `abstained` only where they were asked for."""
    prediction = batch.prediction
    counts, best = prediction.counts, prediction.best
    assert prediction.confidence is not None
    accepted = prediction.accepted(0.0 if min_confidence is None else min_confidence).tolist()
    for i, name in enumerate(batch.names):
        confidence = float(prediction.confidence[i])
        row: dict[str, Any] = {
            "input": name,
            "labels": named(counts[i], predictor),
            "sequence": _in_order(prediction, i, predictor.classes),
            "confidence": None if math.isnan(confidence) else confidence,
        }
        if best is not None:
            row["best"] = [
                {"labels": named(multiset, predictor), "probability": math.exp(log)}
                for multiset, log in zip(best.counts[i], best.log_probability[i].tolist(), strict=True)
                if log > -math.inf
            ]
        if batch.truth is not None:
            right = bool((counts[i] == batch.truth[i]).all())
            row |= {"truth": named(batch.truth[i], predictor), "right": right}
        if min_confidence is not None:
            row["abstained"] = not accepted[i]
            if row["abstained"]:
                row |= {name: None for name in ("labels", "sequence", "right") if name in row}
        yield row


def _in_order(prediction: Prediction, i: int, classes: Sequence[str]) -> list[str] | None:
    """Labels in the order in which they were emitted; None if there is no order, or a search found another multiset."""
    if prediction.sequence is None:
        return None
    labels = prediction.sequence[i]
    if not torch.equal(from_labels(labels, len(classes)), prediction.counts[i]):
        return None
    return [classes[label] for label in labels.tolist() if label >= 0]


def _abstained(tally: Mapping[str, int], min_confidence: float) -> str:
    answers = tally["input"] - tally["abstained"]
    told = f"Not sure enough, below {min_confidence:g}: {tally['abstained']:,} of {tally['input']:,}."
    return told + (f" Of the {answers:,} others {tally['right']:,} are right." if tally["truth"] else "")


def named(counts: torch.Tensor, predictor: Predictor) -> dict[str, int]:
    """A multiset by the names of its classes."""
    return {name: count for name, count in zip(predictor.classes, counts.tolist(), strict=True) if count}


def _predictions_table(*, in_order: bool) -> Table:
    table = empty_table()
    table.add_column("input", overflow="fold", max_width=30)
    table.add_column("prediction")
    if in_order:
        table.add_column("named in order")
    table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("truth")
    return table


def _add_row(table: Table, row: Mapping[str, Any], *, in_order: bool) -> None:
    truth = ""
    if "truth" in row:
        truth = (
            "✓" if row["right"] else in_words(row["truth"]) if row["right"] is None else f"✗ {in_words(row['truth'])}"
        )
    sure = "" if row["confidence"] is None else f"{row['confidence']:.2f}"
    unsure = row.get("abstained", False)
    predicted = "(not sure)" if unsure else in_words(row["labels"])
    order = [Text(" ".join(row["sequence"] or ()))] if in_order else []
    table.add_row(Text(row["input"]), Text(predicted), *order, sure, Text(truth))
    for other in row.get("best", ())[0 if unsure else 1 :]:
        mark = "✓" if other["labels"] == row.get("truth") else ""
        table.add_row("", Text(in_words(other["labels"])), *[""] * in_order, f"{other['probability']:.2f}", mark)
