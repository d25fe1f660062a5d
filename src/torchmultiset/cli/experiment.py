"""``multiset experiment``: run the paper's tables, its entropy figure, and tables that go beyond it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from torchmultiset.experiments.cells import Cell, all_cells, choose
from torchmultiset.experiments.data import make_data
from torchmultiset.experiments.engines import Submit, on_ray, subprocesses
from torchmultiset.experiments.grid import (
    Snapshot,
    State,
    failures_in_words,
    forget,
    look,
    refuse_changed,
    run_grid,
)
from torchmultiset.experiments.paper import TableName
from torchmultiset.experiments.scales import SCALES, ScaleName
from torchmultiset.experiments.work import RECORD, Folders, read_json
from torchmultiset.viz.terminal import empty_table

__all__ = ["app"]

# Of its own, because the help lists the choices of a Literal and not those of a union of two.
_Name: TypeAlias = Literal[
    "table-1",
    "table-2",
    "table-3",
    "entropy",
    "beyond",
    "variations",
    "policy",
    "longer",
    "larger",
    "rare",
    "training",
    "rates",
    "recipe",
    "all",
]
_AtLeastOne = Parameter(validator=Number(gte=1))

app = App(
    name="experiment",
    help_epilogue=f"""\
Scales:

{chr(10).join(f"- `{name}`: {scale.about}" for name, scale in SCALES.items())}

Examples:

