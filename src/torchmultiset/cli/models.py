"""``multiset evaluate`` and ``multiset predict``: test a saved model, and predict with it."""

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
from torchmultiset.model.outputs import Prediction
from torchmultiset.model.predictor import BEAM, Predictor
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
_FIGURE = 48  # maximum number of inputs in a figure


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
        model: Folder of a model or of a training run, or name of a model that ships with the package.
        data: A folder written by `multiset data build`, a .jsonl or .csv file, or a folder of images with a labels.csv.
        split: Split to test on.
        json_: Print JSON.
        calibration: Compare the model's confidence with its accuracy. This takes longer than predicting.
        beam: Beam width of the confidence, in label orders. Wider is more accurate and slower.
        figure: Output file (.png) for a plot of the calibration: reliability, and risk against coverage.
        entropy: Output file (.png) for a plot of the policy's entropy at each step beside the oracle's. Needs a model
            with a policy.
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
    scores = report(counts, target, predictor.classes, split=split, constant=_constant(predictor, splits))
    shown, plain = tables(scores), scores.to_json()
    if calibration:
        with progress_bar(sys.stderr.isatty(), "calibration", len(examples)) as advance:
            log = log_probabilities(predictor, examples, counts, beam=beam, watch=advance)
            calibrated = calibrate(log.exp(), equal(counts, target))
        shown += calibration_tables(calibrated)
        plain["calibration"] = calibrated.to_json()
        if figure is not None:
            from torchmultiset.viz.calibration_figure import save_calibration

            save_calibration(calibrated, figure)
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
        print(f"{figure} shows the calibration: reliability, and risk against coverage.")
    if entropy is not None:
        print(f"{entropy} shows the entropy of the policy and of the oracle at each step.")


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
    """Predict the multisets of images or arrays.

    Args:
        model: Folder of a model or of a training run, or name of a model that ships with the package.
        inputs: Images, folders of images, patterns such as "photos/*.jpg", .npy arrays, or data sets.
        split: Split of data sets to use.
        number: Maximum number of inputs.
        json_: Print one line of JSON per input, with the labels in the order in which they were emitted.
        best: Search for this many most probable multisets, and predict the first. Default: decode greedily.
        min_confidence: Abstain from predictions whose probability is lower.
        beam: Beam width of the search and of the confidence. Wider is more accurate and slower.
        figure: Output file (.png): each image with its greedy prediction and the distribution over labels at each
            step.
    """
    predictor = open_model(model)
    if not predictor.probabilistic and (best is not None or min_confidence is not None):
        flag = "--min-confidence" if best is None else "--best"
        raise ValueError(
            f"{flag} needs probabilities of multisets: use a model other than {predictor.kind}, which has none"
        )
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
    """Open a data set for a model, and check that the requested split is not empty."""
    splits = open_examples(predictor, data)
    if not len(splits.get(split, ())):
        filled = [name for name, examples in splits.items() if len(examples)]
        raise ValueError(f"{data} has no {split} examples: choose {' or '.join(filled)} (--split)")
    return splits


def _check_drawable(predictor: Predictor, calibration: bool) -> None:
    """Raise before evaluation if ``--figure`` cannot be drawn."""
    if not calibration:
        if predictor.probabilistic:
            raise ValueError("--figure shows the calibration: drop --no-calibration")
        raise ValueError(
            f"--figure needs probabilities of multisets: use a model other than {predictor.kind}, which has none"
        )
    import torchmultiset.viz.calibration_figure  # noqa: F401  (needs matplotlib)


def _check_steps(predictor: Predictor) -> None:
    if not predictor.steps:
        raise ValueError(
            f"--entropy needs a model with a policy: use a model other than {predictor.kind}, which has none"
        )
    import torchmultiset.viz.entropy_figure  # noqa: F401  (needs matplotlib)


class _Panels:
    """Panels of the figure; without an output file nothing is collected, so matplotlib is not needed."""

    def __init__(self, path: Path | None, predictor: Predictor) -> None:
        self.path = path
        self.predictor = predictor
        self.panels: list[Any] = []

    def add(self, batch: Explained) -> None:
        """Add panels for a batch until the figure is full."""
        if self.path is not None and len(self.panels) < _FIGURE:
            from torchmultiset.viz.figures import panels

            made = panels([*batch.inputs], batch.prediction, batch.truth)
            self.panels += made[: _FIGURE - len(self.panels)]

    def save(self) -> int:
        """Save the figure, if there is one, and return the number of panels."""
        if self.path is not None:
            from torchmultiset.viz.figures import save_predictions

            save_predictions(self.panels, self.predictor.classes, self.path)
        return len(self.panels)


def _constant(predictor: Predictor, splits: Mapping[str, Examples]) -> torch.Tensor | None:
    """Return the most frequent multiset of the model's training data, or else of this data set's training split."""
    if "constant" in predictor.record:
        return torch.tensor(predictor.record["constant"])
    train = splits.get("train")
    return best_constant(torch.from_numpy(train.counts)) if train is not None and len(train) else None


def _rows(batch: Explained, predictor: Predictor, min_confidence: float | None) -> Iterator[dict[str, Any]]:
    """Yield the fields to print for each input; `best` and `abstained` only if requested."""
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
    """Return labels in the order of emission; None without a policy, or if a search found another multiset."""
    if prediction.sequence is None:
        return None
    labels = prediction.sequence[i]
    if not torch.equal(from_labels(labels, len(classes)), prediction.counts[i]):
        return None
    return [classes[label] for label in labels.tolist() if label >= 0]


def _abstained(tally: Mapping[str, int], min_confidence: float) -> str:
    answers = tally["input"] - tally["abstained"]
    text = f"Abstained below confidence {min_confidence:g}: {tally['abstained']:,} of {tally['input']:,}."
    return text + (f" Of the other {answers:,}, {tally['right']:,} are correct." if tally["truth"] else "")


def named(counts: torch.Tensor, predictor: Predictor) -> dict[str, int]:
    """Return a multiset as a dictionary from class name to count."""
    return {name: count for name, count in zip(predictor.classes, counts.tolist(), strict=True) if count}


def _predictions_table(*, in_order: bool) -> Table:
    table = empty_table()
    table.add_column("input", overflow="fold", max_width=30)
    table.add_column("prediction")
    if in_order:
        table.add_column("order")
    table.add_column("confidence", justify="right", no_wrap=True)
    table.add_column("truth")
    return table


def _add_row(table: Table, row: Mapping[str, Any], *, in_order: bool) -> None:
    truth = ""
    if "truth" in row:
        truth = (
            "✓" if row["right"] else in_words(row["truth"]) if row["right"] is None else f"✗ {in_words(row['truth'])}"
        )
    confidence = "" if row["confidence"] is None else f"{row['confidence']:.2f}"
    abstained = row.get("abstained", False)
    predicted = "(abstained)" if abstained else in_words(row["labels"])
    order = [Text(" ".join(row["sequence"] or ()))] if in_order else []
    table.add_row(Text(row["input"]), Text(predicted), *order, confidence, Text(truth))
    for other in row.get("best", ())[0 if abstained else 1 :]:
        mark = "✓" if other["labels"] == row.get("truth") else ""
        table.add_row("", Text(in_words(other["labels"])), *[""] * in_order, f"{other['probability']:.2f}", mark)
