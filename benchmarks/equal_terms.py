"""All losses on equal terms: ``python -m benchmarks.equal_terms RUNS [--only METHOD ...] [--variants easy medium]``.

The paper's six losses and ours on the photographs of COCO (TORCHMULTISET_COCO), each with the same frozen features,
projection, pooling, dropout, weight decay, averaged weights and number of epochs. Each loss has the best of three
learning rates, by the mean of exact match and F1 on the validation data with seed 0, and then five seeds. Decoding is
greedy or a search, whichever has the higher exact match on the validation data, over all seeds. No choice depends on
the test data. RUNS is the folder of the runs; finished ones are not trained again. Writes results/equal-terms.json
after each method, and the tables of docs/which-loss.md at the end. Methods that the record has with the same settings
and data are skipped. If a method fails, the others are run, and the failure is reported again at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.document import between, table
from benchmarks.own_data import choose_photographs
from benchmarks.record import circumstances
from paper.data import COCO_VARIABLE
from torchmultiset._files import write_whole
from torchmultiset.data import Examples
from torchmultiset.metrics import class_f1, count_rmse, exact_match, f1
from torchmultiset.model.outputs import Decoding
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.shipped import MODEL
from torchmultiset.pipeline.config import RunConfig, config_of
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.sweep import FinishedRun, Workers, describe_failures, sweep
from torchmultiset.pipeline.workers import available_cores
from torchmultiset.training.evaluation import evaluate
from torchmultiset.viz.calibration import calibrate, log_probabilities
from torchmultiset.viz.comparison import compare

RECORD, PAGE = Path("results/equal-terms.json"), Path("docs/which-loss.md")
SCORES = "scores.json"
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = range(5)
EPOCHS = {"easy": 30, "medium": 14}
LEAST = -50.0
"""Smallest log-probability in the mean: one impossible multiset must not decide it."""
SHARED: Mapping[str, Any] = {
    **{"backbone": "efficientnet-lite0", "image_size": 256, "units": (256,), "pool": "mean-max", "batch_size": 32},
    **{"dropout": 0.3, "weight_decay": 0.05, "ema": 0.99, "select": "last", "schedule": "one-cycle"},
}
_POLICY = {"policy": "lstm", "hidden": 128}
_CELLS = {"objective": "counts", "count_head": "cells", "size_head": True}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "L_multi": {"objective": "multi", **_POLICY},
    "L_RL": {"objective": "rl", **_POLICY},
    "L_dm^1": {"objective": "dm-l1", **_POLICY},
    "L_dm^KL": {"objective": "dm-kl", **_POLICY},
    "L_seq": {"objective": "seq", **_POLICY},
    "L_1-step": {"objective": "one-step"},
    "L_multi, transformer": {"objective": "multi", "policy": "transformer", "hidden": 128},
    "marginal": {"objective": "marginal", "policy": "feed-forward", "hidden": 128},
    "count table": {"objective": "counts", "count_head": "table"},
    "count table, sizes": {"objective": "counts", "count_head": "table", "size_potential": True},
    "mixture, sizes": {"objective": "counts", "count_head": "mixture", "size_potential": True},
    "cells, sizes": _CELLS,
    "cells, sizes, joint": {**_CELLS, "joint_states": 16},  # the most sub-multisets that four labels have
    "power": {"objective": "power"},
    "slots": {"objective": "hungarian", "hidden": 128},
}
CAPTION = (
    "All rows have the same frozen features, 1x1 projection, dropout, weight decay, averaged weights and epochs, and"
    f" the best of the learning rates {', '.join(f'{rate:g}' for rate in RATES)} on the validation images. Heads and"
    " policies that read one vector pool the map by its mean and maximum. Pooling does not apply to the transformer and"
    " the slots, which attend to the positions of the map, nor to the cells, which count on them. All likelihoods of"
    ' counts are normalised over the sizes that occur; "sizes" adds a learned size potential, which cells predict from'
    " the image; it changes nothing on COCO Easy, where all multisets have two labels."
    f" Mean over {len(SEEDS)} seeds, with the standard deviation of EM. Decoding, chosen on the validation images,"
    " applies to all columns but NLL. NLL is exact over all orders of the labels, and each image counts at most"
    f" {-LEAST:g}. images/s: predictions from cached features per second of processor time, without the backbone."
    " p: two-sided paired test on the test images, Holm-corrected, against the first, the method with the highest EM on"
    ' the validation images; "better" and "worse" are about the first ([record](../results/equal-terms.json)).'
)


def main() -> None:
    """Train the missing runs, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*METHODS], default=[*METHODS], metavar="METHOD")
    parser.add_argument("--variants", nargs="+", choices=[*EPOCHS], default=[*EPOCHS])
    parser.add_argument("--workers", type=int, default=available_cores(), help="runs at a time, one thread each")
    options = parser.parse_args()
    runs, coco = options.runs.resolve(), Path(os.environ[COCO_VARIABLE]).resolve()
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    failures = []
    for variant in options.variants:
        path = runs / f"coco-{variant}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            choose_photographs(path, variant, coco)
        methods = up_to_date(record.get(variant, {}).get("methods", {}), path, variant)
        for method in options.only:
            if method in methods:
                continue
            about = {**circumstances(), "settings": settings_of(method, path, variant)}
            try:
                methods[method] = about | compare_rates(method, path, runs, EPOCHS[variant], options.workers)
            except (OSError, RuntimeError, ValueError) as error:
                failures.append(f"{variant}, {method}: {error}")
                print(failures[-1], flush=True)
                continue
            record[variant] = {"methods": methods, "tests": paired_tests(methods)}
            write_whole(RECORD, json.dumps(record, indent=1) + "\n")
            print(variant, method, _line(methods[method]), flush=True)
    if record:
        write_whole(PAGE, document(record, PAGE.read_text()))
    if failures:
        raise SystemExit("\n\n".join(["some methods failed; start the same command again to retry", *failures]))


