"""Presets (the paper's tasks and the demo) and recipes (optimiser settings): defaults, overridden by file and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torchmultiset._checks import check_one_of
from torchmultiset.data import store
from torchmultiset.data.digits import load_digits
from torchmultiset.data.fresh import with_copies
from torchmultiset.data.mnist_multi import VARIANTS, MnistMulti, build
from torchmultiset.model.registry import OBJECTIVES

__all__ = ["PRESETS", "RECIPES", "Preset", "PresetName", "RecipeName", "build_missing", "values_of"]

PresetName: TypeAlias = Literal[
    "demo", "mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10", "coco-easy", "coco-medium"
]
RecipeName: TypeAlias = Literal["fast", "paper"]

RECIPES: Mapping[RecipeName, Mapping[str, Any]] = {
    "fast": {"norm": "batch", "policy_norm": "layer", "schedule": "one-cycle", "clip": 1.0},
    "paper": {
        "objective": "multi",
        "norm": "none",
        "policy_norm": "none",
        "schedule": "constant",
        "lr": 1e-3,
        "clip": 0.0,
        "augment": "none",
        "layers": 2,
        "hidden": 32,
        "epochs": 200,
        "batch_size": 64,
        "precision": "32-true",
    },
}
"""Settings of each recipe, by the names of the config's fields."""


@dataclass(frozen=True)
class Preset:
    """Predefined task."""

    about: str
    """Description for the help text."""
    values: Mapping[str, Any]
    """Settings of the task, by the names of the config's fields."""
    recipes: Mapping[RecipeName, Mapping[str, Any]] = field(default_factory=dict)
    """Additional settings of each recipe for this task."""
    digits: MnistMulti | None = None
    """Images of digits that are built if the data folder does not exist."""
    least_digits: int = 0
    """Number of training digits to which distorted copies are added if there are fewer, as in the bundled digits."""


# Settings that would otherwise be chosen from the data.
_DIGITS: Mapping[str, Any] = {
    "objective": "multi",
    "batch_size": 64,
    "lr": 6e-3,
    "backbone": "none",
    "image_size": 224,
}


# Learns the most in two minutes on two CPU cores: a wider tower, larger batches, and a transformer.
_DEMO: Mapping[str, Any] = {
    "epochs": 4,
    "batch_size": 128,
    "lr": 8e-3,
    "channels": (20, 32, 48),
    "policy": "transformer",
    "hidden": 64,
    "layers": 1,
    "ema": 0.998,
}


def _mnist_multi(name: str, about: str, *, paper_epochs: int = 200) -> Preset:
    return Preset(
        about,
        {"data": f"data/mnist-multi-{name}", **_DIGITS},
        {"fast": {"epochs": 12}, "paper": {"epochs": paper_epochs}},
        VARIANTS[name],
    )


# Inputs are features of a backbone: ResNet-34 at 600 px as in the paper, or a smaller network at a lower resolution.
_COCO: Mapping[RecipeName, Mapping[str, Any]] = {
    "fast": {
        "backbone": "efficientnet-lite0",
        "image_size": 256,
        "hidden": 128,
        "batch_size": 32,
        "epochs": 20,
        "lr": 1e-3,
    },
    "paper": {"backbone": "resnet34", "image_size": 600, "hidden": 512, "units": (512,), "batch_size": 32},
}

PRESETS: Mapping[PresetName, Preset] = {
    "demo": Preset(
        "1 to 4 digits on a small canvas; trains in minutes",
        {"data": "data/demo", **_DIGITS},
        {"fast": _DEMO},
        MnistMulti(sizes=(1, 4), digit_px=(20, 28), canvas=60, clutter=4, train=54_000, validation=2_000, test=5_000),
        least_digits=50_000,
    ),
    "mnist-multi-4": _mnist_multi("4", "4 digits of 20 to 50 pixels among clutter"),
    "mnist-multi-1-4": _mnist_multi("1-4", "1 to 4 digits of 20 to 50 pixels among clutter"),
    "mnist-multi-10": _mnist_multi("10", "10 digits of 20 pixels among clutter", paper_epochs=350),
    "coco-easy": Preset("photographs with 2 large objects; needs --data", {"objective": "multi"}, _COCO),
    "coco-medium": Preset("photographs with 1 to 4 large objects; needs --data", {"objective": "multi"}, _COCO),
}


def values_of(preset: PresetName | None, recipe: RecipeName, *, objective: str | None = None) -> dict[str, Any]:
    """Return the settings of a preset and a recipe; the recipe overrides the preset.

    Args:
        preset: Name of a task, or None.
        recipe: Name of a recipe.
        objective: Objective that replaces the preset's. One that trains a one-shot head leaves out the policy.

    Returns:
        Values by the names of the config's fields; fields that neither of them sets are left out.

    Example:
        >>> values_of("mnist-multi-10", "paper")["epochs"], values_of("mnist-multi-10", "fast")["epochs"]
        (350, 12)
        >>> values_of(None, "fast")
        {'norm': 'batch', 'policy_norm': 'layer', 'schedule': 'one-cycle', 'clip': 1.0}
    """
    check_one_of("recipe", recipe, get_args(RecipeName))
    if preset is None:
        return dict(RECIPES[recipe])
    check_one_of("preset", preset, get_args(PresetName))
    chosen = PRESETS[preset]
    values = {**chosen.values, **RECIPES[recipe], **chosen.recipes.get(recipe, {})}
    if objective is not None and objective in OBJECTIVES and OBJECTIVES[objective].one_shot:
        values.pop("policy", None)
    return values


def build_missing(preset: PresetName, data: str | Path, *, progress: bool = False) -> None:
    """Build the images of a preset's digits, unless they exist; several processes may call this at once.

    Args:
        preset: Name of a task.
        data: Folder of the data set.
        progress: Show a progress bar.

    Raises:
        ValueError: `data` is a file.
    """
    path, digits, least = Path(data), PRESETS[preset].digits, PRESETS[preset].least_digits
    if digits is None or (path / store.MANIFEST).exists():
        return
    if path.suffix or path.is_file():
        raise ValueError(f"the preset {preset} builds a data set in a folder, but data is the file {path}")
    from filelock import FileLock

    pools = load_digits(progress=progress)
    if len(pools.train.labels) < least:
        pools = replace(pools, train=with_copies(pools.train, -(-least // len(pools.train.labels))))
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        build(path, digits, pools, workers=os.cpu_count() or 1, progress=progress)
