"""From a config to modules: the one place where names become things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import nn

from torchmultiset._checks import check, check_one_of
from torchmultiset.config import EncoderName, ModelConfig, Norm, ObjectiveConfig, ObjectiveName, PolicyName, Stop
from torchmultiset.encoders import ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.encoders.pretrained import BackboneName
from torchmultiset.objectives import (
    DistributionMatchingObjective,
    MultisetObjective,
    Objective,
    OneStepObjective,
    ReinforceObjective,
    SequenceObjective,
)
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, OneStep, TransformerPolicy
from torchmultiset.predictor import Predictor

__all__ = ["build_objective", "build_predictor"]


def build_predictor(
    model: ModelConfig,
    objective: ObjectiveConfig,
    *,
    shape: tuple[int, ...],
    classes: Sequence[str],
    max_size: int,
    stop: Stop,
    backbone: BackboneName | None = None,
    fingerprint: str | None = None,
    encoder: nn.Module | None = None,
) -> Predictor:
    """A new predictor.

    Args:
        model: The network. What something else takes the place of must be "auto".
        objective: What it will be trained with: REINFORCE needs a baseline, one-step a model without a rollout.
        shape: Of one input: (channels, H, W) or (features,); with a backbone, of its features.
        classes: Names of the classes.
        max_size: Size of the largest multiset.
        stop: How a multiset ends.
        backbone: Whose features the inputs are, if any.
        fingerprint: Of that backbone, if it is known.
        encoder: One of the user's own, instead of one by name.

    Example:
        >>> predictor = build_predictor(ModelConfig(), ObjectiveConfig(), shape=(1, 100, 100), classes=["a", "b"],
        ...                             max_size=4, stop="policy")
        >>> type(predictor.policy).__name__, predictor.steps
        ('ConvLSTMPolicy', 5)
    """
    _refuse_end(objective, stop)
    num_classes = len(classes) + (stop == "end")
    encoder, memory = _encoder(model, shape, backbone, fingerprint, encoder)
    policy = _policy(model, num_classes, memory, one_step=objective.objective == "one-step")
    baseline = objective.objective == "rl"
    return Predictor(encoder, policy, classes, max_size=max_size, stop=stop, baseline=baseline)


def build_objective(
    objective: ObjectiveConfig, *, num_classes: int, stop: Stop, seed: int, height: int | float | None = None
) -> Objective:
    """The objective of that name.

    Args:
        objective: Which, and its weights.
        num_classes: C, END not counted.
        stop: How a multiset ends.
        seed: For the random rank function.
        height: Of the pictures in pixels, for the spatial rank function; needed if the inputs are their features.
    """
    _refuse_end(objective, stop)
    end, weight = stop == "end", objective.stop_weight
    name = objective.objective
    check_one_of("objective", name, get_args(ObjectiveName))
    if name == "multi":
        return MultisetObjective(objective.strategy, objective.divergence, end=end, stop_weight=weight)
    if name == "rl":
        return ReinforceObjective(objective.entropy_weight, objective.value_weight, end=end, stop_weight=weight)
    if name == "seq":
        return SequenceObjective(
            num_classes, rank=objective.rank, seed=seed, height=height, end=end, stop_weight=weight
        )
    if name == "one-step":
        return OneStepObjective(objective.size_weight)
    return DistributionMatchingObjective("l1" if name == "dm-l1" else "kl", stop_weight=weight)


def _refuse_end(objective: ObjectiveConfig, stop: Stop) -> None:
    if stop == "end" and objective.objective in ("dm-l1", "dm-kl", "one-step"):
        raise ValueError(
            f"stop 'end' does not go with objective {objective.objective!r}: distribution matching compares class"
            " shares, and it is unclear what share END should have (section 5.2 of the paper). Use stop 'policy'"
        )


def _encoder(
    model: ModelConfig,
    shape: tuple[int, ...],
    backbone: BackboneName | None,
    fingerprint: str | None,
    own: nn.Module | None,
) -> tuple[nn.Module, tuple[int, ...]]:
    """The encoder, and the shape of its memory."""
    check_one_of("encoder", model.encoder, get_args(EncoderName))
    check_one_of("norm", model.norm, get_args(Norm))
    if own is not None or backbone is not None:
        instead = "a backbone" if own is None else "an encoder of your own"
        check(model.encoder == "auto", "encoder", f"'auto' with {instead}, which takes its place", model.encoder)
    if own is not None:
        memory = getattr(own, "memory", None)
        check(isinstance(memory, tuple), "encoder", "a module whose attribute `memory` is the shape of its output", own)
        assert isinstance(memory, tuple)
        return own, memory
    if backbone is not None:
        encoder = PretrainedEncoder(backbone, width=model.units[-1], fingerprint=fingerprint)
        fits = len(shape) == 3 and shape[0] == encoder.channels
        check(fits, "shape", f"({encoder.channels}, h, w), as the features of {backbone} are", shape)
        return encoder, (model.units[-1], *shape[1:])
    kind = model.encoder if model.encoder != "auto" else "conv" if len(shape) == 3 else "mlp"
    if kind == "mlp":
        check(len(shape) == 1, "encoder", f"'conv' for inputs of shape {shape}", kind)
        return MLPEncoder(shape[0], model.units), (model.units[-1],)
    check(len(shape) == 3, "encoder", f"'mlp' for inputs of shape {shape}", kind)
    tower = ConvEncoder(shape[0], model.channels, norm=None if model.norm == "none" else "batch")
    return tower, tower.memory_shape(shape[1], shape[2])


def _policy(model: ModelConfig, num_classes: int, memory: tuple[int, ...], *, one_step: bool) -> nn.Module:
    check_one_of("policy", model.policy, get_args(PolicyName))
    if one_step:
        what = "'auto' with objective 'one-step', which names no labels one after another"
        check(model.policy == "auto", "policy", what, model.policy)
        return OneStep(num_classes, memory[0])
    spatial = len(memory) == 3
    kind = model.policy if model.policy != "auto" else "conv-lstm" if spatial else "lstm"
    if kind == "conv-lstm":
        check(spatial, "policy", "'lstm', 'feed-forward' or 'transformer' for inputs without space", kind)
        channels, height, width = memory
        return ConvLSTMPolicy(num_classes, (channels, height, width), hidden=model.hidden, layers=model.layers)
    if kind == "lstm":
        check(not spatial, "policy", "'conv-lstm', 'feed-forward' or 'transformer' for images", kind)
        return LSTMPolicy(num_classes, memory[0], hidden=model.hidden, layers=model.layers)
    if kind == "feed-forward":
        return FeedForwardPolicy(num_classes, memory[0], hidden=model.hidden, layers=model.layers)
    places = memory[1] * memory[2] if spatial else 1
    return TransformerPolicy(num_classes, memory[0], places=places, width=model.hidden, layers=model.layers)