def settings_of(method: str, data: Path, variant: str) -> dict[str, Any]:
    """Return everything that determines the scores of a method, as it is read from a record."""
    settings = {**SHARED, **METHODS[method], "epochs": EPOCHS[variant], "rates": RATES, "seeds": [*SEEDS]}
    about_data = {"name": data.name, "sha256": data_checksum(data)}
    read: dict[str, Any] = json.loads(json.dumps({**settings, "data": about_data}))
    return read


def data_checksum(data: Path) -> str:
    """Return the SHA-256 of the examples of a .jsonl file, in order, with the names of the images and not their paths.

    Paths are relative to the folder of the file, and thus differ between two folders with the same data.
    """
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    examples = [{**line, "image": PurePosixPath(line["image"]).name} for line in lines]
    return hashlib.sha256(json.dumps(examples, sort_keys=True).encode()).hexdigest()


def up_to_date(methods: Mapping[str, Any], data: Path, variant: str) -> dict[str, Any]:
    """Return the methods of a record whose settings and data are those of today."""
    return {
        name: one
        for name, one in methods.items()
        if name in METHODS and one["settings"] == settings_of(name, data, variant)
    }


def compare_rates(method: str, data: Path, runs: Path, epochs: int, workers: int) -> dict[str, Any]:
    """Train a method with each rate, then with all seeds at the best rate; return its scores."""
    finished = _train(method, data, runs, epochs, [(rate, 0) for rate in RATES], workers)
    by_rate = {rate: _read(finished[rate, 0])["decodings"]["greedy"]["validation"] for rate in RATES}
    best = max(RATES, key=lambda rate: by_rate[rate]["exact_match"] + by_rate[rate]["f1"])
    finished |= _train(method, data, runs, epochs, [(best, seed) for seed in SEEDS if seed], workers)
    scores = [_read(finished[best, seed]) for seed in SEEDS]
    found = {way: [one["decodings"][way] for one in scores] for way in scores[0]["decodings"]}
    validation = {way: _mean([one["validation"] for one in each], "exact_match") for way, each in found.items()}
    way = max(validation, key=validation.__getitem__)
    return {
        "rate": best,
        "validation_by_rate": {f"{rate:g}": by_rate[rate] for rate in RATES},
        "decoding": way,
        "validation_by_decoding": validation,
        "seeds": [
            each["test"] | {name: one[name] for name in ("nll", "impossible")}
            for one, each in zip(scores, found[way], strict=True)
        ],
        "images_per_second": float(np.median([each["images_per_second"] for each in found[way]])),
        "parameters": scores[0]["parameters"],
        "minutes": round(float(np.mean([run.record["minutes"] for run in finished.values()])), 2),
        "right": [each["right"] for each in found[way]],
    }


def _train(
    method: str, data: Path, runs: Path, epochs: int, wanted: Sequence[tuple[float, int]], workers: int
) -> dict[tuple[float, int], FinishedRun]:
    def name(rate: float, seed: int) -> str:
        return f"{data.stem}/{method.replace(', ', '-').replace(' ', '-')}/{rate:g}/seed-{seed}"

    configs = {name(*one): config_for(method, data, epochs, *one) for one in wanted}
    after = ("benchmarks.equal_terms:measure", dict[str, Any]())
    result = sweep(configs, runs, workers=Workers(workers, threads=1), after=after)
    if result.failures:
        raise RuntimeError(describe_failures(result.failures))
    return {one: result.finished[name(*one)] for one in wanted}


def config_for(method: str, data: Path, epochs: int, rate: float, seed: int) -> RunConfig:
    """Return the settings of a run."""
    return config_of({**SHARED, **METHODS[method], "data": str(data), "epochs": epochs, "lr": rate, "seed": seed})


def measure(name: str, folder: Path, task: Task) -> None:
    """Score a finished run on validation and test data, with each decoding, and write ``scores.json``."""
    del name
    folder = Path(folder)
    if (folder / SCORES).exists():
        return
    predictor = Predictor.load(folder / MODEL).eval()
    write_whole(folder / SCORES, json.dumps(scores_of(predictor, task.splits)) + "\n")


