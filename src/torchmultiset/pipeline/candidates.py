"""Models that are worth trying on a data set, best guess first; docs/which-loss.md has the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from torchmultiset.encoders import words_installed
from torchmultiset.encoders.pretrained import BACKBONES
from torchmultiset.heads.power import MOST_MULTISETS
from torchmultiset.multiset import how_many
from torchmultiset.pipeline.config import RunConfig, completed
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.resolve import POOLED, REGULARISED
from torchmultiset.training.config import FEWEST_EPOCHS, MOST_EPOCHS

__all__ = ["Candidate", "augmented_like", "candidates", "enlarged", "finetuned"]

_MANY = 8
"""Multiset size above which small objects are expected, which need a finer map."""
_LONG = 10
"""Multiset size above which no policy is tried on many objects: each label is a step, which takes minutes."""
_LARGE, _LARGE_EPOCHS = 448, 15
"""Side of fine-tuned images with many objects in pixels, if the time allows this number of epochs."""
_MANY_IMAGES = 600
"""Images up to which features of a finer map are computed as well: on two cores, about ten images per second."""
_VIEWS = 4
"""Augmented views of each image whose features are cached, if there are at most `_MANY_IMAGES`."""
_SHARED = 0.5
"""Minimum fraction of training examples that share their multiset with another for `power` to be a candidate."""
_SMOOTHING = 0.1
"""Label smoothing of the candidates that are named after it."""
_SCORED = {"select": "score", "patience": 25, "weight_decay": 0.01}
"""Settings of models that are trained from scratch: the best epoch on held-out examples is kept, and training ends if
no later one is better for a quarter of the most epochs."""
_LIGHTER = {"dropout": 0.1, "weight_decay": 0.01}
_STRONGER = {"dropout": 0.5, "weight_decay": 0.2}
"""Weaker and stronger regularisation than `REGULARISED`, between which the held-out examples decide."""
_MULTI = {"objective": "multi", "decoding": "best"}
_TEXT_STEPS = 4_200
"""Optimisation steps for text, which is learned from scratch, if there are at least as many examples."""
_ROW_STEPS = 3_600
"""Optimisation steps for sets and sequences, which are learned from scratch."""
_JOINED, _JOINED_STEPS = 0.8, 7_000
"""Probability that a training text is joined with another one, and maximum optimisation steps of that candidate."""


class Candidate(NamedTuple):
    """Settings of a model to try, on top of the user's."""

    name: str
    values: Mapping[str, Any]
    about: str

    def applied_to(self, config: RunConfig) -> RunConfig:
        """Return the settings of a run; what the user has set is kept."""
        return completed(config, self.values)


_RIDGE = Candidate("ridge", {"objective": "ridge"}, "linear regression of counts on pooled inputs")


def candidates(task: Task) -> list[Candidate]:
    """Return the candidates that train fast for the data of a task; see also `finetuned`.

    Args:
        task: Data, prepared with the user's settings.
    """
    ridge = [] if task.config.data.conformal else [_RIDGE]  # it has no probabilities
    tokens = task.splits["train"].tokens
    if tokens == "text":
        return _for_text(task, ridge)
    if tokens is not None:
        return [*_for_rows(task), *_power(task, _SCORED), *ridge]
    if len(task.shape) == 1:
        return [*_for_vectors(), *_power(task, _SCORED), *ridge]
    if task.config.data.backbone == "none":
        return _for_images(task)
    return _for_features(task, ridge)


def finetuned(task: Task) -> Candidate | None:
    """Return the candidate that trains a backbone for photographs; None for other data and for ONNX backbones.

    Args:
        task: Data, prepared with the user's settings.
    """
    data = task.config.data
    if data.backbone not in BACKBONES:
        return None
    values = {
        "objective": "counts",
        "count_head": "cells",
        "finetune": "most",
        "strides": (16, 32),
        "image_size": 320,
        "units": (128,),
        "size_head": True,
        "augment": "photo",
        # A mosaic has at most as many objects as an image: of many, only sparse images would be joined, at half size.
        "mosaic": 0.0 if task.config.model.max_size > _MANY else 0.3,
        "batch_size": 16,
        "lr": 2e-3,
        "weight_decay": 0.05,
        "ema": 0.99,
        "select": "last",
        **_decoding(task),
    }
    return Candidate("finetuned-cells", values, "a fine-tuned backbone; each cell of its map counts")


def augmented_like(tuned: Candidate, best: str) -> Candidate:
    """Return a candidate of `finetuned` with the changes of images that scored highest on frozen features.

    Mirrored images are safe for most objects, but not for text or hands, so the validation data decides.

    Args:
        tuned: The candidate.
        best: Name of the best candidate with augmented views.
    """
    return tuned._replace(values={**tuned.values, "augment": best.removeprefix("cells-")})


