"""All losses on equal terms: ``python -m benchmarks.equal_terms RUNS [--only METHOD ...] [--variants easy medium]``.

The paper's six losses and ours on the photographs of COCO (TORCHMULTISET_COCO), each with the same frozen features,
projection, pooling, dropout, weight decay, averaged weights and number of epochs. Each loss has the best of three
learning rates, by the mean of exact match and F1 on the validation data with seed 0, and then five seeds. Decoding is
greedy or a search, whichever has the higher exact match on the validation data, over all seeds. No choice depends on
the test data. RUNS is the folder of the runs; finished ones are not trained again. Writes results/equal-terms.json
and the tables of docs/which-loss.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.document import between, table
from benchmarks.own_data import choose_photographs
from benchmarks.record import circumstances
from paper.data import COCO_VARIABLE
from torchmultiset._files import write_whole
from torchmultiset.metrics import class_f1, count_rmse, exact_match, f1
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.shipped import MODEL
from torchmultiset.pipeline.config import RunConfig, config_of
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.record import data_record
from torchmultiset.pipeline.sweep import FinishedRun, Workers, describe_failures, sweep
from torchmultiset.training.evaluation import evaluate
from torchmultiset.viz.calibration import calibrate, log_probabilities
from torchmultiset.viz.comparison import compare

RECORD, PAGE = Path("results/equal-terms.json"), Path("docs/which-loss.md")
SCORES = "scores.json"
RATES = (5e-4, 1e-3, 2e-3)
SEEDS = range(5)
EPOCHS = {"easy": 30, "medium": 14}
SHARED: Mapping[str, Any] = {
    **{"backbone": "efficientnet-lite0", "image_size": 256, "units": (256,), "pool": "mean-max", "batch_size": 32},
    **{"dropout": 0.3, "weight_decay": 0.05, "ema": 0.99, "select": "last", "schedule": "one-cycle"},
}
_POLICY = {"policy": "lstm", "hidden": 128}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "L_multi": {"objective": "multi", **_POLICY},
    "L_RL": {"objective": "rl", **_POLICY},
    "L_dm^1": {"objective": "dm-l1", **_POLICY},
    "L_dm^KL": {"objective": "dm-kl", **_POLICY},
    "L_seq": {"objective": "seq", **_POLICY},
    "L_1-step": {"objective": "one-step"},
    "L_multi, transformer": {"objective": "multi", "policy": "transformer", "hidden": 128},
    "marginal": {"objective": "marginal", **_POLICY},
    "count table": {"objective": "counts", "count_head": "table"},
    "count table, sizes": {"objective": "counts", "count_head": "table", "size_potential": True},
    "mixture": {"objective": "counts", "count_head": "mixture"},
    "cells, sizes": {"objective": "counts", "count_head": "cells", "size_head": True},
    "power": {"objective": "power"},
    "slots": {"objective": "hungarian", "hidden": 128},
}


def main() -> None:
    """Train the missing runs, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*METHODS], default=[*METHODS], metavar="METHOD")
    parser.add_argument("--variants", nargs="+", choices=[*EPOCHS], default=[*EPOCHS])
    options = parser.parse_args()
    runs, coco = options.runs.resolve(), Path(os.environ[COCO_VARIABLE]).resolve()
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {**circumstances(), "settings": dict(SHARED), "rates": RATES}
    for variant in options.variants:
        path = runs / f"coco-{variant}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            choose_photographs(path, variant, coco)
        measured = record.setdefault(variant, {"data": data_record(path), "epochs": EPOCHS[variant], "methods": {}})
        for method in options.only:
            measured["methods"][method] = compare_rates(method, path, runs, EPOCHS[variant])
            print(variant, method, _line(measured["methods"][method]), flush=True)
        measured["tests"] = paired_tests(measured["methods"])
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(document(record, PAGE.read_text()))


def compare_rates(method: str, data: Path, runs: Path, epochs: int) -> dict[str, Any]:
    """Train a method with each rate, then with all seeds at the best rate; return its scores."""
    first = _train(method, data, runs, epochs, [(rate, 0) for rate in RATES])
    by_rate = {rate: _read(first[rate, 0])["greedy"]["validation"] for rate in RATES}
    best = max(RATES, key=lambda rate: by_rate[rate]["exact_match"] + by_rate[rate]["f1"])
    every = _train(method, data, runs, epochs, [(best, seed) for seed in SEEDS])
    scores = [_read(every[best, seed]) for seed in SEEDS]
    ways = [way for way in ("greedy", "search") if way in scores[0]]
    way = max(ways, key=lambda way: np.mean([one[way]["validation"]["exact_match"] for one in scores]))
    return {
        "rate": best,
        "validation_by_rate": {f"{rate:g}": by_rate[rate] for rate in RATES},
        "decoding": way,
        "validation_by_decoding": {
            each: float(np.mean([one[each]["validation"]["exact_match"] for one in scores])) for each in ways
        },
        "seeds": [one[way]["test"] | one["probabilities"] for one in scores],
        "images_per_second": float(np.median([one["images_per_second"] for one in scores])),
        "parameters": scores[0]["parameters"],
        "minutes": round(sum(run.record["minutes"] for run in every.values()) / len(every), 2),
        "right": [one[way]["right"] for one in scores],
    }