@torch.no_grad()
def scores_of(predictor: Predictor, splits: Mapping[str, Examples]) -> dict[str, Any]:
    """Return the scores of a model on validation and test data, with each decoding that it has."""
    test = splits["test"]
    target = torch.from_numpy(test.counts)
    ways: Sequence[Decoding] = ("greedy", "search") if predictor.searchable else ("greedy",)
    beam = predictor.exact_beam(predictor.max_size)
    decodings: dict[str, Any] = {}
    for way in ways:
        predictor.decoding = way
        counts, _ = evaluate(predictor, test)
        right, scores = exact_match(counts, target).bool(), _scores(counts, target)
        if predictor.searchable:
            confidence = log_probabilities(predictor, test, counts, beam=beam).exp().clamp(max=1)
            scores["calibration_error"] = calibrate(confidence, right).error
        decodings[way] = {
            "validation": _scores(*evaluate(predictor, splits["validation"])),
            "test": scores,
            "right": "".join("01"[each] for each in right.int().tolist()),
            "images_per_second": _speed(predictor, test),
        }
    truth = log_probabilities(predictor, test, target, beam=beam) if predictor.searchable else None
    return {
        "parameters": sum(each.numel() for each in predictor.parameters()),
        "decodings": decodings,
        "nll": None if truth is None else float(-truth.clamp(min=LEAST).mean()),
        "impossible": None if truth is None else float((truth < LEAST).double().mean()),
    }


def _speed(predictor: Predictor, examples: Examples, *, batch_size: int = 64) -> float:
    """Return how many examples are predicted per second, without the time to read them.

    A run has one thread, and its processor time does not depend on what else the machine does.
    """
    seconds = 0.0
    for batch in examples.batches(batch_size):
        began = time.process_time()
        predictor.predict(batch.x)
        seconds += time.process_time() - began
    return len(examples) / seconds


def _scores(counts: Tensor, target: Tensor) -> dict[str, float | None]:
    return {
        "exact_match": exact_match(counts, target).mean().item(),
        "f1": f1(counts, target).mean().item(),
        "class_f1": class_f1(counts, target).item(),
        "rmse": count_rmse(counts, target).item(),
        "calibration_error": None,
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
    found = compare(right[first], {name: each for name, each in right.items() if name != first})
    others = {one.other: {"p": one.adjusted, "wins": one.wins, "losses": one.losses} for one in found}
    return {"first": first, "others": others}


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the tables of this record."""
    lines: list[str] = []
    for variant in EPOCHS:
        if variant in record:
            lines += [f"**COCO {variant.title()}**", "", *_table(record[variant]), ""]
    measured = [one for variant in EPOCHS if variant in record for one in record[variant]["methods"].values()]
    return between(page, "equal-terms", [*lines, CAPTION], *measured)


def _table(measured: Mapping[str, Any]) -> list[str]:
    header = ["", "EM", "F1", "class F1", "NLL", "calibration error", "mRMSE", "images/s", "decoding", "the first is"]
    methods, tests = measured["methods"], measured["tests"]
    order = sorted(methods, key=lambda name: -_mean(methods[name]["seeds"], "exact_match"))
    return table(header, ([name.replace("_", r"\_"), *_cells(methods[name], tests, name)] for name in order))


def _cells(one: Mapping[str, Any], tests: Mapping[str, Any], name: str) -> list[str]:
    seeds = one["seeds"]
    spread = float(np.std([seed["exact_match"] for seed in seeds], ddof=1))
    known = [
        f"{_mean(seeds, score):.{digits}f}" if seeds[0][score] is not None else "-"
        for score, digits in (("f1", 3), ("class_f1", 3), ("nll", 2), ("calibration_error", 3), ("rmse", 3))
    ]
    speed = f"{one['images_per_second']:,.0f}"
    against = "this one" if name == tests["first"] else _against(tests["others"][name])
    return [f"{_mean(seeds, 'exact_match'):.3f} ±{spread:.3f}", *known, speed, one["decoding"], against]


def _against(test: Mapping[str, Any]) -> str:
    ahead = test["wins"] - test["losses"]
    p = "p < 0.001" if test["p"] < 0.001 else f"p = {test['p']:.3f}"
    return f"{'better' if ahead > 0 else 'worse' if ahead < 0 else 'equal'}, {p}"


def _mean(seeds: Sequence[Mapping[str, Any]], score: str) -> float:
    return float(np.mean([seed[score] for seed in seeds]))


def _line(one: Mapping[str, Any]) -> str:
    seeds = one["seeds"]
    shown = "" if seeds[0]["nll"] is None else f", NLL {_mean(seeds, 'nll'):.2f}"
    scores = f"EM {_mean(seeds, 'exact_match'):.3f}, F1 {_mean(seeds, 'f1'):.3f}{shown}"
    return f"{scores}, rate {one['rate']:g}, {one['decoding']}, {one['minutes']} min each"


if __name__ == "__main__":
    main()
