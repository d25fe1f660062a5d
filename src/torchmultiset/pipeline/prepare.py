"""Preparation of a run: open its data and resolve its settings, from a `RunConfig` to a `Task`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchmultiset._checks import check, filled
from torchmultiset.data import Examples, concatenate
from torchmultiset.data._download import cache_folder
from torchmultiset.data.features import cache_features
from torchmultiset.data.fresh import fresh_epochs
from torchmultiset.data.images import Grey, UnreadableImageError
from torchmultiset.data.joined import joined_epochs
from torchmultiset.data.load import is_store, load_data
from torchmultiset.data.manifest import FRACTIONS, Manifest, labels_file
from torchmultiset.data.photos import PHOTO_FAMILIES
from torchmultiset.data.views import cache_views
from torchmultiset.encoders import Backbone, make_backbone
from torchmultiset.encoders.onnx import is_onnx
from torchmultiset.encoders.optional import feature_encoder
from torchmultiset.model.conformal import examples_needed, split_for_conformal
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import DataConfig, ResolvedConfig, ResolvedData, RunConfig
from torchmultiset.pipeline.record import data_record
from torchmultiset.pipeline.resolve import (
    Choice,
    column_choices,
    image_sides,
    input_shape,
    resolve,
    resolve_images,
    token_choices,
)

__all__ = ["CALIBRATION", "Task", "as_trained", "features_of", "held_out", "prepare"]


@dataclass(frozen=True)
class Task:
    """Opened data and resolved settings of a run."""

    config: ResolvedConfig
    splits: dict[str, Examples]
    """Inputs of the network: features, if there is a backbone."""
    pictures: dict[str, Examples]
    """The same examples as images or other original inputs, for display."""
    shape: tuple[int, ...]
    """Shape of one input of the network."""
    picture: tuple[int, ...]
    """Shape of one original input: the same, unless there is a backbone."""
    choices: tuple[Choice, ...]
    """Settings that were chosen from the data."""
    data: dict[str, str]
    """Name and checksum of the data set."""
    fingerprint: str | None
    """SHA-256 of the backbone's weights, if there is one."""
    fresh: Callable[[int], Examples] | None = None
    """Function from an epoch, starting at 0, to its training examples, if they change."""
    side: int = 0
    """Larger side in pixels of the largest original image, for the user's own images; 0 for other data."""
    read_as: tuple[Choice, ...] = ()
    """Those of the choices that say how the data is read: its splits, columns and images."""


CALIBRATION = "calibration"
"""Name of the split that `DataConfig.conformal` sets aside."""
_COVERAGE = 0.9
"""Coverage for which there must be enough calibration examples; a higher coverage is checked when it is requested."""
_IN_MEMORY = 2**30
"""Bytes of images up to which all of them are read once and kept in memory."""
_LARGEST_KEPT = 2**25
"""Bytes of a manifest up to which it is kept in memory once it is parsed; its records take several times as much."""
_JOINED_SHARE = 0.7
"""Share of the epochs in which texts, sets and sequences are joined; the last ones have single inputs."""
_FEWEST = 10
"""Minimum number of examples of a file without splits: with fewer, hardly any are left for validation and test."""


def prepare(config: RunConfig, *, progress: bool = False) -> Task:
    """Open the data and resolve the settings.

    Args:
        config: Settings of the run.
        progress: Show progress bars while data is read.

    Raises:
        FileNotFoundError: There is no data.
        ValueError: The data has too few examples, no labels, or no validation examples; or a setting does not fit it.
    """
    path = config.data.data
    if not path:
        raise ValueError(
            "no data set is specified: pass one (--data), or a preset that builds one (--preset mnist-multi-4)"
        )
    data, pictures, choices, side = _open(config, path, progress)
    for split, purpose in (("train", "train on"), ("validation", "select the best epoch with")):
        if not len(pictures.get(split, ())):
            raise ValueError(f"{path} has no {split} examples to {purpose}: give every line a split, or none")
    if not (pictures["train"].labels >= 0).any():
        raise ValueError(
            f"{path} has {_examples(len(pictures['train']), 'training')} and no label in"
            f" {'it' if len(pictures['train']) == 1 else 'them'}: add training examples with labels"
        )
    _refuse_changes(data, config.optim.augment or "none", pictures["train"])
    if data.conformal:
        _refuse_too_few_to_calibrate(pictures["train"], path)
        pictures["train"], pictures[CALIBRATION] = split_for_conformal(pictures["train"])
    if data.holdout != "validation":
        pictures = held_out(pictures, data.holdout)
    fresh = fresh_epochs(path, seed=config.seed, train=pictures["train"]) if is_store(path) else None
    splits, fingerprint = pictures, None
    if data.backbone != "none" and data.finetune == "none":
        backbone, size = make_backbone(data.backbone, strides=data.strides, progress=progress), data.image_size
        fingerprint = backbone.fingerprint()
        splits = {
            name: features_of(examples, name, path, backbone, size, progress=progress)
            for name, examples in pictures.items()
        }
        if data.views:
            splits["train"], fresh = _views(config, data.views, pictures["train"], path, backbone, size, progress)
    shape, picture = (input_shape(examples["train"]) for examples in (splits, pictures))
    resolved, more = resolve(config, data, splits["train"], shape)
    if resolved.optim.mosaic and splits["train"].tokens is not None:
        joinable = splits["train"].tokens != "text" or shape[1] == 1
        what = "0 for text with other columns beside it, which cannot be joined"
        check(joinable, "mosaic", what, resolved.optim.mosaic)
        epochs = round(_JOINED_SHARE * resolved.optim.epochs)
        limits = {"max_size": resolved.model.max_size, "seed": config.seed, "epochs": epochs}
        fresh = joined_epochs(splits["train"], resolved.optim.mosaic, **limits)
    return Task(
        resolved,
        splits,
        pictures,
        shape,
        picture,
        (*choices, *more),
        data_record(path),
        fingerprint,
        fresh,
        side,
        read_as=tuple(choices),
    )


