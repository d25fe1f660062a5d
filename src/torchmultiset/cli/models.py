"""``multiset evaluate`` and ``multiset predict``: what a saved model makes of data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import App, Parameter
from cyclopts.validators import Number
from cyclopts.validators import Path as PathOf
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Examples
from torchmultiset.encoders import PretrainedEncoder
from torchmultiset.inference import Explained, explain, open_examples, open_inputs, open_model
from torchmultiset.predictor import Predictor
from torchmultiset.report.evaluation import best_constant, in_words, report, tables
from torchmultiset.task import features_of
from torchmultiset.training import evaluate as evaluate_all

__all__ = ["evaluate", "predict"]

evaluate = App(
    name="evaluate",
    help_epilogue="""\
Examples:

- `multiset evaluate runs/demo data/demo`
- `multiset evaluate runs/pets pets.csv --split validation --json`
""",
)
predict = App(
    name="predict",
    help_epilogue="""\
Examples:

- `multiset predict runs/demo photos/ more/*.png`
- `multiset predict runs/demo inputs.npy --json`
- `multiset predict runs/demo data/demo --split test --number 12 --figure predicted.png`
""",
)

_Json = Annotated[bool, Parameter("--json", negative=())]
_FIGURE = 48  # inputs that a picture has room for


@evaluate.default
def _evaluate(
    model: Path,
    data: Path,
    /,
    *,
    split: Literal["train", "validation", "test"] = "test",
    json_: _Json = False,
) -> None:
    """Test a model on a data set.

    Args:
        model: Folder of a model, or of the run that made it.
        data: A folder that a build wrote, a .jsonl or .csv file of your own, or a folder of images with a labels.csv.
        split: Which examples.
        json_: Print JSON.
    """
    predictor = open_model(model)
    splits = open_examples(predictor, data)
    if not len(splits.get(split, ())):
        filled = [name for name, examples in splits.items() if len(examples)]
        raise ValueError(f"{data} has no {split} examples: choose {' or '.join(filled)} (--split)")
    examples = _as_trained(predictor, splits[split], split, data)
    with progress_bar(sys.stderr.isatty(), f"evaluating {split}", len(examples)) as advance:
        counts, target = evaluate_all(predictor, examples, watch=advance)
    told = report(counts, target, predictor.classes, split=split, constant=_constant(predictor, splits))
    if json_:
        print(json.dumps(told.to_json(), indent=2, allow_nan=False))
        return
    console = Console()
    for table in tables(told):
        console.print(table)
        console.print()


@predict.default
def _predict(
    model: Path,
    inputs: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    split: Literal["all", "train", "validation", "test"] = "all",
    number: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    json_: _Json = False,
    figure: Annotated[Path | None, Parameter(validator=PathOf(ext="png", dir_okay=False))] = None,
) -> None:
    """Predict multisets of images or arrays.

    Args:
        model: Folder of a model, or of the run that made it.
        inputs: Images, folders of images, patterns such as "photos/*.jpg", .npy arrays, or data sets.
        split: Which examples of data sets.
        number: Predict so many at most.
        json_: Print a line of JSON for each input, with the labels in the order in which they were named.
        figure: Picture to write, a .png file: each image with its prediction and, step by step, how likely each label
            was.
    """
    predictor = open_model(model)
    sources = open_inputs(predictor, inputs, split=split)
    table, drawn = _predictions_table(), _Panels(figure)
    for batch in explain(predictor, sources, number=number):
        drawn.add(batch)
        for row in _rows(batch, predictor):
            if json_:
                print(json.dumps(row, ensure_ascii=False, allow_nan=False))
            else:
                _add_row(table, row)
    shown = drawn.save(predictor.classes)
    if not json_:
        Console().print(table)
        if figure is not None:
            print(f"\n{figure} shows {shown} of them.")


class _Panels:
    """Collects what a picture has room for; without a file to write, nothing, so that matplotlib is not needed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.panels: list[Any] = []

    def add(self, batch: Explained) -> None:
        """Take the first ones of a batch, as long as there is room."""
        if self.path is not None and len(self.panels) < _FIGURE:
            from torchmultiset.report.figures import panels

            made = panels([*batch.inputs], batch.prediction, batch.truth)
            self.panels += made[: _FIGURE - len(self.panels)]

    def save(self, classes: Sequence[str]) -> int:
        """Draw them; how many there are."""
        if self.path is not None:
            from torchmultiset.report.figures import save_predictions

            save_predictions(self.panels, classes, self.path)
        return len(self.panels)


def _as_trained(predictor: Predictor, examples: Examples, split: str, data: Path) -> Examples:
    """With the features of the model's backbone, if it has one: computed once, as in training."""
    config: Mapping[str, Any] = predictor.record.get("config", {})
    if not isinstance(predictor.encoder, PretrainedEncoder) or "image_size" not in config:
        return examples
    backbone, size = predictor.encoder.backbone(), int(config["image_size"])
    return features_of(examples, split, data, backbone, size, progress=sys.stderr.isatty())


def _constant(predictor: Predictor, splits: Mapping[str, Examples]) -> torch.Tensor | None:
    """The most frequent multiset of the data that the model was trained on, or else of this data's training part."""
    if "constant" in predictor.record:
        return torch.tensor(predictor.record["constant"])
    train = splits.get("train")
    return best_constant(torch.from_numpy(train.counts)) if train is not None and len(train) else None


def _rows(batch: Explained, predictor: Predictor) -> Iterator[dict[str, Any]]:
    counts, sequence, confidence, _ = batch.prediction
    for i, name in enumerate(batch.names):
        sure = float(confidence[i])
        row = {
            "input": name,
            "labels": _named(counts[i], predictor),
            "sequence": [predictor.classes[label] for label in sequence[i].tolist() if label >= 0],
            "confidence": None if math.isnan(sure) else sure,
        }
        if batch.truth is not None:
            right = bool((counts[i] == batch.truth[i]).all())
            row |= {"truth": _named(batch.truth[i], predictor), "right": right}
        yield row


def _named(counts: torch.Tensor, predictor: Predictor) -> dict[str, int]:
    return {name: count for name, count in zip(predictor.classes, counts.tolist(), strict=True) if count}


def _predictions_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("input", overflow="fold", max_width=30)
    table.add_column("prediction")
    table.add_column("named in order")
    table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("truth")
    return table


def _add_row(table: Table, row: Mapping[str, Any]) -> None:
    truth = "" if "truth" not in row else "✓" if row["right"] else f"✗ {in_words(row['truth'])}"
    sure = "" if row["confidence"] is None else f"{row['confidence']:.2f}"
    named = " ".join(row["sequence"])
    table.add_row(Text(row["input"]), Text(in_words(row["labels"])), Text(named), sure, Text(truth))
