"""Train on user-like data with one command each: ``python -m benchmarks.own_data [DATA ...]``.

Generates images of dice, images of few and of many coloured shapes, and a table whose counts follow from its columns;
adds photographs of COCO if TORCHMULTISET_COCO is set to its folder. Runs `multiset train FILE` on each, and
`multiset train FILE --minutes 0`, which trains the best guess alone. Writes results/own-data.json after each data set,
and the table of docs/which-loss.md. Data sets that have a result are not run again, unless DATA lists them (dice,
shapes, many, trips, easy, medium).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.document import between, table
from benchmarks.record import circumstances
from paper.data import COCO_VARIABLE
from torchmultiset.pipeline.record import read_record
from torchmultiset.pipeline.standings import read_standings

RECORD, PAGE = Path("results/own-data.json"), Path("docs/which-loss.md")
COMMANDS = {"multiset train": [], "best guess alone": ["--minutes", "0"]}
BASELINES = ("ridge regression", "nearest neighbour", "majority baseline")
EXAMPLES = 300

_COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)}
_PIPS = {
    1: [(1, 1)],
    2: [(0, 0), (2, 2)],
    3: [(0, 0), (1, 1), (2, 2)],
    4: [(0, 0), (0, 2), (2, 0), (2, 2)],
    5: [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1)],
    6: [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)],
}


def main() -> None:
    """Generate the data, train, and write the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", help="data sets; default: those without a result")
    chosen = parser.parse_args().data
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        sources = {
            "dice": (draw_dice(folder / "dice", rng), "drawings of 1 to 5 dice"),
            "shapes": (draw_shapes(folder / "shapes", rng, most=5), "1 to 5 coloured shapes, 96 pixels"),
            "many": (draw_shapes(folder / "many", rng, most=30), "1 to 30 coloured shapes, 96 pixels"),
            "trips": (write_trips(folder / "trips.csv", rng), "a table of four columns"),
        }
        if coco := os.environ.get(COCO_VARIABLE):
            for variant in ("easy", "medium"):
                photographs = choose_photographs(folder / f"{variant}.jsonl", variant, Path(coco).resolve())
                sources[variant] = (photographs, f"COCO {variant.title()}, a subset")
        for short, (source, about) in sources.items():
            if short in chosen or (not chosen and short not in record):
                runs = {name: learn(source, flags) for name, flags in COMMANDS.items()}
                record[short] = {**circumstances(), "about": about, "runs": runs}
                RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(document(record, PAGE.read_text()))


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the table of this record."""
    header = ["data", "training examples", "winner", "`multiset train`", "best guess alone", *BASELINES]
    rows = []
    for one in record.values():
        run = one["runs"]["multiset train"]
        known = [one["about"], f"{run['splits']['train']:,}", run["winner"]]
        scores = [f"{_cell(each)}, {each['minutes']:.0f} min" for each in one["runs"].values()]
        rows.append([*known, *scores, *(_cell(run["baselines"][name]) for name in BASELINES)])
    return between(page, "own-data", table(header, rows), *record.values())


def _cell(scores: Mapping[str, Any]) -> str:
    low, high = scores["interval"]
    return f"{scores['exact_match']:.2f} ({low:.2f} to {high:.2f}) / {scores['f1']:.2f}"


def learn(source: Path, flags: list[str]) -> dict[str, Any]:
    """Train on a data set, and return the scores of the model and of the baselines."""
    run = source.with_name("run")
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "torchmultiset", "train", str(source), "--out", str(run), *flags]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    record, leaderboard = read_record(run), read_standings(run)
    test, names = record["test"], ("exact_match", "interval", "f1", "examples")
    baselines = {**test["baselines"], "majority baseline": test["constant"]["scores"]}
    return {
        **{name: test["overall"][name] for name in names},
        "minutes": (time.monotonic() - began) / 60,
        "splits": record["examples"],
        "winner": next((one.name for one in leaderboard if "baseline" not in one.name), ""),
        "leaderboard": [one._asdict() for one in leaderboard],
        "baselines": {name: {key: baselines[name][key] for key in names} for name in BASELINES},
    }


def draw_dice(folder: Path, rng: np.random.Generator) -> Path:
    """Draw noisy images of rotated dice, with a labels.csv."""
    folder.mkdir()
    lines = [("image", "labels")]
    for i in range(EXAMPLES):
        image = Image.new("RGB", (480, 360), tuple(rng.integers(60, 120, 3).tolist()))
        faces = rng.integers(1, 7, rng.integers(1, 6)).tolist()
        for face, spot in zip(faces, rng.permutation(12).tolist(), strict=False):
            die = _die(face, int(rng.integers(64, 90))).rotate(
                float(rng.uniform(-25, 25)), expand=True, resample=Image.Resampling.BILINEAR
            )
            corner = spot % 4 * 118 + int(rng.integers(0, 10)), spot // 4 * 118 + int(rng.integers(0, 10))
            image.paste(die, corner, die)
        noisy = np.asarray(image) + rng.normal(0, 6, (360, 480, 1))
        name = f"IMG_{i:04}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / name, quality=88)
        lines.append((name, ";".join(map(str, faces))))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return folder


def _die(face: int, side: int) -> Image.Image:
    die = Image.new("RGBA", (side, side))
    pen = ImageDraw.Draw(die)
    pen.rounded_rectangle([0, 0, side - 1, side - 1], side // 6, fill=(245, 240, 230, 255))
    for across, down in _PIPS[face]:
        x, y, radius = side * (0.25 + 0.25 * across), side * (0.25 + 0.25 * down), side * 0.08
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=(20, 20, 20, 255))
    return die


def draw_shapes(folder: Path, rng: np.random.Generator, *, most: int) -> Path:
    """Draw images of circles and squares in three colours, with a .jsonl file."""
    folder.mkdir()
    side, cell, lines = 96, 16, list[str]()
    for i in range(EXAMPLES):
        image = Image.new("RGB", (side, side), tuple(rng.integers(225, 255, 3).tolist()))
        pen, labels = ImageDraw.Draw(image), list[str]()
        for spot in rng.permutation(36)[: rng.integers(1, most + 1)].tolist():
            colour, shape = [*_COLOURS][rng.integers(3)], ("circle", "square")[rng.integers(2)]
            x, y = spot % 6 * cell + int(rng.integers(0, 3)), spot // 6 * cell + int(rng.integers(0, 3))
            draw = pen.ellipse if shape == "circle" else pen.rectangle
            draw([x, y, x + cell - 4, y + cell - 4], fill=_COLOURS[colour])
            labels.append(f"{colour} {shape}")
        image.save(folder / f"{i}.png")
        lines.append(json.dumps({"image": f"{folder.name}/{i}.png", "labels": labels}))
    path = folder.with_suffix(".jsonl")
    path.write_text("\n".join(lines))
    return path


def choose_photographs(path: Path, variant: str, coco: Path) -> Path:
    """Select the photographs of COCO by the paper's rules, and write a .jsonl file."""
    command = [sys.executable, "-m", "torchmultiset", "data", "build", f"coco-{variant}", str(path)]
    command += ["--train-json", str(coco / "instances_train.json"), "--train-images", str(coco / "images")]
    command += ["--test-json", str(coco / "instances_val.json")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def write_trips(path: Path, rng: np.random.Generator) -> Path:
    """Write a table of packing lists whose counts are functions of the other columns."""
    heads = ["people", "nights", "km", "temperature", *(f"count:{name}" for name in ("towel", "tent", "meal", "tank"))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        for _ in range(EXAMPLES):
            people, nights, km = int(rng.integers(1, 5)), int(rng.integers(0, 4)), round(float(rng.uniform(5, 400)), 1)
            counts = 2 * people, -(-people // 2), people * nights, int(km > 200)
            writer.writerow([people, nights, km, round(float(rng.normal(15, 8)), 1), *counts])
    return path


if __name__ == "__main__":
    main()