def features_of(
    examples: Examples, split: str, data: str | Path, backbone: Backbone, image_size: int, *, progress: bool = False
) -> Examples:
    """Return the same examples with features of a backbone as inputs, computed once.

    They are cached beside the data, or in the user's cache folder if the data is on a read-only disk.

    Args:
        examples: Examples of one split.
        split: Name of the split.
        data: Path of the data set.
        backbone: Backbone that computes the features.
        image_size: Side of the images in pixels.
        progress: Show a progress bar while features are computed.
    """
    if not len(examples):
        return examples
    folder = _feature_folder(data, backbone, image_size)
    cache = cache_features(backbone, examples.inputs, folder, keys=_ids(examples, split), progress=progress)
    return replace(examples, inputs=cache)


def _ids(examples: Examples, split: str) -> Sequence[str]:
    return examples.ids or [f"{split} {i}" for i in range(len(examples))]


def _views(
    config: RunConfig, views: int, images: Examples, path: str, backbone: Backbone, size: int, progress: bool
) -> tuple[Examples, Callable[[int], Examples]]:
    """Return training examples with cached features, and a function that draws a view of each for an epoch."""
    augment = config.optim.augment or "none"
    families = PHOTO_FAMILIES.get(augment)
    check(families is not None, "augment", f"one of {', '.join(PHOTO_FAMILIES)} with views", augment)
    assert families is not None
    cache = cache_views(
        backbone,
        images.inputs,
        _feature_folder(path, backbone, size),
        keys=_ids(images, "train"),
        families=families,
        views=views,
        progress=progress,
    )
    return replace(images, inputs=cache), lambda epoch: replace(images, inputs=cache.epoch(epoch, seed=config.seed))


def held_out(splits: Mapping[str, Examples], holdout: str) -> dict[str, Examples]:
    """Split training and validation examples again.

    Args:
        splits: Examples by the name of the split.
        holdout: "2/3" or "none", see `DataConfig.holdout`.
    """
    together = concatenate(splits["train"], splits["validation"])
    if holdout == "none":
        return {**splits, "train": together}
    part, _, parts = holdout.partition("/")
    ok = part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts) and int(parts) >= 2
    check(ok, "holdout", 'validation, none, or a part such as "2/3"', holdout)
    check(len(together) >= int(parts), "holdout", f"of at most {len(together)} parts, one example each", holdout)
    order = np.random.default_rng(0).permutation(len(together))
    chosen = order[int(part) - 1 :: int(parts)]
    rest = np.setdiff1d(order, chosen)
    return {**splits, "train": together.subset(rest), "validation": together.subset(np.sort(chosen))}


def _feature_folder(data: str | Path, backbone: Backbone, image_size: int) -> Path:
    path, strides = Path(data), backbone.strides or (32,)
    fine = "" if tuple(strides) == (32,) else "-" + "-".join(map(str, strides))
    beside = path.with_name(f"{path.stem}-{Path(backbone.name).stem}{fine}-{image_size}")
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside
    # Data may be on a read-only disk.
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return cache_folder("features") / f"{beside.name}-{place}"


def _refuse_too_few_to_calibrate(train: Examples, path: str) -> None:
    least = 5 * examples_needed(_COVERAGE)
    if len(train) < least:
        raise ValueError(
            f"{path} has {_examples(len(train), 'training')}, and conformal sets a fifth of them aside: for a coverage"
            f" of {_COVERAGE:g} at least {least} are needed; add examples, or remove conformal"
        )


