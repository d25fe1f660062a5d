from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import get_args

import pytest

from torchmultiset.data.mnist_multi import VARIANTS
from torchmultiset.model.build import build_predictor
from torchmultiset.model.config import CHANNELS
from torchmultiset.model.registry import OBJECTIVES, POLICIES
from torchmultiset.pipeline.config import RunConfig, config_of, to_dict
from torchmultiset.pipeline.presets import PRESETS, RECIPES, PresetName, RecipeName, values_of
from torchmultiset.pipeline.record import read_config


@pytest.mark.parametrize("recipe", get_args(RecipeName))
@pytest.mark.parametrize("preset", [None, *get_args(PresetName)])
def test_presets_and_recipes_set_existing_settings_with_their_types(preset, recipe):
    known = to_dict(RunConfig())
    for name, value in values_of(preset, recipe).items():
        assert known[name] is None or type(value) is type(known[name]), name


def test_the_names_of_presets_and_recipes_match_their_types():
    assert [*PRESETS] == [*get_args(PresetName)]
    assert {*RECIPES} == {*get_args(RecipeName)}


@pytest.mark.parametrize("preset", [name for name in get_args(PresetName) if name != "demo"])
def test_the_paper_recipe_has_the_settings_of_the_paper(preset):
    # Appendix E: Adam at 1e-3; two ConvLSTM layers of 32 (512 for COCO); batches of 64 (32); 200 epochs (350 for ten).
    values = to_dict(RunConfig()) | values_of(preset, "paper")
    coco = preset.startswith("coco")
    assert (values["lr"], values["schedule"], values["clip"], values["norm"]) == (1e-3, "constant", 0, "none")
    assert (values["layers"], values["hidden"], values["batch_size"]) == (2, 512 if coco else 32, 32 if coco else 64)
    assert values["epochs"] == (350 if preset == "mnist-multi-10" else 200)
    assert values["channels"] is None  # the default of the tower
    assert CHANNELS == (10, 10, 32)
    assert (values["backbone"], values["image_size"]) == (("resnet34", 600) if coco else ("none", 224))


def test_the_fast_recipe_has_a_tenth_of_the_epochs_and_the_same_data():
    for preset in get_args(PresetName):
        fast, paper = values_of(preset, "fast"), values_of(preset, "paper")
        assert fast["epochs"] <= paper["epochs"] / 10
        assert fast["schedule"] == "one-cycle"
        assert fast.get("data") == paper.get("data")
    assert values_of("demo", "fast")["policy"] == "transformer"  # the best policy within two minutes


@pytest.mark.parametrize("objective", [name for name, kind in OBJECTIVES.items() if not kind.closed_form])
def test_a_preset_can_be_used_with_every_objective(objective):
    config = config_of(values_of("demo", "fast", objective=objective) | {"objective": objective})
    if objective == "marginal":  # needs a policy that sees only counts
        assert config.model.policy in POLICIES
    predictor = build_predictor(
        config.model, config.objective, shape=(1, 60, 60), classes=[*"0123456789"], max_size=4, stop="policy"
    )
    assert bool(predictor.steps) != OBJECTIVES[objective].one_shot


def test_presets_have_the_expected_data():
    for name, parameters in VARIANTS.items():
        assert PRESETS[f"mnist-multi-{name}"].digits is parameters
    demo = asdict(PRESETS["demo"].digits)
    expected = {"sizes": (1, 4), "digit_px": (20, 28), "canvas": 60, "clutter": 4, "train": 54_000}
    assert {name: demo[name] for name in expected} == expected
    for name, preset in PRESETS.items():
        if name.startswith("coco"):
            assert "data" not in preset.values
            assert preset.digits is None
        else:
            assert preset.values["data"] == f"data/{name}"


@pytest.mark.parametrize(("folder", "objective"), [("demo", "multi"), ("demo-counts", "counts")])
def test_the_records_of_the_demo_have_its_settings(folder, objective):
    recorded = read_config(Path(__file__).parents[2] / "results" / folder / "config.toml")
    wanted = values_of("demo", "fast", objective=objective) | {"objective": objective}
    if objective == "counts":
        wanted["epochs"] = 2  # as in the second command of `make demo`
    assert {name: recorded[name] for name in wanted} == {
        name: [*value] if isinstance(value, tuple) else value for name, value in wanted.items()
    }


def test_unknown_names_are_refused(without_shape_hook):
    with pytest.raises(ValueError, match="preset must be one of 'demo'"):
        values_of("mnist", "fast")
    with pytest.raises(ValueError, match="recipe must be one of 'fast', 'paper'"):
        values_of(None, "slow")
