"""Construction of predictors and objectives from settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from torchmultiset._checks import check, check_one_of
from torchmultiset.encoders import ConvEncoder, FinetunedBackbone, MLPEncoder, PretrainedEncoder
from torchmultiset.encoders.finetuned import Trainable
from torchmultiset.encoders.onnx import is_onnx
from torchmultiset.heads import CellCounts, CountMixture, CountTable, OneStep, PowerMultiset, RidgeCounts, Slots
from torchmultiset.model.config import CHANNELS, EncoderName, ModelConfig, Norm, ObjectiveConfig, PolicyName
from torchmultiset.model.objectives import Objective
from torchmultiset.model.predictor import Predictor, Stop
from torchmultiset.model.registry import COUNT_HEADS
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy

__all__ = [
    "build_objective",
    "build_predictor",
    "check_together",
    "resolve_kinds",
    "resolve_stop",
    "take_weights",
]


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
        shape: Shape of one input, (channels, H, W) or (features,); with a backbone, shape of its features.
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
    model, objective = resolve_kinds(model, objective, shape, backbone=backbone is not None)
    num_classes = len(classes) + (stop == "end")
    if objective.kind.closed_form:  # which trains no layers in front of its own
        readable = len(shape) == 1 or (backbone is not None and finetune == "none")
        check(readable, "objective", "another one for images without a frozen backbone", objective.name)
        model = replace(model, units=())
    if backbone is not None and finetune != "none":
        encoder, memory = _finetuned(model, shape, backbone, strides, finetune)
    else:
        encoder, memory = _encoder(model, shape, backbone, fingerprint, strides)
    if min_size is None:
        min_size = max_size if stop == "fixed" else 0
    kind = objective.kind
    if kind.one_shot:
        what = f"left out with objective {objective.objective!r}, which trains a one-shot head"
        check(model.policy is None, "policy", what, model.policy)
        module = _head(model, objective, num_classes, memory, (min_size, max_size))
    else:
        if kind.counts_only:
            one = f"'feed-forward' or 'transformer' with objective {objective.objective!r}, which needs a policy that"
            check(model.policy in ("feed-forward", "transformer"), "policy", f"{one} sees only counts", model.policy)
        module = _policy(model, num_classes, memory)
    return Predictor(encoder, module, classes, max_size=max_size, min_size=min_size, stop=stop, baseline=kind.baseline)


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
    model: ModelConfig, objective: ObjectiveConfig, shape: tuple[int, ...], *, backbone: bool = False
) -> tuple[ModelConfig, ObjectiveConfig]:
    """Choose encoder, policy and count head for the shape of the inputs, where they are needed and not set.

    Args:
        model: Settings of the network.
        objective: Training objective.
        shape: Shape of one input; with a backbone, of its features.
        backbone: Whether the inputs are features of a backbone, which need no other encoder.
    """
    spatial = len(shape) == 3
    if model.encoder is None and not backbone:
        model = replace(model, encoder="conv" if spatial else "mlp")
    if model.channels is None:
        model = replace(model, channels=CHANNELS)
    kind = objective.kind
    if model.policy is None and not kind.one_shot:
        recurrent: PolicyName = "conv-lstm" if spatial else "lstm"
        model = replace(model, policy="transformer" if kind.counts_only else recurrent)
    if objective.count_head is None:
        objective = replace(objective, count_head="cells" if spatial else "table")  # type: ignore[call-arg]
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
        predictor: Predictor to train, which was built for this objective.
        seed: Seed of the random rank function.
        height: Height of the images in pixels, for the spatial rank function; required if the inputs are features.
    """
    check_together(objective, predictor.stop)
    made: Objective = objective.kind.from_settings(vars(objective), seed=seed, height=height)
    made.check_size(predictor.max_size)
    return made


def check_together(objective: ObjectiveConfig, stop: str) -> None:
    """Raise a ValueError if an objective cannot be used with a stopping mechanism."""
    kind = objective.kind
    if stop != "end":
        return
    if kind.one_shot:
        raise ValueError(
            f"stop 'end' cannot be used with objective {objective.objective!r}: it trains a one-shot head, which emits"
            " no END. Use stop 'policy'"
        )
    if kind.no_end:
        raise ValueError(
            f"stop 'end' cannot be used with objective {objective.objective!r}: {kind.no_end}. Use stop 'policy'"
        )


def _finetuned(
    model: ModelConfig, shape: tuple[int, ...], backbone: str, strides: Sequence[int], finetune: Trainable
) -> tuple[nn.Module, tuple[int, ...]]:
    check(len(shape) == 3, "finetune", "'none' for inputs that are not images", finetune)
    encoder = FinetunedBackbone.pretrained(backbone, width=model.units[-1], strides=strides, trainable=finetune)
    with torch.no_grad():
        memory = encoder(torch.zeros(1, *shape, dtype=torch.uint8))
    return encoder, tuple(memory.shape[1:])


