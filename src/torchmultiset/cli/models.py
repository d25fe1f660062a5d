"""``multiset evaluate`` and ``multiset predict``: test a saved model, and predict with it."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import App, Parameter
from cyclopts.validators import Number
from cyclopts.validators import Path as PathOf
from rich.console import Console

from torchmultiset.cli._predictions import add_row, csv_lines, prediction_rows, predictions_table
from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Examples
from torchmultiset.model.conformal import Conformal
from torchmultiset.model.inputs import Explained, explain, open_examples, open_inputs, open_model
from torchmultiset.model.predictor import BEAM, Predictor
from torchmultiset.multiset import equal
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.pipeline.record import data_record
from torchmultiset.training.evaluation import evaluate
from torchmultiset.viz.calibration import calibrate, calibration_tables, log_probabilities
from torchmultiset.viz.conformal import conformal_report, conformal_table
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.scores import best_constant, report, score_tables

__all__ = ["evaluate_app", "open_splits", "predict_app"]

evaluate_app = App(
    name="evaluate",
    help_epilogue="""\
Examples:

- `multiset evaluate runs/demo data/demo`
- `multiset evaluate runs/pets pets.csv --split validation --json`
- `multiset evaluate runs/demo data/demo --figure calibration.png`
- `multiset evaluate runs/demo data/demo --entropy entropy.png`
- `multiset evaluate runs/demo data/demo --coverage 0.9`
""",
)
predict_app = App(
    name="predict",
    help_epilogue="""\
Examples:

- `multiset predict runs/demo photos/ more/*.png`
- `multiset predict runs/demo photos/ --csv > counts.csv`
- `multiset predict runs/demo inputs.npy --json`
- `multiset predict runs/demo photos/ --best 3 --min-confidence 0.8`
- `multiset predict runs/demo photos/ --coverage 0.9`
- `multiset predict runs/demo data/demo --split test --number 12 --figure predicted.png`
""",
)

_Json = Annotated[bool, Parameter("--json", negative=())]
_Figure = Annotated[Path | None, Parameter(validator=PathOf(ext="png", dir_okay=False))]
_Beam = Annotated[int, Parameter(validator=Number(gte=1))]
_Coverage = Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))]
_Skip = Annotated[bool, Parameter(negative=())]
_FIGURE = 48  # maximum number of inputs in a figure


@evaluate_app.default
def _evaluate(
    model: str,
    data: Path,
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    json_: _Json = False,
    calibration: bool = True,
    beam: _Beam = BEAM,
    coverage: _Coverage = None,
    skip_unreadable: _Skip = False,
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
        beam: Beam width for computing the confidence. Wider is more accurate and slower.
        coverage: Also test sets of multisets that contain the truth with this probability: those of the model's own
            calibration, if it has one, and of 200 calibrations on random halves of the split.
        skip_unreadable: Skip images and arrays that cannot be read, with a warning that lists them.
        figure: Output file (.png) for a plot of the calibration: reliability, and risk against coverage.
        entropy: Output file (.png) for a plot of the policy's entropy at each step beside the oracle's. Needs a model
            with a policy.
    """
    predictor = open_model(model)
    if figure is not None:
        _check_drawable(predictor, calibration)
    calibration = calibration and predictor.probabilistic
    if entropy is not None:
        _check_steps(predictor)
    if coverage is not None:
        _check_probabilities(predictor, "--coverage")
    splits = open_splits(predictor, data, split, skip_unreadable=skip_unreadable)
    examples = as_trained(predictor, splits[split], split, data)
    _warn_of_training_data(predictor, data, split)
    with progress_bar(sys.stderr.isatty(), f"evaluating {split}", len(examples)) as advance:
        counts, target = evaluate(predictor, examples, watch=advance)
    scores = report(counts, target, predictor.classes, split=split, constant=_constant(predictor, splits))
    shown, plain = score_tables(scores), scores.to_json()
    if calibration:
        with progress_bar(sys.stderr.isatty(), "calibration", len(examples)) as advance:
            log = log_probabilities(predictor, examples, counts, beam=beam, watch=advance)
            calibrated = calibrate(log.exp(), equal(counts, target))
        shown += calibration_tables(calibrated)
        plain["calibration"] = asdict(calibrated)
        if figure is not None:
            from torchmultiset.viz.calibration_figure import save_calibration

            save_calibration(calibrated, figure)
    if coverage is not None:
        with progress_bar(sys.stderr.isatty(), "conformal sets", len(examples)) as advance:
            conformal = conformal_report(predictor, examples, coverage, watch=advance)
        shown.append(conformal_table(conformal))
        plain["conformal"] = asdict(conformal)
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


