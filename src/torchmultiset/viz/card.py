"""Model card of a finished run: intended use, training and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchmultiset._checks import some
from torchmultiset.model.inputs import input_kind, reads
from torchmultiset.model.predictor import Predictor

__all__ = ["CARD", "model_card"]

CARD = "README.md"
_MANY = 20


def model_card(name: str, record: Mapping[str, Any], predictor: Predictor, *, remarks: str = "") -> str:
    """Write a model card as Markdown.

    Args:
        name: Name of the model.
        record: Content of ``run.json``.
        predictor: The model, with its own record.
        remarks: Additional Markdown, for example the origin and licence of the data.
    """
    data, classes, kind = record["data"], predictor.classes, input_kind(predictor)
    objective = predictor.record["config"]["objective"]
    trained = predictor.record["config"].get("holdout") == "none"
    split = "test" if "test" in record else "validation"
    scores = record[split]
    size = f"{'exactly' if predictor.stop == 'fixed' else 'up to'} {predictor.max_size}"
    examples = ", ".join(f"{count:,} {split}" for split, count in record["examples"].items())
    of_image = f"the multiset of labels of an input of shape {' x '.join(map(str, kind.shape))}"
    what = of_image if kind.of_images else f"multisets of labels from {reads(predictor)}"
    lines = [
        f"# {name}",
        "",
        f"Predicts {what}: {size} labels of {len(classes)} classes ({some(classes, _MANY)}).",
        "",
        "## Training",
        "",
        f"- Data: {data['name']} ({examples} examples), SHA-256 {data['sha256'][:12]}",
        f"- Command: `{record['command']}`",
        f"- Objective {objective}, seed {record['seed']}; epoch {record['best_epoch']} is kept, with exact match"
        f" {record['validation_em']:.3f} on the validation data" + (", which is part of the training data" * trained),
        *_start(record.get("start")),
        f"- {record['parameters']:,} parameters; {record['minutes']:.0f} minutes on {record['processes']} x"
        f" {record['device']}; commit {(record.get('git') or 'unknown')[:12]}",
        "",
        "## Scores",
        "",
        "On test data, evaluated once:" if split == "test" else "On validation data; there was no test data:",
        "",
        "| size | examples | exact match (95%) | F1 per example | class F1 |",
        "| ---: | ---: | ---: | ---: | ---: |",
        *(_row(size, numbers) for size, numbers in scores["sizes"].items() if len(scores["sizes"]) > 1),
        _row("all", scores["overall"], scores["class_f1"]),
        "",
        "## Limits",
        "",
        f"The model predicts only these classes, and {size} labels, as in its training data. The scores hold for"
        " similar data; test it on other data with `multiset evaluate`.",
    ]
    return "\n".join([*lines, *(["", remarks.strip()] if remarks else [])]) + "\n"


def _start(start: Mapping[str, Any] | None) -> list[str]:
    if start is None:
        return []
    data, commit = (start["data"] or {}).get("name", "unknown data"), (start["git"] or "unknown")[:12]
    return [f"- Initialised with the weights of {start['model']}, trained on {data}, commit {commit}"]


def _row(size: str, numbers: Mapping[str, Any], class_f1: float | None = None) -> str:
    low, high = numbers["interval"]
    exact = f"{numbers['exact_match']:.3f} ({low:.3f} to {high:.3f})"
    of_classes = "-" if class_f1 is None else f"{class_f1:.3f}"  # defined over all examples only
    return f"| {size} | {numbers['examples']:,} | {exact} | {numbers['f1']:.3f} | {of_classes} |"
