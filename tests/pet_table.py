"""A table that a model learns in a second: three noisy counts in each row, and the labels that they count."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FAST = {"epochs": 2, "batch_size": 16, "units": (8,), "hidden": 8, "precision": "32-true"}


def write_pets(folder: Path, *, examples: int = 60, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["a,b,c,labels"]
    for counts in rng.integers(0, 3, (examples, 3)):
        labels = [name for name, count in zip(("cat", "dog", "fox"), counts, strict=True) for _ in range(count)]
        lines.append(",".join(f"{count + 0.1 * rng.normal():.3f}" for count in counts) + "," + ";".join(labels))
    path = folder / "pets.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
