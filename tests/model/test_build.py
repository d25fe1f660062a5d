"""Building predictors and objectives from settings: choices by default, allowed combinations, refused ones."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from re import escape
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from torchmultiset.data import Batch
from torchmultiset.encoders import ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.heads import (
    CellCounts,
    CountTable,
    OneStep,
    PoissonCounts,
    PowerMultiset,
    RegressedCounts,
    Slots,
)
from torchmultiset.model import objectives
from torchmultiset.model.build import build_objective, build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.registry import OBJECTIVES
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.training.config import OptimConfig

IMAGE, VECTOR = (1, 44, 44), (7,)
SMALL = {"channels": (3, 4, 5), "units": (9, 6), "hidden": 8}
ONE_SHOT = [name for name, kind in OBJECTIVES.items() if kind.one_shot]
WITHOUT_END = [name for name, kind in OBJECTIVES.items() if kind.one_shot or kind.no_end]


def build(
    shape=VECTOR,
    stop="policy",
    backbone=None,
    fingerprint=None,
    objective="multi",
    count_head=None,
    max_size=3,
    **model,
):
    return build_predictor(
        ModelConfig(**{**SMALL, **model}),
        ObjectiveConfig(objective=objective, count_head=count_head),
        shape=shape,
        classes=("ant", "bee", "cat"),
        max_size=max_size,
        stop=stop,
        backbone=backbone,
        fingerprint=fingerprint,
    )


def make_objective(name, stop="policy", **changes):
    config = ObjectiveConfig(objective=name, **changes)
    built = build(objective=name if name in OBJECTIVES else "multi", stop=stop)
    return build_objective(config, built, seed=0)


# --- chosen by default ---


@pytest.mark.parametrize(
    ("arguments", "encoder", "policy"),
    [
        ({"shape": IMAGE}, ConvEncoder, ConvLSTMPolicy),
        ({"shape": VECTOR}, MLPEncoder, LSTMPolicy),
        ({"shape": (512, 3, 3), "backbone": "resnet34"}, PretrainedEncoder, ConvLSTMPolicy),
        ({"shape": IMAGE, "policy": "feed-forward"}, ConvEncoder, FeedForwardPolicy),
        ({"shape": IMAGE, "policy": "lstm"}, ConvEncoder, LSTMPolicy),
        ({"shape": VECTOR, "policy": "transformer"}, MLPEncoder, TransformerPolicy),
        ({"shape": IMAGE, "objective": "one-step"}, ConvEncoder, OneStep),
        ({"shape": VECTOR, "objective": "one-step"}, MLPEncoder, OneStep),
        ({"shape": IMAGE, "objective": "counts"}, ConvEncoder, CellCounts),
        ({"shape": VECTOR, "objective": "counts"}, MLPEncoder, CountTable),
        ({"shape": IMAGE, "objective": "counts", "count_head": "table"}, ConvEncoder, CountTable),
        ({"shape": VECTOR, "objective": "counts", "count_head": "poisson"}, MLPEncoder, PoissonCounts),
        ({"shape": IMAGE, "objective": "counts", "count_head": "regression"}, ConvEncoder, RegressedCounts),
        ({"shape": (512, 3, 3), "backbone": "resnet34", "objective": "counts"}, PretrainedEncoder, CellCounts),
        ({"shape": IMAGE, "objective": "hungarian"}, ConvEncoder, Slots),
        ({"shape": VECTOR, "objective": "power"}, MLPEncoder, PowerMultiset),
        ({"shape": IMAGE, "objective": "marginal"}, ConvEncoder, TransformerPolicy),
        ({"shape": VECTOR, "objective": "marginal", "policy": "feed-forward"}, MLPEncoder, FeedForwardPolicy),
    ],
)
def test_parts_are_chosen_by_the_shape_of_the_input(arguments, encoder, policy):
    predictor = build(**arguments)
    assert type(predictor.encoder) is encoder
    assert type(predictor.module) is policy


def test_sizes_equal_those_of_the_config():
    predictor = build(IMAGE, hidden=6, layers=2, norm="none")
    assert [conv.out_channels for conv in predictor.encoder.convs] == [3, 4, 5]
    assert isinstance(predictor.encoder.norms[0], nn.Identity)
    assert isinstance(build(IMAGE).encoder.norms[0], nn.BatchNorm2d)
    assert (predictor.policy.hidden, len(predictor.policy.layers)) == (6, 2)
    assert predictor.policy.memory == predictor.encoder.memory_shape(44, 44)
    assert build(VECTOR).encoder(torch.rand(1, 7)).shape == (1, 6)
    pretrained = build((512, 3, 5), backbone="resnet34", fingerprint="abc")
    assert pretrained.policy.memory == (6, 3, 5)
    settings = {"backbone": "resnet34", "width": 6, "fingerprint": "abc"}
    assert settings.items() <= pretrained.encoder.arguments.items()


def test_an_lstm_has_the_pooling_of_the_config():
    policy = build(IMAGE, policy="lstm", pool="mean-max", dropout=0.25).policy
    assert (policy.pooled.pool.kind, policy.pooled.dropout.p) == ("mean-max", 0.25)
    assert policy.pooled.width == 2 * SMALL["channels"][-1]


@pytest.mark.parametrize(("stop", "steps", "policy_classes"), [("fixed", 3, 3), ("policy", 4, 3), ("end", 4, 4)])
def test_stop_sets_the_steps_and_classes_of_the_policy(stop, steps, policy_classes):
    predictor = build(stop=stop)
    assert (predictor.steps, predictor.policy.num_classes) == (steps, policy_classes)
    assert (predictor.stop_head is not None) == (stop == "policy")
    assert predictor.classes == ("ant", "bee", "cat")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_with_a_baseline_has_a_value_head(name):
    assert (getattr(build(objective=name), "value_head", None) is not None) == OBJECTIVES[name].baseline
    assert OBJECTIVES["rl"].baseline
    assert not OBJECTIVES["multi"].baseline


def test_the_defaults_build_the_network_of_the_paper():
    predictor = build_predictor(
        ModelConfig(),
        ObjectiveConfig("multi"),
        shape=(1, 100, 100),
        classes=list("0123456789"),
        max_size=4,
        stop="fixed",
    )
    assert [conv.out_channels for conv in predictor.encoder.convs] == [10, 10, 32]
    assert predictor.policy.memory == (32, 9, 9)
    assert predictor.predict(torch.zeros(1, 1, 100, 100, dtype=torch.uint8)).sum() == 4


# --- allowed combinations ---


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        (n, s)
        for n in OBJECTIVES
        for s in ("fixed", "policy", "end")
        if not OBJECTIVES[n].closed_form and (s != "end" or n not in WITHOUT_END)  # ridge: tests/training/test_solve.py
    ],
)
@pytest.mark.parametrize(
    ("shape", "backbone", "policies"),
    [
        (IMAGE, None, ("conv-lstm", "lstm", "feed-forward", "transformer")),
        (VECTOR, None, ("lstm", "feed-forward", "transformer")),
        ((512, 2, 3), "resnet34", ("conv-lstm",)),
    ],
)
def test_every_combination_gives_a_loss_with_gradients(name, stop, shape, backbone, policies):
    torch.manual_seed(0)
    labels = torch.tensor([[0, 0, 2], [1, -1, -1], [-1, -1, -1]])
    if stop == "fixed":
        labels = labels.clamp(min=0)
    target = torch.stack([(labels == c).sum(-1) for c in range(3)], -1)
    batch = Batch(torch.rand(3, *shape), target, labels)
    if name in ONE_SHOT:
        policies = (None,)
    elif OBJECTIVES[name].counts_only:
        policies = (None, *(policy for policy in policies if "lstm" not in policy))
    for policy in policies:
        predictor = build(shape, stop, backbone, objective=name, policy=policy)
        objective = build_objective(ObjectiveConfig(objective=name), predictor, seed=0)
        loss = objective.loss(predictor, batch, torch.Generator().manual_seed(0))
        assert loss.shape == ()
        loss.backward()
        for key, parameter in predictor.named_parameters():
            assert parameter.grad is not None, f"{key} has no gradient"
            assert parameter.grad.isfinite().all(), key
        assert predictor.predict(batch.x).shape == (3, 3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("multi", objectives.MultisetObjective),
        ("rl", objectives.ReinforceObjective),
        ("seq", objectives.SequenceObjective),
        ("dm-l1", objectives.L1MatchingObjective),
        ("dm-kl", objectives.KLMatchingObjective),
        ("one-step", objectives.OneStepObjective),
        ("counts", objectives.CountsObjective),
        ("hungarian", objectives.HungarianObjective),
        ("power", objectives.PowerObjective),
        ("marginal", objectives.MarginalObjective),
        ("ridge", objectives.RidgeObjective),
    ],
)
def test_objectives_are_built_by_name(name, kind):
    assert type(make_objective(name)) is kind


def test_an_objective_has_the_settings_of_the_config():
    multi = make_objective("multi", strategy="oracle", divergence="js", stop_weight=0.5)
    assert multi == objectives.MultisetObjective("oracle", "js", stop_weight=0.5)
    reinforce = make_objective("rl", "end", entropy_weight=0.2, value_weight=0.3, stop_weight=0.4)
    assert reinforce == objectives.ReinforceObjective(0.2, 0.3, stop_weight=0.4)
    assert make_objective("dm-l1", stop_weight=2.0) == objectives.L1MatchingObjective(stop_weight=2.0)
    assert make_objective("dm-kl") == objectives.KLMatchingObjective()
    assert make_objective("one-step", size_weight=3.0) == objectives.OneStepObjective(3.0)
    assert make_objective("hungarian", nothing_weight=0.4) == objectives.HungarianObjective(0.4)
    assert make_objective("power", "fixed") == objectives.PowerObjective()
    assert make_objective("marginal", "end", marginal_bound=5) == objectives.MarginalObjective(5)
    config = ObjectiveConfig(objective="seq", rank="spatial", stop_weight=0.1)
    seq = build_objective(config, build(stop="end"), seed=4, height=60)
    assert seq == objectives.SequenceObjective("spatial", 0.1, seed=4, height=60)


# --- refused ---


def test_objectives_of_heads_and_matching_are_without_end():
    assert {*ONE_SHOT} >= {"one-step", "counts", "hungarian", "power", "ridge"}
    assert {*WITHOUT_END} >= {*ONE_SHOT, "dm-l1", "dm-kl"}
    assert not {*WITHOUT_END} & {"multi", "rl", "seq", "marginal"}
    assert "unclear what share END should have (section 5.2 of the paper)" in OBJECTIVES["dm-kl"].no_end


@pytest.mark.parametrize("name", WITHOUT_END)
def test_end_is_refused_with_objectives_without_end(name):
    why = "one-shot head, which emits no END" if name in ONE_SHOT else escape(OBJECTIVES[name].no_end)
    reason = rf"stop 'end' cannot be used with objective '{name}'.*{why}.*Use stop 'policy'"
    with pytest.raises(ValueError, match=reason):
        build(stop="end", objective=name)
    with pytest.raises(ValueError, match=reason):
        build_objective(ObjectiveConfig(objective=name), build(stop="end"), seed=0)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": VECTOR, "policy": "conv-lstm"}, "policy must be 'lstm', 'feed-forward' or 'transformer'"),
        ({"shape": VECTOR, "encoder": "conv"}, r"encoder must be 'mlp' for inputs of shape \(7,\)"),
        ({"shape": IMAGE, "encoder": "mlp"}, r"encoder must be 'conv' for inputs of shape \(1, 44, 44\)"),
        ({"shape": (0, 4), "encoder": "mlp"}, r"encoder must be 'conv' for inputs of shape \(0, 4\)"),
        ({"shape": (3, 4), "encoder": "conv"}, r"encoder must be"),
        ({"shape": (3, 4, 5, 6)}, r"shape must be .*, but is \(3, 4, 5, 6\)"),
        (
            {"shape": (512,), "backbone": "resnet34"},
            r"shape must be \(512, h, w\), the shape of the features of resnet34",
        ),
        ({"shape": (6, 2, 2), "backbone": "resnet34"}, r"shape must be \(512, h, w\)"),
        (
            {"shape": (512, 2, 2), "backbone": "resnet34", "encoder": "conv"},
            "encoder must be left out with a backbone, which takes its place, but is 'conv'",
        ),
        (
            {"objective": "one-step", "policy": "lstm"},
            "policy must be left out with objective 'one-step', which trains a one-shot head, but is 'lstm'",
        ),
        (
            {"objective": "marginal", "policy": "lstm"},
            "policy must be .*'feed-forward' or 'transformer'.* with objective 'marginal', which needs a policy that"
            " sees only counts, but is 'lstm'",
        ),
        (
            {"objective": "counts", "count_head": "cells"},
            "count_head must be 'table', 'poisson' or 'regression' for vectors, but is 'cells'",
        ),
        (
            {"shape": IMAGE, "objective": "counts", "max_size": 60},
            "count_head must be 'table'.* for multisets of up to 60 labels: a map of \\d+ cells cannot count as many",
        ),
        ({"objective": "counts", "count_head": "abacus"}, "count_head must be one of 'cells', 'table'"),
        (
            {"objective": "power", "max_size": 90},
            "0 to 90 labels of 3 classes make 129,766 multisets, too many .*at most 20,000.*another objective",
        ),
        ({"shape": (512, 2, 2), "backbone": "vgg"}, "backbone must be one of"),
        ({"policy": "gru"}, "policy must be one of .*'conv-lstm', 'lstm', 'feed-forward', 'transformer'"),
        ({"encoder": "vit"}, "encoder must be one of .*'conv', 'mlp'"),
        ({"shape": IMAGE, "norm": "layer"}, "norm must be one of 'none', 'batch'"),
        ({"stop": "never"}, "stop must be one of"),
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"shape": (1, 8, 8)}, "images of at least 44x44 pixels"),
    ],
)
def test_incompatible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("multi-task", {}, "objective must be one of .*'multi', 'rl', 'dm-l1', 'dm-kl', 'seq', 'one-step'"),
        ("multi", {"strategy": "beam"}, "strategy must be one of"),
        ("seq", {"rank": "alphabetical"}, "rank must be one of"),
    ],
)
def test_unknown_names_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        make_objective(name, **changes)


# --- configs ---


def test_no_name_occurs_twice_in_a_config():
    parts = (DataConfig, ModelConfig, ObjectiveConfig, OptimConfig)
    names = [field.name for part in parts for field in fields(part)] + ["seed"]
    assert len(names) == len(set(names)) == len(to_dict(RunConfig()))


def test_a_flat_config_can_be_converted_back():
    config = RunConfig(model=ModelConfig(channels=(1, 2), stop="end"), objective=ObjectiveConfig(rank="area"), seed=5)
    flat = to_dict(config)
    parts = {"data": DataConfig, "model": ModelConfig, "objective": ObjectiveConfig, "optim": OptimConfig}
    again = {name: part(**{f.name: flat[f.name] for f in fields(part)}) for name, part in parts.items()}
    assert RunConfig(**again, seed=flat["seed"]) == config


def test_every_choice_of_a_config_can_be_built():
    hints = get_type_hints(ModelConfig)
    tried = 0
    for encoder, policy, norm, shape in product(
        (None, "conv", "mlp"),
        (None, "conv-lstm", "lstm", "feed-forward", "transformer"),
        get_args(hints["norm"]),
        (IMAGE, VECTOR),
    ):
        spatial = shape == IMAGE
        if encoder == ("mlp" if spatial else "conv") or policy == ("lstm" if spatial else "conv-lstm"):
            continue
        config = ModelConfig(**{**SMALL, "encoder": encoder, "policy": policy, "norm": norm})
        predictor = build_predictor(
            config, ObjectiveConfig("multi"), shape=shape, classes=("a", "b"), max_size=2, stop="fixed"
        )
        assert predictor.predict(torch.rand(2, *shape)).sum(-1).tolist() == [2, 2]
        tried += 1
    assert tried == 2 * 4 * 2 * 2