def _encoder(
    model: ModelConfig,
    shape: tuple[int, ...],
    backbone: str | None,
    fingerprint: str | None,
    strides: Sequence[int],
) -> tuple[nn.Module, tuple[int, ...]]:
    """Return the encoder, and the shape of its memory."""
    check_one_of("encoder", model.encoder, (None, *get_args(EncoderName)))
    check_one_of("norm", model.norm, get_args(Norm))
    if backbone is not None:
        check(model.encoder is None, "encoder", "left out with a backbone, which takes its place", model.encoder)
        width = model.units[-1] if model.units else None
        channels = shape[0] if is_onnx(backbone) else None  # others are known without their weights
        encoder = PretrainedEncoder(
            backbone, width=width, fingerprint=fingerprint, strides=tuple(strides), channels=channels
        )
        fits = len(shape) == 3 and shape[0] == encoder.channels
        check(fits, "shape", f"({encoder.channels}, h, w), the shape of the features of {backbone}", shape)
        return encoder, (width or shape[0], *shape[1:])
    if model.encoder == "mlp":
        check(len(shape) == 1, "encoder", f"'conv' for inputs of shape {shape}", model.encoder)
        return MLPEncoder(shape[0], model.units), (model.units[-1] if model.units else shape[0],)
    check(len(shape) == 3, "encoder", f"'mlp' for inputs of shape {shape}", model.encoder)
    tower = ConvEncoder(shape[0], model.channels or CHANNELS, norm=None if model.norm == "none" else "batch")
    memory = tower.memory_shape(shape[1], shape[2])
    one = f"'none', or channels fewer: images of {shape[1]}x{shape[2]} pixels result in a feature map of one position"
    check(model.norm == "none" or memory[1] * memory[2] > 1, "norm", one, model.norm)
    return tower, memory


def _policy(model: ModelConfig, num_classes: int, memory: tuple[int, ...]) -> nn.Module:
    check_one_of("policy", model.policy, get_args(PolicyName))
    spatial, kind = len(memory) == 3, model.policy
    pooled: dict[str, Any] = {"pool": model.pool, "dropout": model.dropout}
    if kind == "conv-lstm":
        check(spatial, "policy", "'lstm', 'feed-forward' or 'transformer' for vectors", kind)
        channels, height, width = memory
        norm: Literal["layer"] | None = None if model.policy_norm == "none" else "layer"
        shape = (channels, height, width)
        return ConvLSTMPolicy(num_classes, shape, hidden=model.hidden, layers=model.layers, norm=norm, **pooled)
    if kind == "lstm":
        check(not spatial, "policy", "'conv-lstm', 'feed-forward' or 'transformer' for images", kind)
        return LSTMPolicy(num_classes, memory[0], hidden=model.hidden, layers=model.layers, **pooled)
    if kind == "feed-forward":
        return FeedForwardPolicy(num_classes, memory[0], hidden=model.hidden, layers=model.layers, **pooled)
    places = memory[1] * memory[2] if spatial else 1
    return TransformerPolicy(
        num_classes, memory[0], places=places, width=model.hidden, layers=model.layers, dropout=model.dropout
    )


def _head(
    model: ModelConfig,
    objective: ObjectiveConfig,
    num_classes: int,
    memory: tuple[int, ...],
    sizes: tuple[int, int],
) -> nn.Module:
    name, features, spatial = objective.objective, memory[0], len(memory) == 3
    max_size = sizes[1]
    pooled: dict[str, Any] = {"pool": model.pool, "dropout": model.dropout}
    if name == "ridge":
        return RidgeCounts(num_classes, features, pool=model.pool)
    if name == "one-step":
        return OneStep(num_classes, features, **pooled)
    # Twice the channels and one layer more make up for the four gates of a ConvLSTM.
    width, layers = 2 * model.hidden, model.layers + 1
    if name == "hungarian":
        places = memory[1] * memory[2] if spatial else 1
        return Slots(
            num_classes, features, slots=max_size, places=places, width=width, layers=layers, dropout=model.dropout
        )
    if name == "power":
        least, most = sizes
        return PowerMultiset(num_classes, features, max_size=most, min_size=least, hidden=2 * width, **pooled)
    head = objective.count_head
    kind: Any = COUNT_HEADS[head]
    if kind is CellCounts:
        others = "'table', 'poisson' or 'regression'"
        check(spatial, "count_head", f"{others} for vectors", head)
        number = memory[1] * memory[2]
        few = f"{others} for multisets of up to {max_size} labels: a map of {number} cells cannot count as many"
        check(number >= max_size, "count_head", few, head)
        return CellCounts(
            num_classes,
            features,
            hidden=width,
            layers=layers,
            norm=None if model.norm == "none" else "batch",
            dropout=model.dropout,
            sizes=sizes,
            size_potential=model.size_potential,
            joint_states=model.joint_states,
        )
    if kind is CountTable:
        pooled |= {"most": max_size}
    if kind in (CountTable, CountMixture):
        pooled |= {"sizes": sizes, "size_potential": model.size_potential}
    made: nn.Module = kind(num_classes, features, **pooled)
    return made
