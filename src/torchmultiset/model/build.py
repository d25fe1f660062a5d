"""Construction of predictors and objectives from settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from torchmultiset._checks import check, filled
from torchmultiset.data import Examples
from torchmultiset.data.tokens import TokenKind
from torchmultiset.encoders.finetuned import Trainable
from torchmultiset.heads import OneShotHead
from torchmultiset.model.config import CHANNELS, ModelConfig, ObjectiveConfig, ResolvedModel
from torchmultiset.model.objectives import Objective
from torchmultiset.model.predictor import Predictor, Stop
from torchmultiset.model.registry import COUNT_HEADS, ENCODERS, HEADS, POLICIES

__all__ = [
    "build_objective",
    "build_predictor",
    "check_together",
    "fit_encoder",
    "head_class",
    "resolve_kinds",
    "resolve_stop",
    "take_weights",
]

_AT_A_TIME = 1024
"""Number of training inputs per batch when an encoder is fitted."""
_BY_RANK = {1: ("mlp", "lstm", "table"), 2: ("set", "transformer", "table"), 3: ("conv", "conv-lstm", "cells")}
"""Default encoder, policy and count head of vectors, tokens and images, by the number of dimensions of one input."""


def build_predictor(
    model: ModelConfig,
    objective: ObjectiveConfig,
    *,
    shape: tuple[int, ...],
    classes: Sequence[str],
    max_size: int,
    stop: Stop,
    min_size: int | None = None,
    backbone: str | None = None,
    fingerprint: str | None = None,
    strides: Sequence[int] = (32,),
    finetune: Trainable = "none",
) -> Predictor:
    """Build a predictor with new weights.

    Args:
        model: Settings of the network. A policy must not be set for an objective that trains a one-shot head, nor an
            encoder with a backbone.
        objective: Training objective, which determines the heads: REINFORCE needs a value head, others a one-shot head.
        shape: Shape of one input: (channels, H, W), (features,), or (0, 1 + features) for tokens, as `data.tokens`
            describes them; with a backbone, shape of its features.
        classes: Names of the classes.
        max_size: Size of the largest multiset.
        stop: Stopping mechanism.
        min_size: Size of the smallest multiset; None: 0, or `max_size` if the size is fixed.
        backbone: Backbone whose features are the inputs, if any.
        fingerprint: Fingerprint of that backbone, if it is known.
        strides: Strides of the backbone's feature maps.
        finetune: Stages of the backbone that are trained; the inputs are then images, not features.

    Example:
        >>> predictor = build_predictor(ModelConfig(), ObjectiveConfig("multi"), shape=(1, 100, 100),
        ...                             classes=["a", "b"], max_size=4, stop="policy")
        >>> type(predictor.policy).__name__, predictor.steps
        ('ConvLSTMPolicy', 5)
    """
    check_together(objective, stop)
    check(
        backbone is None or model.encoder is None,
        "encoder",
        "left out with a backbone, which takes its place",
        model.encoder,
    )
    kinds, objective = resolve_kinds(model, objective, shape, backbone=backbone is not None)
    model, kind = filled(kinds, ResolvedModel), objective.kind
    if kind.closed_form:  # it trains no encoder layers
        readable = len(shape) < 3 or (backbone is not None and finetune == "none")
        check(readable, "objective", "another one for images without a frozen backbone", objective.objective)
    settings = {
        **vars(model),
        "units": () if kind.closed_form else model.units,  # ridge regression reads the inputs themselves
        "backbone": backbone,
        "fingerprint": fingerprint,
        "strides": tuple(strides),
        "finetune": finetune,
    }
    name = model.encoder if backbone is None else "pretrained" if finetune == "none" else "finetuned"
    encoder, memory = ENCODERS[str(name)].for_inputs(shape, settings)
    if min_size is None:
        min_size = max_size if stop == "fixed" else 0
    num_classes, sizes = len(classes) + (stop == "end"), (min_size, max_size)
    head = head_class(objective)
    if head is not None:
        what = f"left out with objective {objective.objective!r}, which trains a one-shot head"
        check(model.policy is None, "policy", what, model.policy)
        module = head.for_memory(memory, settings, num_classes=num_classes, sizes=sizes)
    else:
        policy = POLICIES[model.policy or ""]
        if kind.counts_only:
            able = {name: each for name, each in POLICIES.items() if getattr(each, "counts_only", False)}
            why = f"with objective {objective.objective!r}, which needs a policy that sees only counts"
            check(model.policy in able, "policy", f"{' or '.join(map(repr, able))} {why}", model.policy)
        module = policy.for_memory(memory, settings, num_classes=num_classes)
    return Predictor(
        encoder,
        module,
        classes,
        max_size=max_size,
        min_size=min_size,
        stop=stop,
        baseline=kind.baseline,
        decoding="greedy" if model.decoding == "best" else model.decoding,  # chosen after training
    )


def head_class(objective: ObjectiveConfig) -> type[OneShotHead] | None:
    """Return the class of the one-shot head that an objective trains; None for a policy, or if no count head is set.

    Args:
        objective: Training objective, which must be set.

    Example:
        >>> head_class(ObjectiveConfig("counts", count_head="regression")).probabilistic
        False
    """
    kind = objective.kind
    if not kind.one_shot or not (kind.head or objective.count_head):
        return None
    head: type[OneShotHead] = HEADS[kind.head] if kind.head else COUNT_HEADS[objective.count_head]
    return head


def fit_encoder(predictor: Predictor, train: Examples) -> None:
    """Fit the statistics that an encoder computes from training inputs before training; see its `fit_inputs`.

    Args:
        predictor: Predictor whose encoder is fitted, in place.
        train: Training examples.
    """
    fit = getattr(predictor.encoder, "fit_inputs", None)
    if fit is not None:
        order = np.arange(len(train)) if train.lengths is None else train.lengths.argsort(kind="stable")
        fit([train.batch(order[start : start + _AT_A_TIME]).x for start in range(0, len(order), _AT_A_TIME)])


def take_weights(predictor: Predictor, model: Predictor) -> tuple[str, ...]:
    """Initialise a predictor with the weights of another model, where they have the same meaning.

    The encoders must match. Weights of the policy or head are copied if both models have the same classes in the same
    order, and if their shapes match.

    Args:
        predictor: Predictor to initialise, in place.
        model: Model to copy weights from.

    Returns:
        Names of the weights that were not copied.

    Raises:
        ValueError: The encoders have different architectures.
    """
    own, given = predictor.state_dict(), model.state_dict()
    same = predictor.classes == model.classes
    fitting = {
        name: value
        for name, value in given.items()
        if name in own and own[name].shape == value.shape and (same or name.startswith("encoder."))
    }
    reads = [name for name in own | given if name.startswith("encoder.") and name not in fitting]
    if reads:
        shapes = " and ".join(str(tuple(each[reads[0]].shape)) if reads[0] in each else "none" for each in (given, own))
        raise ValueError(
            f"the model to start from (start_from) has another encoder: the shapes of {reads[0]}, there and here, are"
            f" {shapes}. Use the same inputs, channels or units and norm, or leave out start_from"
        )
    predictor.load_state_dict(fitting, strict=False)
    return tuple(name for name in own if name not in fitting)


def resolve_kinds(
    model: ModelConfig,
    objective: ObjectiveConfig,
    shape: tuple[int, ...],
    *,
    tokens: TokenKind | None = None,
    backbone: bool = False,
) -> tuple[ModelConfig, ObjectiveConfig]:
    """Choose the encoder, policy and count head that are needed but not set, by the shape of the inputs.

    Args:
        model: Settings of the network.
        objective: Training objective.
        shape: Shape of one input; with a backbone, of its features.
        tokens: Kind of inputs of varying length: text, sets or sequences.
        backbone: Whether the inputs are features of a backbone, which need no other encoder.
    """
    known = "(features,), (0, 1 + features) for tokens, or (channels, height, width)"
    check(len(shape) in _BY_RANK, "shape", known, shape)
    encoder, recurrent, head = _BY_RANK[len(shape)]
    kind = objective.kind
    if tokens == "text":
        encoder = "ngrams" if kind.closed_form else "text"
    elif tokens == "sequence" and not kind.closed_form:
        encoder = "sequence"
    if model.encoder is None and not backbone:
        model = replace(model, encoder=encoder)
    if model.channels is None:
        model = replace(model, channels=CHANNELS)
    if model.pool is None:  # a mean would discard the number of tokens
        model = replace(model, pool="sum" if len(shape) == 2 else "mean")
    if model.policy is None and not kind.one_shot:
        model = replace(model, policy="transformer" if kind.counts_only else recurrent)
    if objective.count_head is None:
        objective = replace(objective, count_head=head)  # type: ignore[call-arg]
    return model, objective


def resolve_stop(stop: Stop | None, least: int, max_size: int) -> Stop:
    """Choose a stopping mechanism if none is set: "fixed" if all multisets have `max_size` labels, else "policy".

    Args:
        stop: Stopping mechanism, or None.
        least: Size of the smallest multiset in the data.
        max_size: Size of the largest multiset that can be predicted.

    Raises:
        ValueError: `stop` is "fixed", but sizes differ.
    """
    if stop is None:
        return "fixed" if least == max_size else "policy"
    if stop == "fixed" and least < max_size:
        raise ValueError(
            f"stop 'fixed' needs multisets of max_size = {max_size} labels, but one has {least}: use 'policy' or 'end'"
        )
    return stop


def build_objective(
    objective: ObjectiveConfig, predictor: Predictor, *, seed: int, height: int | float | None = None
) -> Objective:
    """Build the training objective of a predictor.

    Args:
        objective: Name and settings of the objective.
        predictor: Predictor to train, built for this objective.
        seed: Seed of the random rank function.
        height: Height of the images in pixels, for the spatial rank function; required if the inputs are features.
    """
    check_together(objective, predictor.stop)
    settings = {**vars(objective), "seed": seed, "height": height}  # of all objectives
    own = {field.name: settings[field.name] for field in fields(objective.kind) if field.name in settings}
    return objective.kind(**own)


def check_together(objective: ObjectiveConfig, stop: str) -> None:
    """Raise a ValueError if an objective cannot be used with a stopping mechanism."""
    kind = objective.kind
    why = "it trains a one-shot head, which emits no END" if kind.one_shot else kind.no_end
    if stop == "end" and why:
        raise ValueError(f"stop 'end' cannot be used with objective {objective.objective!r}: {why}. Use stop 'policy'")
