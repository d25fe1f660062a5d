"""Decodings of count heads on photographs of many objects: ``python -m benchmarks.decodings RUNS``; about ten minutes.

Trains two candidates of `multiset train` on the photographs of COCO (TORCHMULTISET_COCO) that show 5 to 25 objects, all
of the most frequent categories, on several random splits, and scores each decoding on the validation and test images.
RUNS is the folder of the runs; finished ones are not trained again. Writes results/decodings.json and the table of
docs/which-loss.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.document import between, table
from benchmarks.record import circumstances
from paper.data import COCO_VARIABLE
from torchmultiset._files import write_whole
from torchmultiset.metrics import exact_match, f1
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.candidates import candidates
from torchmultiset.pipeline.config import changed, config_of
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.run import train_run
from torchmultiset.training.evaluation import evaluate

RECORD, PAGE = Path("results/decodings.json"), Path("docs/which-loss.md")
TRIED = ("poisson", "cells")
SPLITS = range(3)
SIZES, CATEGORIES = (5, 25), 12


def main() -> None:
    """Train the missing runs, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    data = runs / "many.jsonl"
    number = choose_photographs(data, Path(os.environ[COCO_VARIABLE]).resolve())
    scores = [measure(data, split, runs) for split in SPLITS]
    record = {**circumstances(), "photographs": number, "sizes": SIZES, "categories": CATEGORIES, "splits": scores}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    write_whole(PAGE, document(record, PAGE.read_text()))


def choose_photographs(path: Path, folder: Path) -> int:
    """Write the list of photographs with many objects, and return their number."""
    objects: dict[str, list[str]] = defaultdict(list)
    crowds = set[str]()
    for split in ("train", "val"):
        found = json.loads((folder / f"instances_{split}.json").read_text())
        names = {one["id"]: one["name"] for one in found["categories"]}
        files = {one["id"]: one["file_name"] for one in found["images"]}
        for one in found["annotations"]:
            objects[files[one["image_id"]]].append(names[one["category_id"]])
            if one.get("iscrowd"):
                crowds.add(files[one["image_id"]])
    frequent = {name for name, _ in Counter(name for some in objects.values() for name in some).most_common(CATEGORIES)}
    least, most = SIZES
    lines = [
        json.dumps({"image": str(folder / "images" / file), "labels": labels})
        for file, labels in sorted(objects.items())
        if file not in crowds and least <= len(labels) <= most and {*labels} <= frequent
    ]
    write_whole(path, "\n".join(lines) + "\n")
    return len(lines)


def measure(data: Path, split: int, runs: Path) -> dict[str, Any]:
    """Return the scores of each candidate and decoding on one random split."""
    base = config_of({"data": str(data), "split_seed": split})
    found: dict[str, Any] = {}
    for candidate in candidates(prepare(base)):
        if candidate.name not in TRIED:
            continue
        config, folder = changed(candidate.applied_to(base), {"decoding": "greedy"}), runs / f"{candidate.name}-{split}"
        if not read_record(folder).get("finished"):
            train_run(config, folder, baselines=False, resume=folder.exists())
        predictor, task = Predictor.load(folder), prepare(config)
        found[candidate.name] = {}
        for decoding in predictor.decodings:
            predictor.decoding = decoding
            for name in ("validation", "test"):
                counts, target = evaluate(predictor, task.splits[name])
                found[candidate.name].setdefault(name, {})[decoding] = {
                    "exact_match": exact_match(counts, target).mean().item(),
                    "f1": f1(counts, target).mean().item(),
                    "labels": counts.sum(1).float().mean().item(),
                    "true_labels": target.sum(1).float().mean().item(),
                }
        print(split, candidate.name, json.dumps(found[candidate.name]), flush=True)
    return found


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the table of this record: means over the splits, on the test images."""
    header = ["", "decoding", "EM", "F1", "labels predicted", "labels"]
    rows = [
        [
            name if i == 0 else "",
            f"`{decoding}`",
            *_means([split[name]["test"][decoding] for split in record["splits"]]),
        ]
        for name in TRIED
        for i, decoding in enumerate(record["splits"][0][name]["test"])
    ]
    return between(page, "decodings", table(header, rows), record)


def _means(scores: Sequence[Mapping[str, float]]) -> list[str]:
    mean = {name: float(np.mean([one[name] for one in scores])) for name in scores[0]}
    return [f"{mean['exact_match']:.3f}", f"{mean['f1']:.3f}", f"{mean['labels']:.1f}", f"{mean['true_labels']:.1f}"]


if __name__ == "__main__":
    main()
