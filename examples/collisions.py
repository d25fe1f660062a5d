"""Counts of particle kinds from the hits of simulated collisions: ``python examples/collisions.py``.

Each event has up to four photons, electrons and muons. A particle leaves hits with a direction, an energy and a depth,
measured with limited resolution: an electron often radiates a second, softer hit; a muon leaves hits in several layers.
A tenth of the hits are missing, and noise adds others. `multiset train` trains a model to count the particles from the
unordered set of hits. For comparison, a DeepSets network that regresses the counts is trained for as many epochs.

Data, run folder and scores.json are written to the given folder, or to a temporary one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from torchmultiset import Predictor
from torchmultiset.data import Examples, load_data
from torchmultiset.metrics import exact_match, f1

KINDS = ("electron", "muon", "photon")
MOST = 4


def make_event(rng: np.random.Generator) -> tuple[list[list[float]], dict[str, int]]:
    """Return the hits (eta, phi, energy, depth) of one event, and the number of particles of each kind."""
    counts = {kind: int(n) for kind, n in zip(KINDS, rng.integers(0, MOST + 1, size=len(KINDS)), strict=True)}
    hits = [hit for kind, n in counts.items() for _ in range(n) for hit in particle_hits(kind, rng)]
    hits = [hit for hit in hits if rng.random() > 0.1]  # missing hits
    noise = rng.poisson(2)
    hits += [[*rng.uniform(-2.5, 2.5, 2), rng.exponential(0.3), rng.uniform(0, 4)] for _ in range(noise)]
    rng.shuffle(hits)
    return [[round(float(value), 3) for value in hit] for hit in hits], counts


def particle_hits(kind: str, rng: np.random.Generator) -> list[list[float]]:
    """Return the hits of one particle, with the resolution of the detector."""
    eta, phi = rng.uniform(-2.5, 2.5, 2)
    energy = rng.uniform(2, 10)
    if kind == "photon":
        hits = [[eta, phi, energy, 1.5]]
    elif kind == "electron":
        hits = [[eta, phi, energy, 0.5]]
        if rng.random() < 0.5:
            hits.append([eta + 0.3, phi, 0.3 * energy, 1.5])
    else:
        hits = [[eta, phi, 0.5, depth] for depth in (2.5, 3.0, 3.5)]
    return [
        [
            hit[0] + rng.normal(0, 0.05),
            hit[1] + rng.normal(0, 0.05),
            hit[2] * (1 + rng.normal(0, 0.1)),
            hit[3] + rng.normal(0, 0.15),
        ]
        for hit in hits
    ]


def write_events(path: Path, number: int) -> None:
    """Write events as JSON lines, one array of hits of varying length each."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for _ in range(number):
            hits, counts = make_event(rng)
            file.write(json.dumps({"set": hits, "labels": counts}) + "\n")


class DeepSets(nn.Module):
    """Regression of counts: one network encodes each hit, and another reads their sum."""

    def __init__(self, features: int, classes: int, width: int = 128) -> None:
        super().__init__()
        self.mean, self.spread = torch.zeros(features), torch.ones(features)
        self.each = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Compute counts (B, C) from padded hits (B, N, 1 + D), whose channel 0 is 0 at padding."""
        each = self.each((x[..., 1:] - self.mean) / self.spread) * x[..., :1]
        counts: Tensor = self.whole(each.sum(1) / 10)
        return counts


def train_deep_sets(train: Examples, epochs: int, size: int) -> DeepSets:
    """Minimise the squared error of the counts, with the optimiser and the schedule of `multiset train`."""
    torch.manual_seed(0)
    everything = train.batch(range(len(train))).x
    hits = everything[everything[..., 0] > 0][:, 1:]
    model = DeepSets(hits.shape[1], len(train.classes))
    model.mean, model.spread = hits.mean(0), hits.std(0)
    steps = epochs * -(-len(train) // size)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=steps, pct_start=0.1, cycle_momentum=False)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(train))
        for start in range(0, len(order), size):
            batch = train.batch(order[start : start + size])
            loss = (model(batch.x) - batch.target).square().sum(1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    return model.eval()


def scores(counts: Tensor, target: Tensor) -> dict[str, float]:
    """Return exact match and F1."""
    return {"em": round(float(exact_match(counts, target).mean()), 4), "f1": round(float(f1(counts, target).mean()), 4)}


def main() -> None:
    """Make the events, train both models, and print their scores on the test events."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="folder for data, run and scores")
    parser.add_argument("--events", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=3.0)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    data, run = folder / "collisions.jsonl", folder / "run"
    write_events(data, options.events)
    command = ["train", str(data), "--minutes", f"{options.minutes:g}", "--out", str(run)]
    subprocess.run([sys.executable, "-m", "torchmultiset", *command], check=True)
    predictor, splits = Predictor.load(run), load_data(data)
    test = splits["test"].batch(range(len(splits["test"])))
    config = predictor.record["config"]
    regression = train_deep_sets(splits["train"], config["epochs"] or 20, config["batch_size"] or 64)
    with torch.no_grad():
        rounded = regression(test.x).round().clamp(min=0).long()
    found = {
        "events": options.events,
        "test_events": len(splits["test"]),
        "multiset train": scores(predictor.predict(test.x), test.target),
        "model": f"{config['encoder']}, {config['objective']}, {config['count_head']}",
        "epochs": config["epochs"],
        "DeepSets regression": scores(rounded, test.target),
    }
    (folder / "scores.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
