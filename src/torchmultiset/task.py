"""From a config to a task: data that is open, and a config that leaves nothing open."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchmultiset._checks import check
from torchmultiset.config import RunConfig, to_dict
from torchmultiset.data import Examples, mnist_multi, store
from torchmultiset.data.digits import load_digits
from torchmultiset.data.features import cache_features
from torchmultiset.data.load import load_data
from torchmultiset.encoders import Backbone, make_backbone
from torchmultiset.presets import MNIST_MULTI
from torchmultiset.record import data_record

__all__ = ["Pick", "Task", "check_config", "features_of", "prepare"]


class Pick(NamedTuple):
    """What "auto" became."""

    what: str
    value: str
    reason: str


@dataclass(frozen=True)
class Task:
    """Data that was opened, and a config in which nothing is "auto" any more."""

    config: RunConfig
    splits: dict[str, Examples]
    """What the network reads: features where there is a backbone."""
    pictures: dict[str, Examples]
    """What a person looks at."""
    shape: tuple[int, ...]
    """Of one input of the network."""
    picture: tuple[int, ...]
    """Shape of what a person looks at: the same, unless there is a backbone."""
    picks: tuple[Pick, ...]
    data: dict[str, str]
    """Name and checksum."""
    fingerprint: str | None
    """Of the backbone, if there is one."""


# What numbers must at least be.
_LEAST = {
    "image_size": 1,
    "hidden": 1,
    "layers": 1,
    "max_size": 0,
    "epochs": 1,
    "batch_size": 1,
    "clip": 0,
    "entropy_weight": 0,
    "value_weight": 0,
    "size_weight": 0,
    "stop_weight": 0,
    "seed": 0,
}


def check_config(config: Any) -> None:
    """Raise a ValueError that names the first number of a config, or of a part of one, that cannot be.

    Example:
        >>> check_config(RunConfig(seed=-1))
        Traceback (most recent call last):
            ...
        ValueError: seed must be at least 0, but is -1 (int)
    """
    for name, value in to_dict(config).items():
        if name in _LEAST:
            check(_LEAST[name] <= value < float("inf"), name, f"at least {_LEAST[name]}", value)
        if name == "lr":
            check(0 < value < float("inf"), name, "more than 0", value)
        if name in ("channels", "units"):
            check(len(value) >= 1 and min(value) >= 1, name, "at least one number, each at least 1", value)


def prepare(config: RunConfig, *, progress: bool = False) -> Task:
    """Open the data, or make it first, and settle what the config leaves open.

    Args:
        config: What is to be run.
        progress: Show progress bars while data is made or read.

    Raises:
        FileNotFoundError: There is no data.
        ValueError: It has no examples to learn from or to choose the best epoch by.
    """
    check_config(config)
    if not config.data.data:
        raise ValueError(
            "no data is given: name a data set (--data), or a preset that makes one (--preset mnist-multi-4)"
        )
    _build_if_missing(config, progress)
    pictures = load_data(config.data.data, image_size=config.data.image_size, progress=progress)
    for split, purpose in (("train", "learn from"), ("validation", "choose the best epoch by")):
        if not len(pictures.get(split, ())):
            raise ValueError(
                f"{config.data.data} has no {split} examples to {purpose}: name the split of each line, or of none"
            )
    splits, fingerprint = pictures, None
    if config.data.backbone != "none":
        backbone, size = make_backbone(config.data.backbone), config.data.image_size
        fingerprint = backbone.fingerprint()
        splits = {
            name: features_of(examples, name, config.data.data, backbone, size, progress=progress)
            for name, examples in pictures.items()
        }
    shape, picture = (examples["train"].inputs[np.array([0])].shape[1:] for examples in (splits, pictures))
    resolved, picks = _settle(config, splits["train"], shape)
    return Task(resolved, splits, pictures, shape, picture, picks, data_record(config.data.data), fingerprint)


def features_of(
    examples: Examples, split: str, data: str | Path, backbone: Backbone, image_size: int, *, progress: bool = False
) -> Examples:
    """The same examples with the features of a backbone for inputs, computed once and kept beside the data.

    Args:
        examples: One split.
        split: Its name.
        data: Where the data set is.
        backbone: Whose.
        image_size: Of the images, in pixels.
        progress: Show a progress bar while features are computed.
    """
    if not len(examples):
        return examples
    path = Path(data)
    folder = path.with_name(f"{path.stem}-{backbone.name}-{image_size}")
    keys = examples.ids or [f"{split} {i}" for i in range(len(examples))]
    cache = cache_features(backbone, examples.inputs, folder, keys=keys, progress=progress)
    return replace(examples, inputs=cache)


def _build_if_missing(config: RunConfig, progress: bool) -> None:
    path, name = Path(config.data.data), config.data.mnist_multi
    if name == "none" or (path / store.MANIFEST).exists():
        return
    if path.suffix or path.is_file():
        raise ValueError(f"mnist_multi builds a data set in a folder, but data is the file {path}")
    from filelock import FileLock

    pools = load_digits(config.data.mnist or None, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):  # several processes may come here at once
        mnist_multi.build(path, MNIST_MULTI[name], pools, workers=os.cpu_count() or 1, progress=progress)


def _settle(config: RunConfig, train: Examples, shape: tuple[int, ...]) -> tuple[RunConfig, tuple[Pick, ...]]:
    """Replace what is "auto", and say why."""
    picks: list[Pick] = []
    model = config.model
    sizes = (train.labels >= 0).sum(1)
    least, most = int(sizes.min()), int(sizes.max())

    def pick(what: str, value: Any, reason: str) -> None:
        nonlocal model
        picks.append(Pick(what, str(value), reason))
        model = replace(model, **{what: value})

    spatial = len(shape) == 3
    by_shape = f"inputs have shape {' x '.join(map(str, shape))}"
    if model.encoder == "auto" and config.data.backbone == "none":
        pick("encoder", "conv" if spatial else "mlp", by_shape)
    if model.policy == "auto" and config.objective.objective != "one-step":
        pick("policy", "conv-lstm" if spatial else "lstm", by_shape)
    if model.max_size == 0:
        check(most >= 1, "the training data", "one with at least one label", "without any")
        pick("max_size", most, "the largest multiset of the training data has as many labels")
    elif model.max_size < most:
        raise ValueError(
            f"max_size must be at least {most}, the size of the largest training example, but is {model.max_size}"
        )
    if model.stop == "auto":
        spread = f"training multisets have {least} to {most} labels"
        same = f"all training multisets have {most} labels"
        pick("stop", "fixed" if least == most else "policy", same if least == most else spread)
    elif model.stop == "fixed" and least < model.max_size:
        raise ValueError(f"stop 'fixed' needs multisets of one size, but training ones have {least} to {most} labels")
    return replace(config, model=model), tuple(picks)
