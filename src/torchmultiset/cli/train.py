"""``multiset train``: train a model on a data set, and test it."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict
from cyclopts.validators import Number
from rich.console import Console

from torchmultiset._install import pip_install
from torchmultiset.cli._help import HelpOf, as_typed, flags
from torchmultiset.cli.progress import PortfolioProgress, TrainingProgress
from torchmultiset.data.load import is_store
from torchmultiset.model.build import check_together
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.inputs import input_kind, open_model
from torchmultiset.model.registry import OBJECTIVES
from torchmultiset.pipeline import auto
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict
from torchmultiset.pipeline.finish import CURVE, PREDICTIONS, Result
from torchmultiset.pipeline.prepare import Task
from torchmultiset.pipeline.presets import PRESETS, PresetName, RecipeName, build_missing, values_of
from torchmultiset.pipeline.quick import run_folder, time_budget
from torchmultiset.pipeline.record import CONFIG, Watch, read_config, translated
from torchmultiset.pipeline.run import train_run as run
from torchmultiset.pipeline.standings import Standing, standings_table
from torchmultiset.training.config import OptimConfig
from torchmultiset.viz.scores import score_tables

__all__ = ["train_app"]


_LINE = 78  # characters of a suggested command
_SOURCE = "DATA"


_AUTO = "auto"  # shown for a setting that is chosen from the data, and typed to leave it unset
_Flags = flags(_AUTO)
_NEVER_CHOSEN = ("--data", "--start-from")
_CHOSEN = {
    flag
    for name, default in to_dict(RunConfig()).items()
    if default is None and (flag := f"--{name.replace('_', '-')}") not in _NEVER_CHOSEN
}
"""Flags of the settings that are chosen from the data if they are not set; their default is shown as "auto"."""


def _fill_in(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in missing flags: from the config file, the model to start from, the recipe and the preset."""
    chosen = set()
    for argument in arguments:
        if argument.name in _CHOSEN and [token.value for token in argument.tokens] == [_AUTO]:
            argument.tokens.clear()
            chosen.add(argument.name.removeprefix("--").replace("-", "_"))

    def below_flags(values: Mapping[str, Any], source: str) -> None:
        nested = {name: value for name, value in values.items() if name not in chosen}
        # Nested under this command: at the top level, the parser would skip `data`, which is the name of a command.
        for command in reversed(commands):
            nested = {command: nested}
        Dict(nested, source=source)(app, commands, arguments)

    source = _given(arguments, _SOURCE)
    if source is not None and _given(arguments, "--data") is not None:
        raise ValueError(f"the data set is specified twice, as {source} and with --data: remove one")
    file = _given(arguments, "--config")
    if file is not None:
        below_flags(read_config(file), file)
    for argument in arguments:
        for token in argument.tokens:
            # The parser would silently round a fraction.
            if argument.hint in (int, int | None) and _is_fraction(token.value):
                raise ValueError(f"{argument.name} must be a whole number, but is {token.value}")
    start = _given(arguments, "--start-from")
    if start:
        network = _network_of(start, _given(arguments, "--objective"), _given(arguments, "--policy"))
        below_flags(network, f"model {start}")
    preset, recipe = _given(arguments, "--preset"), _given(arguments, "--recipe") or "fast"
    # Unknown names are rejected later, with a suggestion.
    if preset in (None, *get_args(PresetName)) and recipe in get_args(RecipeName):
        values = values_of(preset, recipe, objective=_given(arguments, "--objective"))  # type: ignore[arg-type]
        below_flags(values, f"recipe {recipe}")
        if not (source or _given(arguments, "--data")):
            raise ValueError(_no_data(preset))


# Settings that determine the tensors of a model.
_NETWORK = ("backbone", "encoder", "channels", "norm", "units", "policy", "hidden", "layers", "objective", "count_head")


