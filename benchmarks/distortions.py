"""Distortions of digits, chosen on held-out digits: ``python -m benchmarks.distortions``; about seven minutes.

A count head learns 2,750 of MNIST's training digits (TORCHMULTISET_MNIST), two of 20 pixels per image, and is tested on
images of the other training digits. Each digit is shown 300 times: distorted anew each time, or ten times with the same
distortion, as in an epoch of MNIST Multi (10). MNIST's test digits are not used. Writes results/distortions.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from benchmarks.record import circumstances
from torchmultiset._files import write_whole
from torchmultiset.data.augment import affine
from torchmultiset.data.digits import Digits, load_digits
from torchmultiset.data.examples import Batch
from torchmultiset.data.mnist_multi import MnistMulti, generate
from torchmultiset.model.build import build_objective, build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.predictor import Predictor
from torchmultiset.viz.comparison import compare

RECORD = Path("results/distortions.json")
IMAGES = MnistMulti(sizes=(2, 2), digit_px=(20, 20), canvas=44, clutter=2)
BATCH = 64


@dataclass(frozen=True)
class Trial:
    """Size of the comparison."""

    digits: int = 2_750
    """Number of digits to learn; the others are held out."""
    times: int = 300
    """How often each digit is shown, about."""
    tested: int = 10_000
    """Number of test images."""


@dataclass(frozen=True)
class Distortion:
    """Changes of the digits."""

    uses: int = 1
    """How often a distorted digit is shown, on average, before it is distorted anew."""
    degrees: float = 10
    scale: float = 0.1
    bend: float = 1 / 40


DISTORTIONS: Mapping[str, Distortion] = {
    "anew": Distortion(),
    "anew, stronger": Distortion(degrees=15, scale=0.15, bend=1 / 20),
    "ten times the same": Distortion(uses=10),
}
"""The first is compared with the others; `degrees`, `scale` and `bend` are by default those of ``--fresh elastic``."""


def main() -> None:
    """Train one model with each distortion, and write the record."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    pools, trial = load_digits(), Trial()
    if pools.name != "mnist":
        raise SystemExit("all of MNIST is needed: set TORCHMULTISET_MNIST to the folder of its files, or to download")
    digits = pools.train
    runs, right = dict[str, Any](), dict[str, Bool[np.ndarray, " n"]]()
    for name, distortion in DISTORTIONS.items():
        runs[name], right[name] = run(digits, distortion, trial)
        print(name, json.dumps(runs[name]), flush=True)
    record = {**circumstances(), "trial": asdict(trial), "runs": runs, "tests": paired_tests(right)}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")


def paired_tests(right: Mapping[str, Bool[np.ndarray, " n"]]) -> dict[str, Any]:
    """Test the first distortion against each of the others."""
    (first, *others) = right
    found = compare({0: right[first]}, {name: {0: right[name]} for name in others})
    return {one.other: {"p": one.adjusted, "wins": one.wins, "losses": one.losses} for one in found}


def run(digits: Digits, distortion: Distortion, trial: Trial) -> tuple[dict[str, Any], Bool[np.ndarray, " n"]]:
    """Train a model; return its scores, and which test images it has right."""
    began = time.process_time()
    learned, others = (_some(digits, part) for part in (slice(trial.digits), slice(trial.digits, None)))
    predictor = _train(learned, distortion, trial)
    unseen, seen = _right(predictor, others, trial.tested, seed=77), _right(predictor, learned, 2_000, seed=78)
    scores = {
        **asdict(distortion),
        "unseen_digits": float(unseen.mean()),
        "training_digits": float(seen.mean()),
        "processor_seconds": round(time.process_time() - began, 1),
    }
    return scores, unseen


def _train(digits: Digits, distortion: Distortion, trial: Trial) -> Predictor:
    torch.manual_seed(0)
    config = ObjectiveConfig("counts", count_head="cells")
    predictor = build_predictor(
        ModelConfig(channels=(16, 32, 48), layers=2),
        config,
        shape=(1, IMAGES.canvas, IMAGES.canvas),
        classes=[*map(str, IMAGES.classes)],
        max_size=2,
        stop="fixed",
    )
    objective = build_objective(config, predictor, seed=0)
    epochs = trial.times // distortion.uses
    batches = trial.times * trial.digits // epochs // IMAGES.sizes[1] // BATCH
    adam = torch.optim.Adam(predictor.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=epochs * batches, pct_start=0.1)
    for epoch in range(epochs):
        examples = generate(
            replace(IMAGES, seed=epoch), _changed(digits, distortion, epoch), "train", range(BATCH * batches), lazy=True
        )
        for first in range(0, len(examples), BATCH):
            with torch.autocast("cpu", torch.bfloat16):
                loss = objective.loss(predictor, examples.batch(range(first, first + BATCH)), torch.Generator())
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
            adam.step()
            schedule.step()
    return predictor.eval()


def _changed(digits: Digits, distortion: Distortion, seed: int) -> Digits:
    nothing = torch.empty(0, 0, dtype=torch.int64)
    batch = Batch(torch.from_numpy(digits.images.copy())[:, None], target=nothing, labels=nothing)
    how = {name: value for name, value in asdict(distortion).items() if name != "uses"}
    changed = affine(batch, torch.Generator().manual_seed(seed), by=1 / 28, **how)
    return Digits(changed.x[:, 0].numpy(), digits.labels)


def _right(predictor: Predictor, digits: Digits, number: int, *, seed: int) -> Bool[np.ndarray, " n"]:
    examples = generate(replace(IMAGES, seed=seed), digits, "train", range(number), lazy=True)
    parts = []
    for first in range(0, number, 500):
        batch = examples.batch(range(first, min(first + 500, number)))
        parts.append((predictor.predict(batch.x) == batch.target).all(1).numpy())
    return np.concatenate(parts)


def _some(digits: Digits, part: slice) -> Digits:
    return Digits(digits.images[part], digits.labels[part])


if __name__ == "__main__":
    main()