def enlarged(tuned: Candidate, task: Task) -> Candidate:
    """Return a candidate of `finetuned` with larger images and fewer epochs, if there are many objects and enough time.

    Args:
        tuned: Candidate with the number of epochs that the time allows.
        task: Data, prepared with the user's settings.
    """
    # The time of an epoch grows with the number of pixels.
    epochs = int(tuned.values["epochs"] * (tuned.values["image_size"] / _LARGE) ** 2)
    if task.config.model.max_size <= _MANY or epochs < _LARGE_EPOCHS:
        return tuned
    return tuned._replace(values={**tuned.values, "image_size": _LARGE, "epochs": epochs})


def _for_vectors() -> list[Candidate]:
    counts = {"objective": "counts", **_SCORED}
    return [
        Candidate("counts", counts, "a distribution of each class's count"),
        Candidate(
            "counts-large",
            {**counts, "units": (256, 256), "dropout": 0.2},
            "a distribution of each class's count, from more units with dropout",
        ),
        Candidate("poisson", {**counts, "count_head": "poisson", "decoding": "best"}, "Poisson counts"),
        Candidate("policy", {**_MULTI, **_SCORED}, "a policy that emits one label at a time"),
        Candidate(
            "counts-smooth",
            {**counts, "label_smoothing": _SMOOTHING},
            "a distribution of each class's count, with label smoothing",
        ),
    ]


def _for_text(task: Task, ridge: list[Candidate]) -> list[Candidate]:
    train, size = len(task.splits["train"]), 64
    longer = {"epochs": _epochs(_TEXT_STEPS, size, train), "batch_size": size} if train >= _TEXT_STEPS else {}
    # The columns beside a text cannot be joined. Where counts of joined texts do not add, another candidate wins.
    many = longer and task.shape[1] == 1
    joined = {"mosaic": _JOINED, "epochs": _epochs(_JOINED_STEPS, size, train)} if many else {}
    # With averaged weights and a falling rate the last epoch of many steps is as good as any, and the validation
    # examples are left to train on.
    plain = {"select": "last" if longer else "score", "weight_decay": 0.01, "ema": 0.99, "lr": 3e-3, **longer}
    added = {"objective": "counts", "count_head": "gaussian", **plain}
    words = {**added, "encoder": "words", "units": (128,), "attention": 1, "dropout": 0.3}
    return [
        Candidate(
            "text",
            {**added, "units": (96, 96), **joined},
            "bytes and n-grams of text; each position adds to the counts",
        ),
        *(each._replace(about="linear regression of counts on counts of n-grams") for each in ridge),
        Candidate(
            "text-attention",
            {**added, "units": (64,), "attention": 1},
            "bytes and n-grams of text, with self-attention between positions",
        ),
        *([Candidate("words", words, "pretrained embeddings of words")] if words_installed() else []),
        *_power(task, _SCORED),
    ]


def _for_rows(task: Task) -> list[Candidate]:
    kind, found = task.splits["train"].tokens, []
    epochs = _epochs(_ROW_STEPS, task.config.optim.batch_size, len(task.splits["train"]))
    plain = {**_SCORED, "ema": 0.99, "epochs": epochs}
    for encoder in ("set", "sequence"):
        if kind in (encoder, "either"):
            table = {"objective": "counts", "encoder": encoder, "attention": 1, **plain}
            what = "vectors without order" if encoder == "set" else "vectors in order"
            found += [
                Candidate(f"{encoder}-table", table, f"a distribution of counts from {what}"),
                Candidate(
                    f"{encoder}-sum",
                    {**table, "count_head": "gaussian"},
                    f"counts from {what}, to which each position adds",
                ),
            ]
    encoder = "sequence" if kind == "sequence" else "set"
    policy = {**_MULTI, "encoder": encoder, "attention": 1, "policy": "transformer", "hidden": 64, **plain}
    return [*found, Candidate("policy", policy, "a policy that emits one label at a time")]


def _epochs(steps: int, batch_size: int, examples: int) -> int:
    return min(max(round(steps * batch_size / examples), FEWEST_EPOCHS), MOST_EPOCHS)