def _network_of(model: str, objective: str | None, policy: str | None) -> dict[str, Any]:
    """Return the settings of a model that determine its tensors, except those that the flags replace.

    Args:
        model: Model to start from.
        objective: Requested objective, if any. The model's policy is kept only if this objective trains policies.
        policy: Requested policy, if any. The objective of a model without a policy is not kept.
    """
    predictor = open_model(model)
    settings = translated(predictor.record.get("config", {}))
    kept = {name: settings[name] for name in _NETWORK if name in settings}
    if "input" in predictor.record:
        kind = input_kind(predictor)
        kept |= {"image_size": kind.shape[-1], "grey": kind.shape[0] == 1} if kind.of_images else {}
    replaced = {"policy", "count_head"} if objective not in (None, kept.get("objective")) else set()
    new = None if objective is None else OBJECTIVES.get(objective)  # unknown names are rejected later
    if new is not None and not new.one_shot and not new.counts_only and predictor.steps:
        replaced -= {"policy"}
    if policy is not None and not predictor.steps:
        replaced |= {"objective"}
    return {name: value for name, value in kept.items() if name not in replaced}


def _check_together(**given: Any) -> None:
    """Reject settings that cannot be combined, before anything is read or written."""
    objective = given.get("objective", ObjectiveConfig())
    if "model" in given and given["model"].stop == "end" and objective.objective is not None:
        check_together(objective, "end")


def _given(arguments: ArgumentCollection, name: str) -> str | None:
    values = [token.value for argument in arguments if argument.name == name for token in argument.tokens]
    return values[-1] if values else None