@predict_app.default
def _predict(
    model: str,
    inputs: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    split: Literal["all", "train", "validation", "test"] = "all",
    number: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    json_: _Json = False,
    csv_: Annotated[bool, Parameter("--csv", negative=())] = False,
    best: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    min_confidence: Annotated[float | None, Parameter(validator=Number(gte=0, lte=1))] = None,
    coverage: _Coverage = None,
    beam: _Beam = BEAM,
    skip_unreadable: _Skip = False,
    figure: _Figure = None,
) -> None:
    """Predict the multisets of images, arrays or tables.

    Args:
        model: Folder of a model or of a training run, or name of a model that ships with the package.
        inputs: Images, folders of images, patterns such as "photos/*.jpg", .npy arrays, tables, or data sets.
        split: Split of data sets to use.
        number: Maximum number of inputs.
        json_: Print one line of JSON per input, with the labels in the order in which they were emitted.
        csv_: Print CSV, one line per input, with the labels as in a labels.csv: cat:2;dog:1.
        best: Number of most probable multisets to search for; the first is predicted. Default: greedy decoding.
        min_confidence: Minimum probability of a prediction; the model abstains below it.
        coverage: Predict a set of multisets that contains the truth with at least this probability, and an interval
            for the count of each class. Needs a model with a calibration.
        beam: Beam width of the search and of the confidence. Wider is more accurate and slower.
        skip_unreadable: Skip images and arrays of a data set that cannot be read, with a warning that lists them.
        figure: Output file (.png): each image with its greedy prediction and the distribution over labels at each
            step.
    """
    for flag, value in {"--json": json_, "--best": best, "--coverage": coverage}.items():
        if csv_ and value:
            raise ValueError(f"--csv and {flag} cannot be combined: --json prints everything about an input")
    predictor = open_model(model)
    flags = {"--best": best, "--min-confidence": min_confidence, "--coverage": coverage}
    for flag in (flag for flag, value in flags.items() if value is not None):
        _check_probabilities(predictor, flag)
    sets = None if coverage is None else _sets_of(predictor, coverage, best)
    sources = open_inputs(predictor, inputs, split=split, skip_unreadable=skip_unreadable)
    in_order, drawn, tally = predictor.steps > 0, list[Explained](), Counter[str]()
    table = predictions_table(in_order=in_order)
    found = explain(predictor, sources, number=number, best=best or 0, beam=beam)
    if sets is not None:  # ranked as in the calibration; fewer inputs at a time, as each has many candidates
        found = explain(predictor, sources, number=number, batch_size=16, best=sets.candidates, beam=sets.beam)
    for batch in found:
        if figure is not None and sum(len(one.names) for one in drawn) < _FIGURE:
            drawn.append(batch)
        for row in prediction_rows(batch, predictor, min_confidence, sets, coverage):
            if json_:
                print(json.dumps(row, ensure_ascii=False, allow_nan=False))
            elif csv_:
                print(csv_lines(row, header=not tally), end="")
                tally["input"] += 1
            else:
                add_row(table, row, in_order=in_order)
                tally.update(name for name, value in row.items() if value not in (None, False))
                tally["in sets"] += len(row.get("set", ()))
    shown = 0 if figure is None else _draw(drawn, predictor, figure)
    if not json_ and not csv_:
        if not tally["truth"]:  # the last column
            table.columns.pop()
        Console().print(table)
        if min_confidence is not None:
            print(f"\n{_abstained(tally, min_confidence)}")
        if sets is not None:
            print(f"\n{_guarantee(tally, sets, coverage)}")
        if figure is not None:
            print(f"\n{figure} shows {'it' if shown == 1 else f'{shown} of them'}.")


