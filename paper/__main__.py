"""Command line of the experiments: ``python -m paper run`` and ``python -m paper report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console

from paper.blocks import NOTES
from paper.cells import Cell, all_cells, choose
from paper.data import make_data
from paper.keep import CellState, Folders, forget_cell, state_of
from paper.records import CellRun, read_runs
from paper.report import publish, result_table
from paper.scales import SCALES, ScaleName
from paper.summary import summarise
from paper.tables import TableName
from torchmultiset.cli import main as run_command
from torchmultiset.cli.progress import duration, sweep_with_progress
from torchmultiset.data.digits import load_digits
from torchmultiset.data.examples import Examples
from torchmultiset.data.mnist_multi import generate
from torchmultiset.pipeline.sweep import Workers, describe_failures, refuse_stale
from torchmultiset.viz.terminal import empty_table

__all__ = ["app", "main"]

_Name: TypeAlias = Literal[TableName, "all"]
_AtLeastOne = Parameter(validator=Number(gte=1))

app = App(
    name="python -m paper",
    help="The paper's tables and figure, and tables beyond it: train the missing cells, and write the report.",
    help_epilogue=f"""\
Scales:

{chr(10).join(f"- `{name}`: {scale.about}" for name, scale in SCALES.items())}

Examples:

- `python -m paper run all --scale smoke --workers 2`
- `python -m paper run table-3 --scale small --mnist mnist/ --coco coco-subset/ --dry-run`
- `python -m paper run table-3 --scale small --only mnist-multi-4/multi`
- `python -m paper run table-1 table-2 --scale paper --ray auto --gpus 1`
- `python -m paper report --scale small`
""",
)


@app.command
def run(
    names: Annotated[list[_Name], Parameter(required=True)],
    /,
    *,
    scale: ScaleName,
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    again: Annotated[bool, Parameter(negative=())] = False,
    workers: Annotated[int, _AtLeastOne] = 1,
    threads: Annotated[int | None, _AtLeastOne] = None,
    retries: Annotated[int, Parameter(validator=Number(gte=0))] = 1,
    ray: str | None = None,
    gpus: Annotated[float, Parameter(validator=Number(gte=0))] = 0,
    mnist: str | None = None,
    coco: str | None = None,
    results: Path = Folders.results,
    runs: Path = Folders.runs,
    data: Path = Folders.data,
) -> None:
    """Train the cells of some tables that have no record yet.

    Stop it at any time: after Ctrl-C or a kill, the same command resumes where it left off.

    Args:
        names: Tables of the paper; "entropy" is its figure. Tables beyond it are described in docs/experiments.md.
        scale: Data, epochs and seeds; see `python -m paper --help`.
        only: Only cells whose name matches this pattern, or begins with it: `mnist-multi-4`, `*/multi/*`. May be
            repeated.
        dry_run: Only list the cells and their state.
        again: Delete the records and runs of these cells, and run them again.
        workers: Number of cells at a time, each in its own process.
        threads: Threads per cell. Default: the processors of this machine divided by the workers.
        retries: Number of times that a failed cell is retried.
        ray: Run the cells on Ray: the address of a cluster, or "local" to start one here. The machines of a cluster
            must share the working folder.
        gpus: GPUs per cell, on Ray.
        mnist: Source of the digits: a folder with MNIST's four files, or "download". Default: the environment
            variable TORCHMULTISET_MNIST.
        coco: Folder of COCO. Default: the environment variable TORCHMULTISET_COCO.
        results: Folder of the records.
        runs: Folder of the runs: checkpoints, weights, logs.
        data: Folder of the data sets.
    """
    tables: Sequence[TableName] = [name for name in get_args(TableName) if name in names or "all" in names]
    cells = choose(all_cells(scale, tables), only or ())
    folders = Folders(results, runs, data)
    if dry_run:
        _list(cells, folders)
        return
    if again:
        for cell in cells:
            forget_cell(cell, folders)
    states = {cell.id: state_of(cell, folders) for cell in cells}
    refuse_stale({name: state.changed for name, state in states.items()})
    missing = [cell for cell in cells if not states[cell.id].recorded]
    if missing:
        _run(missing, folders, Workers(workers, threads, retries, ray, gpus), mnist, coco)
    which = "1 cell is" if len(cells) == 1 else f"All {len(cells)} cells are"
    print(f"{which} done; see {results / scale}.")


def _run(cells: Sequence[Cell], folders: Folders, workers: Workers, mnist: str | None, coco: str | None) -> None:
    scale = cells[0].scale
    make_data(cells, folders.data, mnist=mnist, coco=coco, progress=sys.stderr.isatty())
    seconds = {cell.id: cell.seconds for cell in cells}
    known = {name: value for name, value in seconds.items() if value is not None}
    result = sweep_with_progress(
        {cell.id: cell.config(folders.data) for cell in cells},
        folders.runs / scale,
        workers=workers,
        command=["python", "-m", "paper", *sys.argv[1:]],
        after=("paper.keep:keep", {"scale": scale, "results": str(folders.results)}),
        seconds=known if len(known) == len(cells) else None,
    )
    if result.failures:
        raise ValueError(describe_failures(result.failures))


def _list(cells: Sequence[Cell], folders: Folders) -> None:
    states = {cell.id: state_of(cell, folders) for cell in cells}
    table = empty_table()
    for name in ("cell", "tables", "state"):
        table.add_column(name, no_wrap=name == "cell")
    for cell in cells:
        table.add_row(cell.id, ", ".join(cell.tables), _state(cell, states[cell.id]))
    Console().print(table)
    missing = [cell for cell in cells if not states[cell.id].recorded]
    stale = sum(bool(state.changed) for state in states.values())
    summary = f"\n{len(cells)} cells, {len(cells) - len(missing)} with a record" + (f", {stale} stale" if stale else "")
    seconds = [cell.seconds for cell in missing]
    if missing and None not in seconds:
        expected = duration(sum(value for value in seconds if value is not None))
        summary += f"; the others take about {expected} on two CPU cores"
    print(f"{summary}.")


def _state(cell: Cell, state: CellState) -> str:
    if state.changed:
        return f"stale: {'; '.join(state.changed)}"
    if state.recorded:
        return "done"
    return f"{state.epochs} of {cell.epochs} epochs" if state.epochs else "to be run"


@app.command
def report(
    *,
    scale: ScaleName = "small",
    results: Path = Folders.results,
    mnist: str | None = None,
    out: Path = Path("docs", "results"),
) -> None:
    """Show the results beside the paper's, and write them as a Markdown page with figures.

    Args:
        scale: Scale of the experiments.
        results: Folder of the records.
        mnist: Source of the digits, as for `run`, to draw test images with predictions.
        out: Folder to write to.
    """
    runs = read_runs(results / scale, all_cells(scale))
    if not any(run.done for run in runs):
        raise ValueError(
            f"there are no records in {results / scale}: run `python -m paper run all --scale {scale}` first, or pass"
            " the folder that has them (--results)"
        )
    blocks, console = summarise(runs), Console()
    for block in blocks:
        console.print(result_table(block))
        console.print(block.data, markup=False, highlight=False)
        console.print(block.verdict, markup=False, highlight=False)
        console.print()
    for note in NOTES:
        console.print(note, highlight=False)
    command = f"python -m paper report --scale {scale}"
    written = publish(out, scale, runs, blocks, data=_images(runs, scale, mnist), command=command)
    done = sum(run.done for run in runs)
    print(f"\n{done} of {len(runs)} runs are done. Wrote {written[-1]} with {len(written) - 1} figures.")


def _images(runs: Sequence[CellRun], scale: ScaleName, mnist: str | None) -> dict[str, Examples]:
    """Generate the test examples of MNIST Multi again, if the digits are available; photographs are not shown."""
    all_digits, done = SCALES[scale].all_digits, {run.data_set for run in runs if run.done}
    try:
        pools = load_digits(mnist if all_digits else "bundled")
    except (ImportError, FileNotFoundError):
        return {}
    if all_digits and pools.name != "mnist":
        return {}
    return {
        name: generate(data.tested or data.digits, pools.test, "test", range(data.test), lazy=True)
        for name, data in SCALES[scale].data.items()
        if data.digits is not None and name in done
    }


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code, as `multiset` does."""
    return run_command(tokens, commands=app)


if __name__ == "__main__":
    sys.exit(main())
