"""From a config to a task: data that is open, and a config that leaves nothing open."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchmultiset._checks import check
from torchmultiset.data import Examples, mnist_multi, store
from torchmultiset.data.digits import load_digits
from torchmultiset.data.features import cache_features
from torchmultiset.data.fresh import fresh_epochs
from torchmultiset.data.images import Grey, UnreadableImageError
from torchmultiset.data.load import is_store, load_data
from torchmultiset.data.manifest import glance, read_manifest
from torchmultiset.encoders import Backbone, PretrainedEncoder, make_backbone
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict
from torchmultiset.pipeline.presets import MNIST_MULTI
from torchmultiset.pipeline.record import data_record
from torchmultiset.pipeline.resolve import Pick, column_picks, settle, settle_images, split_pick

__all__ = ["Task", "as_trained", "check_config", "features_of", "prepare"]


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
    fresh: Callable[[int], Examples] | None = None
    """The training examples of each epoch, from 0 on, if not all have the same."""


_IN_MEMORY = 2**30
"""Bytes of images that are read once and kept."""
_FEWEST = 10
"""Examples that a table needs if it names no splits: with fewer, next to nothing is left to choose or test by."""

# What numbers must at least be.
_LEAST = {
    "image_size": 0,
    "hidden": 1,
    "layers": 1,
    "max_size": 0,
    "epochs": 0,
    "batch_size": 0,
    "clip": 0,
    "weight_decay": 0,
    "ema": 0,
    "patience": 0,
    "entropy_weight": 0,
    "value_weight": 0,
    "size_weight": 0,
    "nothing_weight": 0,
    "marginal_bound": 1,
    "stop_weight": 0,
    "seed": 0,
}


def check_config(config: Any) -> None:
    """Raise a ValueError that names the first number of a config, or of a part of one, that cannot be.

    Example:
        >>> check_config(RunConfig(seed=-1))
        Traceback (most recent call last):
            ...
        ValueError: seed must be at least 0, but is -1
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
        ValueError: It has too few examples, none with a label to learn from, or none to choose the best epoch by.
    """
    check_config(config)
    if not config.data.data:
        raise ValueError(
            "no data is given: name a data set (--data), or a preset that makes one (--preset mnist-multi-4)"
        )
    _build_if_missing(config, progress)
    _refuse_too_few(config.data.data)
    data, pictures, picks = _open(config, progress)
    config = replace(config, data=data)
    for split, purpose in (("train", "learn from"), ("validation", "choose the best epoch by")):
        if not len(pictures.get(split, ())):
            raise ValueError(
                f"{config.data.data} has no {split} examples to {purpose}: name the split of each line, or of none"
            )
    if not (pictures["train"].labels >= 0).any():
        raise ValueError(
            f"{config.data.data} has {_examples(len(pictures['train']), 'training')} and no label in"
            f" {'it' if len(pictures['train']) == 1 else 'them'}: add training examples with labels"
        )
    _refuse_changes(config, pictures["train"])
    fresh = None
    if data.fresh:
        fresh = fresh_epochs(
            data.data, seed=config.seed, mnist=data.mnist or None, distorted=data.distort, elastic=data.elastic
        )
    splits, fingerprint = pictures, None
    if data.backbone != "auto" and data.backbone != "none":
        backbone, size = make_backbone(data.backbone, progress=progress), data.image_size
        fingerprint = backbone.fingerprint()
        splits = {
            name: features_of(examples, name, config.data.data, backbone, size, progress=progress)
            for name, examples in pictures.items()
        }
    shape, picture = (examples["train"].inputs[np.array([0])].shape[1:] for examples in (splits, pictures))
    resolved, more = settle(config, splits["train"], shape)
    record = data_record(data.data)
    return Task(resolved, splits, pictures, shape, picture, (*picks, *more), record, fingerprint, fresh)


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


def _refuse_too_few(data: str) -> None:
    """Raise if a table names no splits and has too few examples to be split."""
    try:
        own = None if is_store(data) else glance(data)
    except FileNotFoundError:
        return  # told when it is opened
    if own is None or own.split or own.examples >= _FEWEST:
        return
    examples = read_manifest(data, fractions=(1, 0, 0), check_inputs=False)["train"]  # problems of its lines come first
    labelled = int((examples.labels >= 0).any(1).sum())
    raise ValueError(
        f"{data} has {_examples(len(examples))} ({labelled} with labels), too few to split into training, validation"
        f" and test data: add examples until there are at least {_FEWEST} (a few hundred make a useful model), or give"
        " each a 'split'"
    )


def _examples(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{' ' * bool(kind)}example{'s' * (number != 1)}"


def _refuse_changes(config: RunConfig, train: Examples) -> None:
    """Raise if images are to change from epoch to epoch, but images are not what is learned from."""
    fresh, augment, backbone = config.data.fresh, config.optim.augment, config.data.backbone
    if config.data.distort and not fresh:
        raise ValueError("distort changes the digits of fresh images: say fresh, too, or leave it out")
    if config.data.elastic and not config.data.distort:
        raise ValueError("elastic is a way to distort digits: say distort, too, or leave it out")
    if (fresh or augment != "none") and backbone != "none":
        name = "fresh" if fresh else "augment"
        raise ValueError(
            f"{name} changes images, but the features of {backbone} are computed once: leave out {name}, or use"
            " backbone none"
        )
    if augment != "none" and train.inputs[np.array([0])].ndim != 4:
        raise ValueError(f"augment is for images, and {config.data.data} has none: leave it out")


def as_trained(predictor: Predictor, examples: Examples, split: str, data: str | Path) -> Examples:
    """With the features of a model's backbone, if it has one: computed once, as in training.

    Args:
        predictor: The model.
        examples: One split.
        split: Its name.
        data: Where the data set is.
    """
    config: Mapping[str, Any] = predictor.record.get("config", {})
    if not isinstance(predictor.encoder, PretrainedEncoder) or "image_size" not in config:
        return examples
    backbone, size = predictor.encoder.backbone(), int(config["image_size"])
    return features_of(examples, split, data, backbone, size, progress=sys.stderr.isatty())


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


def _open(config: RunConfig, progress: bool) -> tuple[DataConfig, dict[str, Examples], list[Pick]]:
    """The data; how images are read, if that is open, follows from what they are like."""
    data = config.data
    pictures = load_data(data.data, image_size=data.image_size or 224, progress=progress)
    own = None if is_store(data.data) else glance(data.data)
    if own is None or not own.images:
        backbone = "none" if data.backbone == "auto" else data.backbone
        settled = replace(data, backbone=backbone, image_size=data.image_size or 224)
        return settled, pictures, [*split_pick(own, pictures), *column_picks(pictures["train"].columns)]
    settled, picks = settle_images(config, own.images)
    if settled.image_size != (data.image_size or 224):
        pictures = load_data(data.data, image_size=settled.image_size, progress=progress)
    if settled.grey:
        pictures = {name: replace(one, inputs=Grey(one.inputs)) for name, one in pictures.items()}
    if settled.backbone == "none":
        pictures = _in_memory(pictures, settled)
    return settled, pictures, [*split_pick(own, pictures), *picks]


def _in_memory(splits: dict[str, Examples], data: DataConfig) -> dict[str, Examples]:
    """With images that were read once, unless they are too many; a damaged one is told now, not hours later."""
    if sum(map(len, splits.values())) * 3 * data.image_size**2 > _IN_MEMORY:
        return splits
    try:
        return {name: replace(one, inputs=one.inputs[np.arange(len(one))]) for name, one in splits.items()}
    except UnreadableImageError:
        load_data(data.data, image_size=data.image_size, check_inputs=True)  # all problems, with their lines
        raise
