"""Settings of the user are kept, even if they equal the defaults that other settings would replace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command_line import flags_of, runner

from torchmultiset.cli import train as train_command
from torchmultiset.data import Examples
from torchmultiset.pipeline import candidates as candidates_module
from torchmultiset.pipeline.candidates import Candidate, augmented_like, candidates, finetuned
from torchmultiset.pipeline.config import (
    ResolvedConfig,
    ResolvedData,
    ResolvedModel,
    RunConfig,
    completed,
    config_of,
    to_dict,
)
from torchmultiset.pipeline.finish import Result
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.resolve import POOLED, REGULARISED, resolve
from torchmultiset.pipeline.sweep import changed_settings

DEFAULTS = to_dict(ResolvedConfig())
"""Values of settings that neither user nor data have chosen."""
PHOTOS = ResolvedData(data="photos", backbone="efficientnet-lite0", image_size=256)


def task(shape: tuple[int, ...], number: int, max_size: int, *, tokens=None, backbone: str = "none") -> Task:
    """A task with placeholder inputs, because candidates depend on sizes and labels only."""
    labels = np.full((number, max_size), -1)
    labels[:, 0] = 0
    labels[0] = 0
    split = Examples(np.zeros((number, *shape), np.float32), labels, ("a", "b"), tokens=tokens)
    none = split.subset(np.arange(0))
    config = ResolvedConfig(ResolvedData(backbone=backbone), ResolvedModel(max_size=max_size))
    config = replace(config, objective=config_of({"objective": "counts"}).objective)
    return Task(config, {"train": split, "validation": none}, {}, shape, shape, (), {}, None)


TASKS = [
    task((7,), 50, 3),
    task((3, 32, 32), 50, 3),
    *(task((5, 1), number, 3, tokens="text") for number in (50, 5_000)),
    *(task((5, 3), 50, 3, tokens=kind) for kind in ("set", "sequence", "either")),
    *(task((4, 8, 8), number, most, backbone="efficientnet-lite0") for number in (50, 700) for most in (3, 9, 20)),
]


@pytest.fixture(scope="module")
def found():
    """All candidates for all kinds of data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates_module, "words_installed", lambda: True)
        listed = [one for each in TASKS for one in candidates(each)]
    tuned = [one for each in TASKS if (one := finetuned(each)) is not None]
    return [*listed, *tuned, augmented_like(tuned[0], "cells-photo-flip")]


def test_candidates_set_only_settings_that_may_be_unset(found):
    unset = {name for name, value in to_dict(RunConfig()).items() if value is None}
    assert {name for one in found for name in one.values} | {*POOLED, *REGULARISED} <= unset
    assert len({one.name for one in found}) > 20
    for one in found:
        values = to_dict(one.applied_to(RunConfig()))
        assert {name: values[name] for name in one.values} == one.values
    with pytest.raises(ValueError, match="values must be without layers, which is never unset"):
        Candidate("deep", {"layers": 2}, "").applied_to(RunConfig())


@pytest.mark.slow
def test_no_candidate_replaces_settings_of_the_user(found):
    names = {name for one in found for name in one.values}
    assert {"lr", "dropout", "weight_decay", "ema", "finetune", "strides", "units", "hidden", "augment"} <= names
    for name in names:
        given = config_of({name: DEFAULTS[name]}) if DEFAULTS[name] is not None else None
        for one in found:
            if given is not None and name in one.values:
                assert to_dict(one.applied_to(given))[name] == DEFAULTS[name], (one.name, name)


@pytest.mark.parametrize("name", [*POOLED])
def test_resolve_replaces_no_settings_of_the_user(name):
    photos = Examples(np.zeros((12, 1), np.uint8), np.array([[0, 1]] * 6 + [[1, -1]] * 6), ("cat", "dog"))
    usual = {"pool": "mean", "select": "em"}.get(name, DEFAULTS[name])
    given, _ = resolve(config_of({name: usual}), PHOTOS, photos, (1280, 8, 8))
    chosen, _ = resolve(RunConfig(), PHOTOS, photos, (1280, 8, 8))
    assert to_dict(given) == to_dict(chosen) | {name: usual}
    assert to_dict(chosen)[name] == POOLED[name] != usual


def test_a_given_dropout_is_not_reported_as_chosen():
    photos = Examples(np.zeros((12, 1), np.uint8), np.array([[0, 1]] * 12), ("cat", "dog"))
    for given, reported in ((None, True), (0.0, False), (0.3, False)):
        _, choices = resolve(config_of({"dropout": given}), PHOTOS, photos, (1280, 8, 8))
        assert ("dropout" in {choice.what for choice in choices}) is reported


@pytest.mark.parametrize(
    ("given", "values", "expected"),
    [
        ({"augment": "none"}, {"views": 4, "augment": "photo"}, {"views": None, "augment": "none"}),
        ({"views": 0}, {"views": 4, "augment": "photo"}, {"views": 0, "augment": None}),
        ({"augment": "none"}, {"mosaic": 0.3, "augment": "photo"}, {"mosaic": None, "augment": "none"}),
        ({"mosaic": 0.0}, {"mosaic": 0.3, "augment": "photo"}, {"mosaic": 0.0, "augment": "photo"}),
        ({"augment": "photo-flip"}, {"mosaic": 0.3, "augment": "photo"}, {"mosaic": 0.3, "augment": "photo-flip"}),
        ({"augment": "none"}, {"mosaic": 0.8}, {"mosaic": 0.8}),  # texts are not augmented
    ],
)
def test_settings_that_depend_on_one_that_is_off_are_omitted(given, values, expected):
    result = to_dict(completed(config_of(given), values))
    assert {name: result[name] for name in expected} == expected


def test_the_flags_of_the_command_line_are_kept(capsys, monkeypatch):
    run, configs = runner(capsys, monkeypatch), list[RunConfig]()
    monkeypatch.setattr(train_command, "run", lambda config, *_, **__: configs.append(config) or Result({}, None))
    given = {name: DEFAULTS[name] for name in ("lr", "dropout", "weight_decay", "ema", "units", "hidden", "size_head")}
    assert run("train", "photos", *flags_of(given))[0] == 0
    assert run("train", "photos")[0] == 0
    photos = Examples(np.zeros((12, 1), np.uint8), np.array([[0, 1]] * 12), ("cat", "dog"))
    flagged, plain = (to_dict(resolve(config, PHOTOS, photos, (1280, 8, 8))[0]) for config in configs)
    assert {name: flagged[name] for name in given} == given
    assert (plain["lr"], plain["dropout"], plain["weight_decay"], plain["units"]) == (2e-3, 0.3, 0.05, (256,))
    candidate = Candidate("other", {**POOLED, "hidden": 64, "size_head": True}, "").applied_to(configs[0])
    assert {name: to_dict(candidate)[name] for name in given} == given


def test_settings_missing_in_older_configs_have_their_defaults():
    older = {name: value for name, value in DEFAULTS.items() if name not in ("ema", "views", "decoding")}
    given = {"ema": 0.0, "views": 0, "decoding": "greedy"}
    assert changed_settings(older, config_of(given)) == []
    assert changed_settings(older, config_of({**given, "ema": 0.9})) == ["ema was 0.0 and is now 0.9"]
    assert changed_settings(older, RunConfig()) == []