def _is_fraction(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.lstrip("+-").isdigit()


_COMMON = (
    "--out",
    "--minutes",
    "--resume",
    "--preset",
    "--backbone",
    "--image-size",
    "--objective",
    "--epochs",
)
_MORE = f"""
Presets:

{chr(10).join(f"- `{name}`: {preset.about}" for name, preset in PRESETS.items())}

Recipes:

- `paper`: Adam at 1e-3 throughout, no clipping, no normalisation, 2 policy layers, 200 epochs (350 for 10 digits)
- `fast`: one-cycle learning rate with a higher peak, gradient clipping, BatchNorm in the convolutional tower, and far
  fewer epochs

Each value comes from the first of these that sets it: the flag, the config file, the model of `--start-from` (for the
architecture), the recipe, the preset.
"""

train_app = App(
    name="train",
    config=_fill_in,
    validator=_check_together,
    help_formatter=HelpOf(_COMMON, _NEVER_CHOSEN, _MORE, "Optimisation"),
    help_epilogue="""\
All options: `multiset train --help-all`

Examples:

- `multiset train pets.csv`
- `multiset train photos/ --minutes 30`
- `multiset train --preset demo`
- `multiset train digits.csv --start-from mnist-multi-1-4`
- `multiset train --config runs/demo/config.toml --out runs/again`
""",
)


@train_app.default
def train(
    source: Annotated[str | None, Parameter(_SOURCE)] = None,
    /,
    *,
    preset: PresetName | None = None,
    recipe: RecipeName = "fast",
    config: Path | None = None,  # noqa: ARG001  (read by _fill_in)
    out: Path | None = None,
    minutes: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    devices: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    nodes: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    data: Annotated[DataConfig, _Flags, Parameter(group="Data")] = DataConfig(),  # noqa: B008  (frozen)
    model: Annotated[ModelConfig, _Flags, Parameter(group="Model")] = ModelConfig(),  # noqa: B008
    objective: Annotated[ObjectiveConfig, _Flags, Parameter(group="Objective")] = ObjectiveConfig(),  # noqa: B008
    optim: Annotated[OptimConfig, _Flags, Parameter(group="Optimisation")] = OptimConfig(),  # noqa: B008
) -> None:
    """Train a model on a data set, and test it.

    Args:
        source: Your own data: a .csv or .jsonl file, or a folder of images with a labels.csv; or a folder made by
            `multiset data build`. No option is needed.
        preset: Task of the paper, or a small demo of it; --help-all describes them.
        recipe: Training recipe, described below.
        config: TOML file of settings, named like the flags below with _ for -. Each run folder contains one.
        out: Output folder. Default: runs/ and the name of the preset or of the data.
        minutes: Time budget for comparing models on your own data; the best one is kept. Default: 10. With 0, or with
            --objective, one model is trained.
        resume: Resume the run in the output folder, if there is one.
        devices: Processes per machine. Default: one per GPU; on a CPU one per core, as long as each has 32 examples
            per batch.
        nodes: Number of machines.
        seed: Random seed of the weights, of the order of the examples and of all sampling.
        data: Where the examples come from, and how images are read.
        model: The network.
        objective: Training objective and its settings.
        optim: Optimiser settings.
    """
    data = data if source is None else replace(data, data=source)
    assert data.data is not None  # `_fill_in` refuses a command without data
    out = out or (Path("runs") / preset if preset else run_folder(data.data))
    console = Console(stderr=True)
    if preset:
        build_missing(preset, data.data, progress=console.is_terminal)
    whole = RunConfig(data, model, objective, optim, seed)
    shown = TrainingProgress(console)
    # Further processes rerun the command line of this one, which in a notebook or another program is a different one.
    may_start_others = sys.argv[1:2] == ["train"]

    say = partial(print, flush=True)  # keeps the order with standard error in a log

    def compare_with_paper(task: Task) -> Watch:
        say(textwrap.fill(_unlike_the_paper(task.config, preset), 80, subsequent_indent="  "))
        return shown.start(task)

    like_paper = preset or is_store(data.data)  # the paper has no recipe for other data
    budget = time_budget(whole, minutes)
    portfolio = PortfolioProgress(console, budget)

    def winner(task: Task) -> Watch:
        portfolio.stop()
        return shown.start(task)

    options: dict[str, Any] = {
        "resume": resume,
        "command": ["multiset", *sys.argv[1:]],
        "progress": console.is_terminal,
        "say": say,
    }
    standings = list[Standing]()
    try:
        if budget:
            options |= {"watch": portfolio, "watch_winner": winner}
            result, standings = auto.train_portfolio(whole, out, minutes=budget, **options)
        else:
            options["watch"] = compare_with_paper if recipe == "fast" and like_paper else shown.start
            result = run(whole, out, devices=devices or (None if may_start_others else 1), nodes=nodes, **options)
    except KeyboardInterrupt:
        what = "portfolio" if budget else "run"
        raise KeyboardInterrupt(f"start the same command with --resume to resume the {what} in {out}") from None
    finally:
        portfolio.stop()
        shown.stop()
    if standings:
        Console().print(standings_table(standings))
    _print_result(out, data.data, result)


def _no_data(preset: str | None) -> str:
    if preset is not None and preset.startswith("coco"):
        return f"{preset} needs --data, the file that `multiset data build {preset}` writes; see its --help"
    return "no data set is specified: pass a file or folder (multiset train pets.csv), or a preset (--preset demo)"


def _unlike_the_paper(config: RunConfig, preset: PresetName | None) -> str:
    """Describe the settings of a run that differ from the paper's."""
    values = to_dict(config)
    pairs = [
        f"{name} {as_typed(values[name], _AUTO)} ({as_typed(value, _AUTO)})"
        for name, value in values_of(preset, "paper").items()
        if values[name] != value and name != "data"
    ]
    return f"Unlike the paper (--recipe paper): {', '.join(pairs) or 'nothing'}."


def _print_result(out: Path, data: str, result: Result) -> None:
    record = result.record
    if not record.get("finished"):  # only the first process has the results
        return
    if result.report is None:
        print(f"The run in {out} is already finished.")
    else:
        console = Console()
        for table in score_tables(result.report):
            console.print()
            console.print(table)
        if not OBJECTIVES[read_config(out / CONFIG)["objective"]].closed_form:  # which has no epochs
            print(
                f"\nTrained in {record['minutes']:.1f} minutes; the weights of epoch {record['best_epoch']} are kept."
            )
        if record.get("verdict"):
            print("\n" + textwrap.fill(record["verdict"], 80))
    where, what = shlex.quote(str(out)), shlex.quote(data)
    files = {
        "model": "the model",
        "leaderboard.json": "validation scores of all candidates",
        CURVE: "learning curve",
        PREDICTIONS: "examples of right and wrong predictions",
        "config.toml": "every setting; multiset train --config repeats the run",
        "run.json": "results, versions, machine",
    }
    print(f"\nIn {out}:\n")
    for name, about in files.items():
        if (out / name).exists():
            print(f"  {name:<16} {about}")
    if not (out / PREDICTIONS).exists():
        print(f"  no figures, which need matplotlib: {pip_install('report')}")
    tested = "test" if "test" in record else "validation"
    figure = " --figure predicted.png" if (out / PREDICTIONS).exists() else ""
    predict = f"multiset predict {where} {what} --split {tested} --number 12"
    if len(predict + figure) > _LINE:
        figure = ""
    print(
        f"\nTry next:\n\n  {predict}{figure}\n"
        f"  multiset evaluate {where} {what}{' --split validation' * (tested == 'validation')}\n  multiset train --help"
    )