def _check_probabilities(predictor: Predictor, flag: str) -> None:
    if not predictor.probabilistic:
        raise ValueError(
            f"{flag} needs probabilities of multisets: use a model other than {predictor.kind}, which has none"
        )


def _sets_of(predictor: Predictor, coverage: float, best: int | None) -> Conformal:
    """Return the calibration of a model; raise an error if it does not support the coverage."""
    if best is not None:
        raise ValueError("--best and --coverage cannot be combined: each determines which multisets are listed")
    conformal = Conformal.of(predictor)
    if conformal is None:
        fix = "train it with --conformal, or calibrate it on held-out examples (see docs/guarantees.md)"
        raise ValueError(f"--coverage needs a model with a calibration, and this one has none: {fix}")
    conformal.threshold(coverage)
    return conformal


def _guarantee(tally: Mapping[str, int], sets: Conformal, coverage: float | None) -> str:
    text = f"Each set contains the truth with probability {coverage:g} ({len(sets.scores):,} calibration examples)."
    text += f"\nMean set size: {tally['in sets'] / max(tally['input'], 1):.2f}."
    return text + (f" In the sets: {tally['in_set']:,} of {tally['truth']:,}." if tally["truth"] else "")


def open_splits(predictor: Predictor, data: Path, split: str, *, skip_unreadable: bool = False) -> dict[str, Examples]:
    """Open a data set for a model, and check that the requested split is not empty."""
    splits = open_examples(predictor, data, skip_unreadable=skip_unreadable)
    if not len(splits.get(split, ())):
        filled = [name for name, examples in splits.items() if len(examples)]
        raise ValueError(f"{data} has no {split} examples: choose {' or '.join(filled)} (--split)")
    return splits


def _warn_of_training_data(predictor: Predictor, data: Path, split: str) -> None:
    """Warn if the validation examples of a data set were used for training, as `multiset train` does at its end."""
    record: Mapping[str, Any] = predictor.record
    if split != "validation" or record.get("config", {}).get("holdout") != "none":
        return
    if record["data"]["sha256"] == data_record(data)["sha256"]:
        fix = "use --split test to score it on new data"
        warnings.warn(f"the model was trained on the validation examples of {data} as well: {fix}", stacklevel=2)


def _check_drawable(predictor: Predictor, calibration: bool) -> None:
    """Raise before evaluation if ``--figure`` cannot be drawn."""
    _check_probabilities(predictor, "--figure")
    if not calibration:
        raise ValueError("--figure shows the calibration: remove --no-calibration")
    import torchmultiset.viz.calibration_figure  # noqa: F401  (needs matplotlib)


def _check_steps(predictor: Predictor) -> None:
    if not predictor.steps:
        raise ValueError(
            f"--entropy needs a model with a policy: use a model other than {predictor.kind}, which has none"
        )
    import torchmultiset.viz.entropy_figure  # noqa: F401  (needs matplotlib)


def _draw(batches: Sequence[Explained], predictor: Predictor, path: Path) -> int:
    """Draw predictions, and return their number."""
    from torchmultiset.viz.figures import save_predictions
    from torchmultiset.viz.panels import panels

    shown = [
        panel
        for batch in batches
        for panel in panels([*batch.inputs], batch.prediction, batch.truth, end=predictor.end)
    ][:_FIGURE]
    save_predictions(shown, predictor.classes, path, ids=[name for batch in batches for name in batch.names])
    return len(shown)


def _constant(predictor: Predictor, splits: Mapping[str, Examples]) -> torch.Tensor | None:
    """Return the most frequent multiset of the model's training data, or else of this data set's training split."""
    if "constant" in predictor.record:
        return torch.tensor(predictor.record["constant"])
    train = splits.get("train")
    return best_constant(torch.from_numpy(train.counts)) if train is not None and len(train) else None


def _abstained(tally: Mapping[str, int], min_confidence: float) -> str:
    answers = tally["input"] - tally["abstained"]
    text = f"Abstained below confidence {min_confidence:g}: {tally['abstained']:,} of {tally['input']:,}."
    return text + (f" Of the other {answers:,}, {tally['right']:,} are correct." if tally["truth"] else "")