def _examples(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{' ' * bool(kind)}example{'s' * (number != 1)}"


def _refuse_changes(data: ResolvedData, augment: str, train: Examples) -> None:
    """Raise an error if augmentation, views or fine-tuning do not suit the inputs of the network."""
    backbone = data.backbone
    if data.finetune != "none" and is_onnx(backbone):
        raise ValueError(f"{backbone} cannot be fine-tuned, because it is an ONNX file: remove --finetune")
    if data.finetune != "none" and backbone == "none":
        raise ValueError("finetune trains a backbone, but none is set: choose one (--backbone efficientnet-lite0)")
    if data.views and (backbone == "none" or data.finetune != "none"):
        raise ValueError(
            "views are cached features of a frozen backbone: remove --views, or use a frozen backbone (--finetune none)"
        )
    if augment != "none" and not data.views and backbone != "none" and data.finetune == "none":
        raise ValueError(
            f"augment changes images, but the features of {backbone} are computed once: remove --augment, or use"
            " --backbone none, --views, or --finetune"
        )
    if augment != "none" and train.inputs[np.array([0])].ndim != 4:
        raise ValueError(f"augment is for images, and {data.data} has none: remove --augment")


def as_trained(predictor: Predictor, examples: Examples, split: str, data: str | Path) -> Examples:
    """Return examples with the features of a model's backbone, if it has one: computed once, as in training.

    Args:
        predictor: The model.
        examples: Examples of one split.
        split: Name of the split.
        data: Path of the data set.
    """
    config: Mapping[str, Any] = predictor.record.get("config", {})
    encoder = feature_encoder(predictor.encoder)
    if encoder is None or "image_size" not in config:
        return examples
    backbone, size = encoder.backbone(), int(config["image_size"])
    return features_of(examples, split, data, backbone, size, progress=sys.stderr.isatty())


def _open(config: RunConfig, path: str, progress: bool) -> tuple[ResolvedData, dict[str, Examples], list[Choice], int]:
    """Open the data, choose image size and backbone for its images, and return the side of the original images."""
    data = config.data
    resolved = filled(data, ResolvedData)
    if is_store(path):
        splits = load_data(path, classes=data.classes, fractions=data.fractions, skip_unreadable=data.skip_unreadable)
        # Names, so that cached features stay with their images if `holdout` or `conformal` splits the examples again.
        return resolved, {name: replace(one, ids=_ids(one, name)) for name, one in splits.items()}, [], 0
    manifest = _parse(path, data, progress)
    if not manifest.has_splits and len(manifest.records) < _FEWEST:
        labelled = sum(bool(record.labels) for record in manifest.records)
        raise ValueError(
            f"{manifest.path} has {_examples(len(manifest.records))} ({labelled} with labels), too few to split into"
            f" training, validation and test data: add examples until there are at least {_FEWEST} (a few hundred make"
            " a useful model), or give each a 'split'"
        )
    if manifest.records[0].kind == "features" and data.backbone not in (None, "none"):
        raise ValueError(f"a backbone reads images, but {path} is a table: remove --backbone {data.backbone}")
    choices: list[Choice] = []
    images = manifest.images
    sides = image_sides(images) if images else []
    if images:
        resolved, choices = resolve_images(data, sides, encoder=config.model.encoder)
    pictures = manifest.examples(
        fractions=data.fractions or FRACTIONS, seed=data.split_seed, image_size=resolved.image_size
    )
    if not manifest.has_splits:
        numbers = ", ".join(f"{len(examples):,} {name}" for name, examples in pictures.items())
        choices.insert(0, Choice("splits", numbers, "the file has none"))
    if not images:
        choices += [*column_choices(pictures["train"].columns), *token_choices(pictures["train"])]
        return resolved, pictures, choices, 0
    if resolved.grey:
        pictures = {name: replace(one, inputs=Grey(one.inputs)) for name, one in pictures.items()}
    if resolved.backbone == "none" or resolved.finetune != "none":
        pictures = _in_memory(pictures, resolved)
    return resolved, pictures, choices, max(sides, default=0)


_parsed: dict[tuple[Path, int, int, tuple[str, ...] | None], Manifest] = {}
"""The last manifest of this process, by file, time of change, size and classes."""


def _parse(path: str, data: DataConfig, progress: bool) -> Manifest:
    """Parse a manifest, or return the last one if it is the same: a comparison of models prepares many runs."""
    skip = data.skip_unreadable
    file = labels_file(Path(path)).resolve()
    stat = file.stat()
    key = file, stat.st_mtime_ns, stat.st_size, None if data.classes is None else tuple(data.classes)
    if not skip and key in _parsed:
        return _parsed[key]
    manifest = Manifest.read(path, classes=data.classes, skip_unreadable=skip, check_inputs=skip, progress=progress)
    _parsed.clear()
    # What is read of other files may change without this one: the headers of arrays, and which images are unreadable.
    if not skip and stat.st_size <= _LARGEST_KEPT and manifest.records[0].kind in ("features", "image"):
        _parsed[key] = manifest
    return manifest


def _in_memory(splits: dict[str, Examples], data: ResolvedData) -> dict[str, Examples]:
    """Read all images into memory if they fit, so that a damaged one is reported now and not hours later."""
    if sum(map(len, splits.values())) * 3 * data.image_size**2 > _IN_MEMORY:
        return splits
    try:
        return {name: replace(one, inputs=one.inputs[np.arange(len(one))]) for name, one in splits.items()}
    except UnreadableImageError:
        load_data(data.data, image_size=data.image_size, check_inputs=True)  # raises an error that lists all problems
        raise