- `multiset experiment all --scale smoke --workers 2`
- `multiset experiment table-3 --scale small --mnist mnist/ --coco coco-subset/ --dry-run`
- `multiset experiment table-3 --scale small --only mnist-multi-4/multi`
- `multiset experiment table-1 table-2 --scale paper --ray auto --gpus 1`
""",
)


@app.default
def experiment(
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
    """Run the experiments: what is missing is run, what is done is skipped.

    Each cell of a table is a training run of its own. Stop it when you like: started again, the same command goes on
    where it was, after Ctrl-C or a kill.

    Args:
        names: Which tables of the paper; "entropy" is its figure; "beyond" and "variations" are about objectives that
            came after it; "policy" has its losses with a transformer for a policy, "longer" two of them with more
            epochs; "larger" and "rare" test with more labels, and with other labels, than were learned from;
            "training" is about encoders and training, whatever the loss; "rates" are short runs that choose the
            learning rate of each loss, and "recipe" is a run exactly as the paper describes it.
        scale: How large; see below.
        only: Only cells whose name fits this pattern, or begins with it: `mnist-multi-4`, `*/multi/*`. May be repeated.
        dry_run: Only list the cells, and what is done.
        again: Delete what there is of these cells, and run them again.
        workers: How many cells at a time, each in a process of its own.
        threads: Of each cell. If not given, the processors of this machine divided by the workers.
        retries: How often a cell that failed is tried again.
        ray: Run the cells on Ray: the address of a cluster, or "local" for one that is started here. The machines of a
            cluster must share the working folder.
        gpus: GPUs of each cell, on Ray.
        mnist: Where the digits come from: a folder with MNIST's four files, or "download". If not given, what the
            environment variable TORCHMULTISET_MNIST says.
        coco: Folder of COCO. If not given, what the environment variable TORCHMULTISET_COCO says.
        results: Folder for what is kept: records, predictions.
        runs: Folder for the runs: checkpoints, weights, logs.
        data: Folder for the data sets.
    """
    tables: Sequence[TableName] = [name for name in get_args(TableName) if name in names or "all" in names]
    cells = choose(all_cells(scale, tables), only or ())
    folders = Folders(results, runs, data)
    if dry_run:
        _list(cells, folders)
        return
    if again:
        for cell in cells:
            forget(cell, folders)
    refuse_changed(cells, folders)
    missing = [cell for cell in cells if not look(cell, folders).done]
    if missing:
        threads = threads or max((os.cpu_count() or 1) // workers, 1)
        engine = (
            subprocesses(workers, retries=retries)
            if ray is None
            else on_ray(ray, workers=workers, threads=threads, gpus=gpus, retries=retries)
        )
        try:
            _run(cells, missing, folders, engine, threads, (mnist, coco))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("start the same command again, and it goes on where it was") from None
    which = "1 cell is" if len(cells) == 1 else f"All {len(cells)} cells are"
    print(f"{which} done; see {results / scale}.")


def _run(
    cells: Sequence[Cell],
    missing: Sequence[Cell],
    folders: Folders,
    engine: AbstractContextManager[Submit],
    threads: int,
    sources: tuple[str | None, str | None],
) -> None:
    console = Console(stderr=True)
    mnist, coco = sources
    make_data(missing, folders.data, mnist=mnist, coco=coco, progress=console.is_terminal)
    shown = _Shown(console, folders, len(cells), len(cells) - len(missing))
    with shown.bars, engine as submit:
        failures = run_grid(missing, submit, folders, threads=threads, mnist=mnist or "", watch=shown)
    if failures:
        raise ValueError(failures_in_words(failures))


class _Shown:
    """One display for all cells: bars on a terminal, and a line for each cell that is done anywhere."""

    def __init__(self, console: Console, folders: Folders, total: int, done: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[about]}"))
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self.console, self.folders, self.total, self.done = console, folders, total, done
        self.whole = self.bars.add_task("all cells", total=total, completed=done, about="")
        self.parts: dict[str, TaskID] = {}

    def __call__(self, snapshot: Snapshot) -> None:
        """Show where all of it is."""
        left = f", {_duration(snapshot.seconds_left)} left" if snapshot.waiting else ""
        for cell in snapshot.ended:
            self.done += 1
            record = read_json(self.folders.result(cell) / RECORD)
            scores = record["metrics"]["test"]["overall"]
            self.console.print(
                f"{cell.id}: test EM {scores['exact_match']:.3f}, F1 {scores['f1']:.3f},"
                f" {record['run']['minutes']:.1f} min ({self.done} of {self.total} done{left})",
                highlight=False,
                soft_wrap=True,
            )
        failed = f", {snapshot.failed} failed" if snapshot.failed else ""
        at_work = sum(running.share for running in snapshot.running)
        about = f"{self.done} of {self.total} done{failed}{left}"
        self.bars.update(self.whole, completed=self.done + snapshot.failed + at_work, about=about)
        for gone in self.parts.keys() - {running.cell.id for running in snapshot.running}:
            self.bars.remove_task(self.parts.pop(gone))
        for cell, epoch, em, share in snapshot.running:
            if cell.id not in self.parts:
                self.parts[cell.id] = self.bars.add_task(cell.id, total=1, about="")
            epochs = cell.epochs
            about = f"epoch {min(epoch + 1, epochs)}/{epochs}" + ("" if em is None else f", EM {em:.3f}")
            self.bars.update(self.parts[cell.id], completed=share, about=about)


def _list(cells: Sequence[Cell], folders: Folders) -> None:
    states = {cell.id: look(cell, folders) for cell in cells}
    table = empty_table()
    for name in ("cell", "tables", "state"):
        table.add_column(name, no_wrap=name == "cell")
    for cell in cells:
        table.add_row(cell.id, ", ".join(cell.tables), _state(cell, states[cell.id]))
    Console().print(table)
    missing = [cell for cell in cells if not states[cell.id].done]
    summary = f"\n{len(cells)} cells, {len(cells) - len(missing)} done"
    if missing and all(SCALES[cell.scale].speed_is_known for cell in missing):
        summary += f"; the others take {_duration(sum(cell.seconds for cell in missing))} on two CPU cores, as assumed"
    print(f"{summary}.")


def _state(cell: Cell, state: State) -> str:
    if state.differs:
        return f"changed: {'; '.join(state.differs)}"
    if state.done:
        return "done"
    epochs = cell.config().optim.epochs
    if state.epochs == epochs:
        return "to be measured"
    return f"{state.epochs} of {epochs} epochs" if state.epochs else "to be run"


def _duration(seconds: int | float | None) -> str:
    """In words, roughly.

    Example:
        >>> _duration(42), _duration(600), _duration(9000), _duration(400_000)
        ('42 s', '10 min', '2.5 h', '4.6 days')
    """
    if seconds is None:
        return "unknown time"
    for unit, size, until in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86_400:.1f} days"