def _train(
    method: str, data: Path, runs: Path, epochs: int, wanted: Sequence[tuple[float, int]]
) -> dict[tuple[float, int], FinishedRun]:
    def name(rate: float, seed: int) -> str:
        return f"{data.stem}/{method.replace(', ', '-').replace(' ', '-')}/{rate:g}/seed-{seed}"

    def config(rate: float, seed: int) -> RunConfig:
        values = {**SHARED, **METHODS[method], "data": str(data), "epochs": epochs, "lr": rate, "seed": seed}
        return config_of(values)

    configs = {name(*one): config(*one) for one in wanted}
    workers = Workers(os.cpu_count() or 1, threads=1)
    result = sweep(configs, runs, workers=workers, after=("benchmarks.equal_terms:measure", {}))
    if result.failures:
        raise SystemExit(describe_failures(result.failures))
    return {one: result.finished[name(*one)] for one in wanted}


def measure(name: str, folder: Path, task: Task) -> None:
    """Score a finished run on validation and test data, with each decoding, and write ``scores.json``."""
    del name
    folder = Path(folder)
    if (folder / SCORES).exists():
        return
    predictor = Predictor.load(folder / MODEL).eval()
    ways = ["greedy", "search"] if predictor.probabilistic and predictor.steps else ["greedy"]
    scores: dict[str, Any] = {"parameters": sum(each.numel() for each in predictor.parameters())}
    answers: dict[str, Tensor] = {}
    test = task.splits["test"]
    target = torch.from_numpy(test.counts)
    for way in ways:
        predictor.decoding = way  # type: ignore[assignment]
        scores[way] = {}
        for split in ("validation", "test"):
            began = time.perf_counter()
            counts, true = evaluate(predictor, task.splits[split])
            if way == "greedy" and split == "test":
                scores["images_per_second"] = len(true) / (time.perf_counter() - began)
            scores[way][split] = _scores(counts, true)
        answers[way] = counts
        scores[way]["right"] = "".join("01"[int(each)] for each in exact_match(counts, target))
    predictor.decoding = "greedy"
    scores["probabilities"] = {"nll": None, "calibration_error": None}
    if predictor.probabilistic:
        truth = log_probabilities(predictor, test, target)
        answered = log_probabilities(predictor, test, answers["greedy"]).exp().clamp(max=1)
        error = calibrate(answered, exact_match(answers["greedy"], target).bool()).error
        scores["probabilities"] = {
            "nll": float(-truth.clamp(min=-50).mean()),
            "impossible": float((truth < -50).double().mean()),
            "calibration_error": float(error),
        }
    write_whole(folder / SCORES, json.dumps(scores) + "\n")


def _scores(counts: Tensor, target: Tensor) -> dict[str, float]:
    return {
        "exact_match": exact_match(counts, target).mean().item(),
        "f1": f1(counts, target).mean().item(),
        "class_f1": class_f1(counts, target).item(),
        "rmse": count_rmse(counts, target).item(),
    }


def _read(run: FinishedRun) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((run.folder / SCORES).read_text())
    return scores


def paired_tests(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Test the method that is best on the validation data against each of the others, on the test data."""
    first = max(methods, key=lambda name: max(methods[name]["validation_by_decoding"].values()))
    right = {
        name: {seed: np.array([*each]) == "1" for seed, each in enumerate(one["right"])}
        for name, one in methods.items()
    }
    others = {name: each for name, each in right.items() if name != first}
    found = compare(right[first], others)
    return {"first": first, "adjusted_p": {one.other: one.adjusted for one in found}}


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the tables of this record."""
    lines: list[str] = []
    for variant in EPOCHS:
        if variant in record:
            lines += [f"**COCO {variant.title()}**", "", *_table(record[variant]), ""]
    return between(page, "equal-terms", lines[:-1], record)


def _table(measured: Mapping[str, Any]) -> list[str]:
    header = ["", "EM", "F1", "class F1", "NLL", "calibration error", "mRMSE", "images/s", "p"]
    methods, tests = measured["methods"], measured["tests"]
    order = sorted(methods, key=lambda name: -_mean(methods[name], "exact_match"))
    return table(header, ([name.replace("_", r"\_"), *_cells(methods[name], tests, name)] for name in order))


def _cells(one: Mapping[str, Any], tests: Mapping[str, Any], name: str) -> list[str]:
    spread = float(np.std([seed["exact_match"] for seed in one["seeds"]], ddof=1))
    p = "-" if name == tests["first"] else f"{tests['adjusted_p'][name]:.3f}"
    numbers = [f"{_mean(one, score):.3f}" for score in ("f1", "class_f1")]
    known = [
        f"{_mean(one, score):.{digits}f}" if one["seeds"][0][score] is not None else "-"
        for score, digits in (("nll", 2), ("calibration_error", 3))
    ]
    speed = f"{one['images_per_second']:,.0f}"
    return [f"{_mean(one, 'exact_match'):.3f} ±{spread:.3f}", *numbers, *known, f"{_mean(one, 'rmse'):.3f}", speed, p]


def _mean(one: Mapping[str, Any], score: str) -> float:
    return float(np.mean([seed[score] for seed in one["seeds"]]))


def _line(one: Mapping[str, Any]) -> str:
    nll = one["seeds"][0]["nll"]
    shown = "" if nll is None else f", NLL {_mean(one, 'nll'):.2f}"
    scores = f"EM {_mean(one, 'exact_match'):.3f}, F1 {_mean(one, 'f1'):.3f}{shown}"
    return f"{scores}, rate {one['rate']:g}, {one['decoding']}, {one['minutes']} min each"


if __name__ == "__main__":
    main()