def _for_images(task: Task) -> list[Candidate]:
    plain = {"select": "score", "patience": _SCORED["patience"]}
    policy = Candidate("policy", {**_MULTI, **plain}, "a policy that emits one label at a time")
    if task.config.objective.objective != "counts":  # the map is too coarse
        return [policy]
    cells = {"objective": "counts", "channels": task.config.model.channels, **plain}
    moved = {**cells, "augment": "affine"}
    return [
        Candidate("cells", cells, "each cell of a map counts"),
        Candidate("cells-affine", moved, "each cell of a map counts, in rotated, scaled and shifted images"),
        policy,
        Candidate(
            "cells-regularised",
            {**moved, "dropout": 0.2, "weight_decay": 0.05, "label_smoothing": 0.05},
            "cells-affine, with dropout, weight decay and label smoothing",
        ),
    ]


def _for_features(task: Task, ridge: list[Candidate]) -> list[Candidate]:
    max_size, images = task.config.model.max_size, sum(map(len, task.splits.values()))
    few = images <= (2 if max_size > _MANY else 1) * _MANY_IMAGES  # many objects are worth more time
    finer = few and task.config.data.backbone in BACKBONES  # an ONNX file has one map
    fine: dict[str, Any] = {"strides": (16, 32), "image_size": 320} if finer else {}
    counts, power = {"objective": "counts", **POOLED}, _power(task, POOLED)
    table = Candidate("table", {**counts, "count_head": "table"}, "counts from pooled frozen features")
    cells = {"objective": "counts", "count_head": "cells", "lr": 2e-3, **fine, **REGULARISED, **_decoding(task)}
    policy = Candidate(
        "policy",
        {**_MULTI, "policy": "transformer", "hidden": 64, "lr": 1e-3, **REGULARISED},
        "a policy that emits one label at a time, on frozen features",
    )
    # The baseline that a model with the finer map is tested beside is fitted to its means, so it is a candidate, too.
    finer_ridge = [
        one._replace(
            name="ridge-fine", values={**one.values, **fine}, about="linear regression of counts on a finer map"
        )
        for one in ridge
        if fine
    ]
    counted = []
    if fine or max_size <= task.shape[1] * task.shape[2]:
        counted.append(Candidate("cells", cells, "each cell of a map of frozen features counts"))
    # They have features of their own to compute, so they are tried last, if there is time.
    augmented = [
        Candidate(
            f"cells-{family}",
            {**cells, "views": _VIEWS, "augment": family},
            f"cells, from {_VIEWS} views of each image changed by {family}",
        )
        for family in ("photo", "photo-flip")
        if fine
    ]
    if max_size <= _MANY:
        smooth = {**table.values, "label_smoothing": _SMOOTHING}
        about = "table, with label smoothing against wrong labels"
        tables = [Candidate("table-smooth", smooth, about)]
        if not fine:  # few images leave no time for them beside the views
            tables += [
                Candidate("table-light", {**table.values, **_LIGHTER}, "table, with less dropout and weight decay"),
                Candidate("table-strong", {**table.values, **_STRONGER}, "table, with more dropout and weight decay"),
            ]
        return [table, *counted, policy, *power, *ridge, *finer_ridge, *tables, *augmented]
    # Candidates that read the finer map come first, and slow ones last. A table has a score for each count, which
    # cannot be learned from few images.
    poisson = {**counts, "count_head": "poisson", **fine, **_decoding(task)}
    pooled = {"objective": "ridge", "pool": "mean-max", **fine}
    normal = {**counts, "count_head": "gaussian", **fine, **_decoding(task)}
    return [
        Candidate("poisson", poisson, "Poisson counts from pooled frozen features"),
        Candidate("normal", normal, "normal counts from pooled frozen features"),
        *finer_ridge,
        *(Candidate("ridge-max", pooled, "linear regression of counts on means and maxima of a map") for _ in ridge),
        *counted,
        *ridge,
        *([] if fine else [table]),
        *power,
        *([policy] if max_size <= _LONG else []),
        *augmented,
    ]


def _decoding(task: Task) -> dict[str, Any]:
    """Return the setting with which the validation data chooses the decoding, if there are many objects.

    The most probable multiset then has too few labels for a high F1, and is rarely the true one.
    """
    return {"decoding": "best"} if task.config.model.max_size > _MANY else {}


def _power(task: Task, settings: Mapping[str, Any]) -> list[Candidate]:
    """Return a classifier over whole multisets, if there are few of them and most occur more than once."""
    counts, model = task.splits["train"].counts, task.config.model
    number = how_many(counts.shape[1], model.max_size, min_size=model.min_size)
    _, times = np.unique(counts, axis=0, return_counts=True)
    if number > MOST_MULTISETS or times[times > 1].sum() < _SHARED * len(counts):
        return []
    about = f"a class for each of {number:,} multisets"
    return [Candidate("power", {"objective": "power", **settings}, about)]
