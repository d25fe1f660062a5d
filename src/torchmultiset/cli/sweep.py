"""``multiset sweep``: train a grid of settings, and rank the results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, cast

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number
from rich.console import Console

from torchmultiset.cli.progress import sweep_with_progress
from torchmultiset.model.config import ModelConfig
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.presets import PresetName, build_missing
from torchmultiset.pipeline.sweep import Workers, describe_failures, epochs_done, is_finished, stale
from torchmultiset.pipeline.sweep_table import leaderboard, leaderboard_table, write_leaderboard
from torchmultiset.training.config import OptimConfig
from torchmultiset.viz.terminal import empty_table

__all__ = ["expand", "sweep_app"]

_AtLeastOne = Parameter(validator=Number(gte=1))
# Settings whose value is a list of numbers, which a sweep separates by commas.
_LISTS = {
    f"--{setting.name.replace('_', '-')}"
    for part in (DataConfig, ModelConfig, OptimConfig)
    for setting in fields(part)
    if "tuple" in str(setting.type)
}
_NOT_HERE = {
    "--resume": "a sweep always resumes",
    "--devices": "each run has one process; see --workers",
    "--nodes": "each run has one process; see --ray",
}

sweep_app = App(
    name="sweep",
    help_epilogue="""\
Each setting of `multiset train` takes one or several values; see `multiset train --help-all`. A list of numbers, such
as channels, is separated by commas: `--channels 10,10,32 16,32`.

Examples:

- `multiset sweep pets.csv --objective multi counts power --seed 0 1 2`
- `multiset sweep pets.csv --objective multi --lr 1e-3 3e-3 --hidden 32 64 --workers 2`
- `multiset sweep --preset demo --policy conv-lstm transformer --dry-run`
""",
)


@sweep_app.default
def sweep(
    *settings: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path | None = None,
    workers: Annotated[int, _AtLeastOne] = 1,
    threads: Annotated[int | None, _AtLeastOne] = None,
    retries: Annotated[int, Parameter(validator=Number(gte=0))] = 1,
    ray: str | None = None,
    gpus: Annotated[float, Parameter(validator=Number(gte=0))] = 0,
    again: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train every combination of the given settings, and rank the results in a leaderboard.

    Stop it at any time: after Ctrl-C or a kill, the same command resumes where it left off. Finished runs are skipped.

    Args:
        settings: Data and settings, as for `multiset train`; each setting takes one or several values.
        out: Folder of the runs and of sweep.json. Default: runs/NAME-sweep, with the name of the data.
        workers: Number of runs at a time, each in its own process.
        threads: Threads per run. Default: the processors of this machine divided by the workers.
        retries: Number of times that a failed run is retried.
        ray: Train on Ray: the address of a cluster, or "local" to start one here. The machines of a cluster must share
            the working folder.
        gpus: GPUs per run, on Ray.
        again: Delete these runs, and train them again.
        dry_run: Only list the runs and their state.
    """
    runs = expand(settings)
    data = Path(next(iter(runs.values())).data.data or "")
    folder = out or Path("runs", f"{data.stem if data.suffix else data.name}-sweep")
    if dry_run:
        _list(runs, folder)
        return
    for preset in {*_flags(settings)[1].get("--preset", ())}:
        build_missing(cast(PresetName, preset), data, progress=sys.stderr.isatty())
    how = Workers(workers, threads, retries, ray, gpus)
    result = sweep_with_progress(runs, folder, workers=how, again=again, command=["multiset", *sys.argv[1:]])
    if result.finished:
        entries = leaderboard(result.finished.values())
        path = write_leaderboard(folder, entries)
        Console().print(leaderboard_table(entries))
        best = entries[0].name
        first = next(run for run in result.finished if run == best or run.startswith(f"{best}/"))
        print("\nSorted by exact match (EM) on the validation data. Below each score: 95%")
        print("interval over examples; ±: deviation over seeds; p: paired test against the")
        print(f"first run. All numbers: {path}")
        print(f"\nTry next:\n\n  multiset evaluate {shlex.quote(str(folder / first))} {shlex.quote(str(data))}")
    if result.failures:
        raise ValueError(describe_failures(result.failures))


def expand(settings: Sequence[str]) -> dict[str, RunConfig]:
    """Parse the settings of a sweep: each combination of values is parsed as `multiset train` would parse it.

    Args:
        settings: Tokens of the command line.

    Returns:
        Name -> config. A name lists the settings that have several values, and ends with the seed.

    Example:
        >>> list(expand(["pets.csv", "--objective", "multi", "counts", "--hidden", "8", "--seed", "0", "1"]))
        ['objective-multi/seed-0', 'objective-multi/seed-1', 'objective-counts/seed-0', 'objective-counts/seed-1']
    """
    source, flags = _flags(settings)
    runs: dict[str, RunConfig] = {}
    for values in product(*flags.values()):
        given = dict(zip(flags, values, strict=True))
        tokens = [*source, *(token for flag, value in given.items() for token in _as_typed(flag, value))]
        config = _parse(tokens)
        varied = [f"{flag[2:]}-{value}" for flag, value in given.items() if len(flags[flag]) > 1 and flag != "--seed"]
        name = "/".join([*(["_".join(varied).replace("/", "-")] if varied else []), f"seed-{config.seed}"])
        if name in runs:
            raise ValueError(f"two runs have the name {name}: list each value once")
        runs[name] = config
    return runs


def _flags(settings: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Split tokens into those before the first flag, and the values of each flag; "" for a flag without a value."""
    source, flags = list[str](), dict[str, list[str]]()
    current = source
    for token in settings:
        if token.startswith("--"):
            flag, equals, value = token.partition("=")
            if flag in _NOT_HERE:
                raise ValueError(f"{flag} is not a setting of a sweep: {_NOT_HERE[flag]}")
            if flag in flags:
                raise ValueError(f"{flag} is specified twice: list its values after one {flag}")
            current = flags[flag] = [value] if equals else []
        else:
            current.append(token)
    return source, {flag: values or [""] for flag, values in flags.items()}


def _as_typed(flag: str, value: str) -> list[str]:
    return [flag, *(value.split(",") if flag in _LISTS else [value] if value else [])]


def _parse(tokens: Sequence[str]) -> RunConfig:
    """Return the config that `multiset train` would use."""
    from torchmultiset.cli import app as multiset

    try:
        _, bound, _ = multiset.parse_args(["train", *tokens], exit_on_error=False, print_error=False)
    except ValueError as error:  # settings that are wrong or cannot be combined
        raise CycloptsError(str(error)) from error
    bound.apply_defaults()
    given = bound.arguments
    data = given["data"] if given["source"] is None else replace(given["data"], data=given["source"])
    return RunConfig(data, given["model"], given["objective"], given["optim"], given["seed"])


def _list(runs: Mapping[str, RunConfig], folder: Path) -> None:
    table = empty_table()
    table.add_column("run")
    table.add_column("state")
    for name, config in runs.items():
        changed, epochs = stale(folder / name, config), epochs_done(folder / name)
        state = "done" if is_finished(folder / name) else f"{epochs} epochs done" if epochs else "to be trained"
        state = f"stale: {'; '.join(changed)}" if changed else state
        table.add_row(name, state)
    Console().print(table)
    print(f"\n{len(runs)} runs in {folder}.")
