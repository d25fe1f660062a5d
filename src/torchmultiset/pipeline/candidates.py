"""Models that are worth trying on a data set, best guess first; docs/which-loss.md has the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from torchmultiset.encoders import words_installed
from torchmultiset.encoders.pretrained import BACKBONES
from torchmultiset.heads.power import MOST_MULTISETS
from torchmultiset.multiset import how_many
from torchmultiset.pipeline.prepare import Task
from torchmultiset.training.config import FEWEST_EPOCHS, MOST_EPOCHS

__all__ = ["Candidate", "candidates", "finetuned"]

_MANY = 8
"""Multiset size above which small objects are expected, which need a finer map."""
_MANY_IMAGES = 600
"""Images up to which features of a finer map are computed as well: on two cores, about ten images per second."""
_SHARED = 0.5
"""Minimum fraction of training examples that share their multiset with another for `power` to be a candidate."""
_REGULARISED = {"weight_decay": 0.05, "dropout": 0.3, "ema": 0.99, "select": "last"}
_MULTI = {"objective": "multi", "decoding": "best"}
_POOLED = {"pool": "mean-max", "units": (256,), "lr": 2e-3, **_REGULARISED}
_TEXT_STEPS = 4_200
"""Optimisation steps for text, which is learned from scratch, if there are at least as many examples."""


class Candidate(NamedTuple):
    """Settings of a model to try, on top of the user's."""

    name: str
    values: Mapping[str, Any]
    about: str


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
        return [*_for_rows(tokens), *_power(task, {"select": "score", "weight_decay": 0.01}), *ridge]
    if len(task.shape) == 1:
        return [*_for_vectors(), *_power(task, {"select": "score", "weight_decay": 0.01}), *ridge]
    if task.config.data.backbone == "none":
        return _for_images(task)
    return [*_for_features(task), *_power(task, _POOLED), *ridge]


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
        "mosaic": 0.3,
        "batch_size": 16,
        "lr": 2e-3,
        "weight_decay": 0.05,
        "ema": 0.99,
        "select": "last",
    }
    return Candidate("finetuned-cells", values, "a fine-tuned backbone; each cell of its map counts")


def _for_vectors() -> list[Candidate]:
    plain = {"select": "score", "weight_decay": 0.01}
    return [
        Candidate("counts", {"objective": "counts", **plain}, "a distribution of each class's count"),
        Candidate(
            "counts-large",
            {"objective": "counts", "units": (256, 256), "dropout": 0.2, **plain},
            "a distribution of each class's count, from more units with dropout",
        ),
        Candidate(
            "poisson", {"objective": "counts", "count_head": "poisson", "decoding": "best", **plain}, "Poisson counts"
        ),
        Candidate("policy", {**_MULTI, **plain}, "a policy that emits one label at a time"),
    ]


def _for_text(task: Task, ridge: list[Candidate]) -> list[Candidate]:
    train, size = len(task.splits["train"]), 64
    epochs = min(max(round(_TEXT_STEPS * size / train), FEWEST_EPOCHS), MOST_EPOCHS)
    longer = {"epochs": epochs, "batch_size": size} if train >= _TEXT_STEPS else {}
    plain = {"select": "score", "weight_decay": 0.01, "ema": 0.99, "lr": 3e-3, **longer}
    added = {"objective": "counts", "count_head": "gaussian", **plain}
    words = {**added, "encoder": "words", "units": (128,), "attention": 1, "dropout": 0.3}
    return [
        Candidate("text", {**added, "units": (96, 96)}, "bytes and n-grams of text; each position adds to the counts"),
        *(each._replace(about="linear regression of counts on counts of n-grams") for each in ridge),
        Candidate(
            "text-attention",
            {**added, "units": (64,), "attention": 1},
            "bytes and n-grams of text, with self-attention between positions",
        ),
        *([Candidate("words", words, "pretrained embeddings of words")] if words_installed() else []),
        *_power(task, {"select": "score", "weight_decay": 0.01}),
    ]


def _for_rows(kind: str) -> list[Candidate]:
    plain = {"select": "score", "weight_decay": 0.01}
    found = []
    for encoder in ("set", "sequence"):
        if kind in (encoder, "either"):
            table = {"objective": "counts", "encoder": encoder, **plain}
            what = "vectors without order" if encoder == "set" else "vectors in order"
            found += [
                Candidate(f"{encoder}-table", {**table, "attention": 1}, f"a distribution of counts from {what}"),
                Candidate(
                    f"{encoder}-sum",
                    {**table, "count_head": "gaussian"},
                    f"counts from {what}, to which each position adds",
                ),
            ]
    encoder = "sequence" if kind == "sequence" else "set"
    policy = {**_MULTI, "encoder": encoder, "attention": 1, "policy": "transformer", "hidden": 64, **plain}
    return [*found, Candidate("policy", policy, "a policy that emits one label at a time")]


def _for_images(task: Task) -> list[Candidate]:
    policy = Candidate("policy", {**_MULTI, "select": "score"}, "a policy that emits one label at a time")
    if task.config.objective.objective != "counts":  # the map is too coarse
        return [policy]
    cells = {"objective": "counts", "channels": task.config.model.channels, "select": "score"}
    return [
        Candidate("cells", cells, "each cell of a map counts"),
        Candidate(
            "cells-affine",
            {**cells, "augment": "affine"},
            "each cell of a map counts, in rotated, scaled and shifted images",
        ),
        policy,
    ]


def _for_features(task: Task) -> list[Candidate]:
    max_size, images = task.config.model.max_size, sum(map(len, task.splits.values()))
    fine: dict[str, Any] = {"strides": (16, 32), "image_size": 320} if images <= _MANY_IMAGES else {}
    counts = {"objective": "counts", **_POOLED}
    found = [Candidate("table", {**counts, "count_head": "table"}, "counts from pooled frozen features")]
    if max_size > _MANY:
        poisson = {**counts, "count_head": "poisson", "decoding": "best", **fine}
        found.append(Candidate("poisson", poisson, "Poisson counts from pooled frozen features"))
    if fine or max_size <= task.shape[1] * task.shape[2]:
        cells = {"objective": "counts", "count_head": "cells", "lr": 2e-3, **fine, **_REGULARISED}
        found.append(Candidate("cells", cells, "each cell of a map of frozen features counts"))
    policy = {**_MULTI, "policy": "transformer", "hidden": 64, "lr": 1e-3, **_REGULARISED}
    return [*found, Candidate("policy", policy, "a policy that emits one label at a time, on frozen features")]


def _power(task: Task, settings: Mapping[str, Any]) -> list[Candidate]:
    """Return a classifier over whole multisets, if there are few of them and most occur more than once."""
    counts, model = task.splits["train"].counts, task.config.model
    number = how_many(counts.shape[1], model.max_size, min_size=model.min_size)
    _, times = np.unique(counts, axis=0, return_counts=True)
    if number > MOST_MULTISETS or times[times > 1].sum() < _SHARED * len(counts):
        return []
    about = f"a class for each of {number:,} multisets"
    return [Candidate("power", {"objective": "power", **settings}, about)]
