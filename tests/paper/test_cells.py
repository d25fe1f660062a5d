"""Cells, compared with the tables of the paper, which are typed in here."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from paper.beyond import BEYOND_METHODS, FULL_RATE, rate_method
from paper.cells import all_cells, choose, find
from paper.figures import style_of
from paper.scales import RATES_OF, SCALES
from paper.tables import METHODS, TABLES
from torchmultiset.pipeline.config import RunConfig, to_dict

RESULTS = Path(__file__).parents[2] / "results" / "full"
SCALE_NAMES = ("smoke", "small", "paper")

TABLE_1 = """
Random   0.920 0.977 0.721 0.779
Area     0.529 0.830 0.700 0.763
Spatial  0.917 0.976 0.675 0.738
"""
TABLE_2 = """
Greedy     0.475 0.006 0.645 0.016
Stochastic 0.475 0.004 0.649 0.009
Oracle     0.469 0.002 0.616 0.009
"""
TABLE_3A = """
L_multi  0.950 0.987 0.953 0.981 0.920 0.992
L_RL     0.912 0.977 0.945 0.980 0.665 0.970
L_dm^1   0.921 0.978 0.918 0.969 0.239 0.714
L_dm^KL  0.908 0.974 0.908 0.962 0.256 0.874
L_seq    0.906 0.973 0.891 0.952 0.592 0.946
L_1-step 0.210 0.676 0.055 0.598 0.032 0.854
"""
TABLE_3B = """
L_multi  0.702 0.788 0.481 0.639
L_RL     0.672 0.746 0.425 0.564
L_dm^1   0.533 0.614 0.221 0.085
L_dm^KL  0.714 0.763 0.444 0.591
L_seq    0.709 0.774 0.457 0.592
L_1-step 0.552 0.664 0.000 0.446
"""


def printed(table: str) -> dict[str, list[float]]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def declared(table: str, *, prefix: str = "") -> dict[str, list[float]]:
    """Row -> EM and F1 of all columns, from the declared cells."""
    rows: dict[str, dict[tuple[int, int], list[float]]] = {}
    for cell in all_cells("paper", [table]):
        place = cell.tables[table]
        if place.paper is not None and cell.data_set.startswith(prefix):
            names = [name for name in ("em", "em_std", "f1", "f1_std") if name in place.paper]
            rows.setdefault(place.row, {})[place.place] = [place.paper[name] for name in names]
    return {row: [number for _, pair in sorted(numbers.items()) for number in pair] for row, numbers in rows.items()}


def test_declared_numbers_equal_those_of_the_paper():
    assert declared("table-1") == printed(TABLE_1)
    assert declared("table-2") == printed(TABLE_2)
    assert declared("table-3", prefix="mnist") == printed(TABLE_3A)
    assert declared("table-3", prefix="coco") == printed(TABLE_3B)
    assert all(cell.tables["entropy"].paper is None for cell in all_cells("paper", ["entropy"]))


def test_each_table_has_its_split():
    splits = {name: {cell.tables[name].split for cell in all_cells("small", [name])} for name in TABLES}
    assert splits == {
        "table-1": {"validation"},
        "table-2": {"test"},
        "table-3": {"test"},
        "entropy": {"validation"},
    }


def test_tables_have_the_expected_cells():
    def count(scale, table):
        return Counter(cell.data_set for cell in all_cells(scale, [table]))

    # Four ranks, three strategies, six losses, each with several seeds on COCO.
    assert count("paper", "table-1") == {"mnist-multi-4": 4, "coco-easy": 4}
    assert count("small", "table-1") == {"mnist-multi-4": 4, "coco-easy": 4 * 3}
    assert count("paper", "table-2") == count("small", "table-2") == {"coco-medium": 3 * 5}
    digits = {"mnist-multi-4": 6, "mnist-multi-1-4": 6, "mnist-multi-10": 6}
    assert count("paper", "table-3") == digits | {"coco-easy": 6, "coco-medium": 6}
    assert count("small", "table-3") == digits | {"coco-easy": 6 * 3, "coco-medium": 6 * 3}
    figure = {cell.method for cell in all_cells("small", ["entropy"])}
    assert figure == {"multi", "rl", "dm-kl", "dm-l1", "seq"}
    # Shared cells: seq on Multi (4) and Easy, greedy multi on Medium, all of the figure.
    assert len(all_cells("paper", TABLES)) == 8 + 15 + 30 - 2 - 1
    assert len(all_cells("small", TABLES)) == 16 + 15 + 54 - 1 - 3 - 3
    # Six losses of the paper, three for all data sets, and two that are impossible with ten labels.
    digits = {"mnist-multi-4": 11, "mnist-multi-1-4": 11, "mnist-multi-10": 9}
    assert count("paper", "beyond") == digits | {"coco-easy": 11, "coco-medium": 11}
    assert count("small", "beyond") == digits | {"coco-easy": 11 * 3, "coco-medium": 11 * 3}
    assert count("small", "larger") == {"mnist-multi-larger": 8}
    assert count("small", "training") == {"mnist-multi-60": 14, "coco-easy": 8 * 3}
    assert count("small", "rare") == {"mnist-multi-rare": 9}
    # Losses of policies, hence without L_1-step, and two longer ones.
    assert count("small", "policy") == {"mnist-multi-4": 5, "mnist-multi-1-4": 5, "mnist-multi-10": 5}
    assert count("small", "longer") == {"mnist-multi-1-4-longer": 2}
    assert count("small", "variations") == {"mnist-multi-4": 3, "coco-easy": 3 * 3}


def test_a_shared_cell_lists_all_its_tables():
    for table in ("table-1", "table-3"):
        (cell,) = choose(all_cells("paper", [table]), ["mnist-multi-4/seq"])
        assert {name: place.paper and place.paper["em"] for name, place in cell.tables.items()} == {
            "table-1": 0.920,
            "table-3": 0.906,
            "beyond": None,
        }
    (cell,) = choose(all_cells("paper", ["table-3"]), ["mnist-multi-10/rl"])
    assert [*cell.tables] == ["table-3", "entropy", "beyond"]


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_ids_and_configs_correspond_one_to_one(scale):
    cells = all_cells(scale)
    configs = {repr(to_dict(cell.config())) for cell in cells}
    assert len({cell.id for cell in cells}) == len(configs) == len(cells)
    assert all(find(scale, cell.id) == cell for cell in cells)


def test_ids_are_stable():
    ids = [cell.id for cell in all_cells("paper", ["table-1", "table-2"])]
    assert ids == [
        "mnist-multi-4/seq/seed-0",
        "mnist-multi-4/seq-random-per-batch/seed-0",
        "mnist-multi-4/seq-area/seed-0",
        "mnist-multi-4/seq-spatial/seed-0",
        "coco-easy/seq/seed-0",
        "coco-easy/seq-random-per-batch/seed-0",
        "coco-easy/seq-area/seed-0",
        "coco-easy/seq-spatial/seed-0",
        *(f"coco-medium/{name}/seed-{i}" for name in ("multi", "multi-stochastic", "multi-oracle") for i in range(5)),
    ]
    losses = ("multi", "rl", "dm-l1", "dm-kl", "seq", "one-step")
    assert [cell.id for cell in choose(all_cells("small", ["table-3"]), ["mnist-multi-10"])] == [
        f"mnist-multi-10/{loss}/seed-0" for loss in losses
    ]
    # Names are the same at all scales.
    assert {cell.id for cell in all_cells("smoke")} <= {cell.id for cell in all_cells("small")}
    assert {cell.id for cell in all_cells("paper")} <= {cell.id for cell in all_cells("small")}


def test_methods_match_their_names():
    def objective(cell_id):
        return find("small", cell_id).config().objective

    assert objective("mnist-multi-4/multi/seed-0").strategy == "greedy"
    assert objective("coco-medium/multi-oracle/seed-3").strategy == "oracle"
    assert objective("coco-medium/multi-stochastic/seed-3").strategy == "stochastic"
    assert objective("mnist-multi-10/seq/seed-0").rank == "random"
    for rank in ("random-per-batch", "area", "spatial"):
        assert objective(f"coco-easy/seq-{rank}/seed-2").rank == rank
    for name in ("rl", "dm-l1", "dm-kl", "one-step"):
        assert objective(f"coco-easy/{name}/seed-0").objective == name
    assert find("small", "coco-medium/multi-oracle/seed-3").config().seed == 3


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_cells_of_a_data_set_differ_in_objective_and_seed_only(scale):
    rest = {}
    for cell in all_cells(scale, [*TABLES, "beyond", "variations", "policy", "longer", "larger", "rare"]):
        config = replace(cell.config(), objective=RunConfig().objective, seed=0)
        if cell.method == "marginal" or cell.method.endswith("-transformer"):  # these share another policy
            assert config.model.policy == "transformer"
            usual = rest[cell.data_set].model
            config = replace(config, model=replace(config.model, policy=None, hidden=usual.hidden, layers=usual.layers))
        assert rest.setdefault(cell.data_set, config) == config
    assert len(rest) == 8


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_longer_is_the_same_run_with_more_epochs(scale):
    for loss in ("multi", "seq"):
        usual, longer = (
            to_dict(find(scale, f"mnist-multi-1-4{end}/{loss}/seed-0").config()) for end in ("", "-longer")
        )
        assert longer["epochs"] > usual["epochs"]
        assert {**longer, "epochs": usual["epochs"]} == usual


def test_cells_with_another_policy_differ_in_the_model_only():
    for loss in ("multi", "rl", "dm-l1", "dm-kl", "seq"):
        usual, other = (
            find("small", f"mnist-multi-10/{name}/seed-0").config() for name in (loss, f"{loss}-transformer")
        )
        assert other.model.policy == "transformer"
        assert replace(other, model=usual.model) == usual


def test_the_paper_scale_has_the_settings_of_the_paper():
    for cell in all_cells("paper", TABLES):
        values = to_dict(cell.config())
        coco = cell.data_set.startswith("coco")
        assert values["epochs"] == (350 if cell.data_set == "mnist-multi-10" else 200)
        assert (values["lr"], values["schedule"], values["clip"], values["norm"]) == (1e-3, "constant", 0, "none")
        assert (values["policy_norm"], values["precision"]) == ("none", "32-true")
        assert (values["layers"], values["hidden"], values["batch_size"]) == ((2, 512, 32) if coco else (2, 32, 64))
        assert (values["backbone"], values["image_size"]) == (("resnet34", 600) if coco else ("none", 224))
        assert (cell.data.train, cell.data.validation) == (
            (63_000, 7_000)
            if not coco
            else (10_230 - 1_534, 1_534)
            if cell.data_set == "coco-easy"
            else (37_503, 6_618)
        )


def test_the_full_scale_has_the_expected_cells():
    cells = all_cells("full")
    counted = Counter((table, cell.data_set) for cell in cells for table in cell.tables)
    # Six losses, with three seeds of L_multi on digits; four ranks; three strategies; five seeds on COCO.
    for digits in ("mnist-multi-4", "mnist-multi-1-4", "mnist-multi-10"):
        assert counted["table-3", digits] == 5 + 3
    assert counted["table-1", "mnist-multi-4"] == 4
    assert counted["entropy", "mnist-multi-10"] == 4 + 3
    assert (counted["table-1", "coco-easy"], counted["table-2", "coco-medium"]) == (4 * 5, 3 * 5)
    assert counted["table-3", "coco-easy"] == counted["table-3", "coco-medium"] == 6 * 5
    assert counted["beyond", "coco-medium"] == 11 * 5
    # Three learning rates for each loss; on digits only the six of the paper.
    assert counted["rates", "mnist-multi-4"] == counted["rates", "mnist-multi-10"] == 6 * 3
    assert counted["rates", "coco-easy"] == counted["rates", "coco-medium"] == 11 * 3


def test_full_cells_of_a_data_set_differ_in_objective_rate_and_seed_only():
    rest = {}
    for cell in all_cells("full", ["table-1", "table-2", "table-3", "entropy"]):
        config = cell.config()
        config = replace(config, objective=RunConfig().objective, seed=0, optim=replace(config.optim, lr=1.0))
        assert rest.setdefault(cell.data_set, config) == config
        assert (config.model.layers, config.model.policy_norm) == (1, "layer")
    assert len(rest) == 5


def test_the_recipe_of_the_paper_is_unchanged_at_the_full_scale():
    (cell,) = all_cells("full", ["recipe"])
    (paper,) = choose(all_cells("paper", ["table-3"]), ["mnist-multi-4/multi"])
    ours, theirs = to_dict(cell.config()), to_dict(paper.config())
    assert {**ours, "epochs": theirs["epochs"]} == theirs


def test_short_runs_differ_in_the_rate_only():
    for cell in all_cells("full", ["rates"]):
        loss, rate = cell.method.rsplit("-lr-", 1)
        (long,) = choose(all_cells("full", ["table-3", "beyond"]), [f"{cell.data_set}/{loss}/seed-0"])
        short = to_dict(cell.config())
        assert short["lr"] == float(rate)
        assert {**short, "lr": 0, "epochs": 0} == {**to_dict(long.config()), "lr": 0, "epochs": 0}


def test_trials_and_precisions_differ_from_the_best_short_run_in_one_setting_only():
    for cell in all_cells("full", ["trials", "precision"]):
        (best,) = choose(all_cells("full", ["rates"]), [f"{cell.data_set}/{rate_method('multi', FULL_RATE)}/seed-0"])
        tried, usual = to_dict(cell.config()), to_dict(best.config())
        assert len({name for name in usual if tried[name] != usual[name]} - {"seed"}) == (cell.method != best.method)


def test_only_the_runs_that_choose_settings_are_short():
    short = {(*cell.tables,) for cell in all_cells("full") if cell.short}
    assert {name for tables in short for name in tables} == {"rates", "trials", "precision"}
    assert not any(cell.short for scale in ("smoke", "small", "paper") for cell in all_cells(scale))


def test_rates_are_the_best_of_the_short_runs_on_validation_data():
    for data_set, rates in RATES_OF.items():
        scores = defaultdict(dict)
        for path in (RESULTS / data_set).glob("*-lr-*/seed-0/record.json"):
            record = json.loads(path.read_text())
            method, rate = record["method"].rsplit("-lr-", 1)
            overall = record["metrics"]["validation"]["overall"]
            scores[method][float(rate)] = overall["exact_match"], overall["f1"]
        for method, rate in rates.items():
            by_em = max(em for em, _ in scores[method].values()) > 0.1
            assert len(scores[method]) == 3
            assert rate == max(scores[method], key=lambda rate: scores[method][rate][0 if by_em else 1]), method


def test_the_small_scale_fits_into_eight_hours():
    # Seconds of training at the assumed speed.
    training = sum(
        plan.train * cell.config().optim.epochs / plan.images_per_second
        for cell in all_cells("small", TABLES)
        for plan in [cell.data]
    )
    whole = sum(cell.seconds for cell in all_cells("small", TABLES))
    assert training < whole < 8 * 3600
    for cell in all_cells("small", TABLES):
        assert (30 if cell.data_set.startswith("coco") else 8 * 60) < cell.seconds < 15 * 60
        if cell.data_set.startswith("coco"):
            assert cell.seconds < 6 * 60


def test_seconds_include_training_and_validation():
    plan = SCALES["small"].data["mnist-multi-4"]
    one, two = plan.seconds(1), plan.seconds(2)
    assert math.isclose(two - one, (63_000 + 7_000 / 3) / 560)


def test_the_command_of_a_cell_selects_only_that_cell():
    for scale in SCALE_NAMES:
        for cell in all_cells(scale):
            *program, table, _, shown_scale, _, only = cell.command.split()
            assert (program, shown_scale) == (["python", "-m", "paper", "run"], scale)
            assert [found.id for found in choose(all_cells(scale, [table]), [only])] == [cell.id]


def test_cells_are_chosen_by_patterns():
    cells = all_cells("paper", ["table-3"])
    assert choose(cells, []) == cells
    assert {cell.data_set for cell in choose(cells, ["mnist-multi-4"])} == {"mnist-multi-4"}  # not a prefix
    assert {cell.method for cell in choose(cells, ["*/rl/*", "*/dm-*"])} == {"rl", "dm-l1", "dm-kl"}
    with pytest.raises(ValueError, match=r"no cell matches mnist-multi-4/mlti; .* such as mnist-multi-4/multi/seed-0"):
        choose(cells, ["*/rl/*", "mnist-multi-4/mlti"])


def test_unknown_names_are_refused(without_shape_hook):
    with pytest.raises(ValueError, match="scale must be one of 'smoke', 'small', 'full', 'paper'"):
        all_cells("large")
    with pytest.raises(ValueError, match="table must be one of 'table-1'"):
        all_cells("small", ["table-4"])


def test_every_method_has_a_cell():
    assert {cell.method for scale in ("small", "full") for cell in all_cells(scale)} == {*METHODS, *BEYOND_METHODS}


def test_every_method_has_a_distinct_line_style():
    methods = {cell.method for cell in all_cells("small")}
    styles = [tuple(style_of(method).items()) for method in methods]
    assert len({*styles}) == len(styles)


def test_fresh_images_use_a_data_set_built_for_them():
    fresh = "mnist-multi-60/multi-fresh/seed-0"
    assert find("small", fresh).config("d").data.data == "d/mnist-multi-60-plain"
    assert find("small", fresh.replace("fresh", "wide")).config("d").data.data == "d/mnist-multi-60"
