"""Numbers that stay numbers: training with degenerate data, for every objective and precision."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaign.kinds import command
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import OBJECTIVES

__all__ = ["DATA", "PRECISIONS", "degenerate_data"]

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
LABELS = ("cat", "cat;dog", "dog;dog;owl", "owl")


def _rows(values: Callable[[int], tuple[float, float]], labels: Callable[[int], str]) -> str:
    parts = ["train"] * 16 + ["validation"] * 8
    lines = [f"{values(i)[0]!r},{values(i)[1]!r},{labels(i)},{part}" for i, part in enumerate(parts)]
    return "\n".join(["a,b,labels,split", *lines]) + "\n"


def _label(i: int) -> str:
    return LABELS[i % 4]


DATA = {
    "all inputs equal": _rows(lambda _: (1.0, 2.0), _label),
    "huge values": _rows(lambda i: (1e30 * (i % 5), -3e37), _label),
    "tiny values": _rows(lambda i: (1e-30 * i, 1e-38), _label),
    "one constant column": _rows(lambda i: (float(i % 4), 7.0), _label),
    "one outlier": _rows(lambda i: (1e20 if i == 3 else float(i % 4), float(i)), _label),
    "one training example": "a,b,labels,split\n1,2,cat;dog,train\n1,2,cat,validation\n",
    "contradicting labels": _rows(lambda i: (float(i // 4 % 2), 0.5), _label),
    "labels are always empty but one": _rows(lambda i: (float(i), 1.0), lambda i: "cat" if i == 0 else ""),
}


def train(folder: Path, content: str, objective: str, precision: str) -> str:
    """Train for two epochs; return "finite", "refused" or what is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "data.csv").write_text(content)
    flags = ("--epochs", 2, "--batch-size", 8, "--units", 8, "--lr", 0.1, "--devices", 1, "--precision", precision)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            code, _ = command("train", folder / "data.csv", "--out", folder / "run", "--objective", objective, *flags)
    except BaseException as error:
        return f"uncaught: {type(error).__name__}: {str(error)[:200]}"
    if code:
        return "refused" if code == 1 and errors.getvalue().strip() else f"exit code {code}: {errors.getvalue()[-200:]}"
    lines = [json.loads(line) for line in (folder / "run" / "epochs.jsonl").read_text().splitlines()]
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    model = Predictor.load(folder / "run" / "model")
    if not all(map(math.isfinite, numbers)):
        return "a loss or score is not finite, without an error"
    if not all(torch.isfinite(value).all() for value in model.state_dict().values() if value.is_floating_point()):
        return "a weight is not finite, without an error"
    with np.load(folder / "run" / "predictions.npz") as arrays:
        if not all(np.isfinite(arrays[name]).all() for name in arrays if arrays[name].dtype.kind in "fi"):
            return "a prediction is not finite"
    return "finite"


def degenerate_data(
    root: Path, *, objectives: Sequence[str] = tuple(OBJECTIVES), precisions: Sequence[str] = PRECISIONS
) -> dict[str, Any]:
    """Train each objective on each data set in each precision."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in DATA}
    failures = []
    start = time.monotonic()
    for name, content in DATA.items():
        for objective in objectives:
            for precision in precisions:
                outcome = train(root / "it", content, objective, precision)
                counts[name][outcome if outcome in ("finite", "refused") else "failed"] += 1
                if outcome not in ("finite", "refused"):
                    failures.append(f"{name}, {objective}, {precision}: {outcome}")
                    print(failures[-1], flush=True)
        print(f"{name}: {dict(counts[name])}, {time.monotonic() - start:.0f} s", flush=True)
    return {
        "tried": sum(count.total() for count in counts.values()),
        "objectives": list(objectives),
        "precisions": list(precisions),
        "data": {name: dict(count) for name, count in counts.items()},
        "failures": failures,
    }
