"""``multiset report``: tables, figures and a page from the records of the experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cyclopts import App
from rich.console import Console

from torchmultiset.data.examples import Examples
from torchmultiset.data.load import load_data
from torchmultiset.experiments.cells import all_cells
from torchmultiset.experiments.scales import SCALES, ScaleName
from torchmultiset.experiments.work import Folders
from torchmultiset.report.blocks import NOTES
from torchmultiset.report.publish import publish
from torchmultiset.report.result_tables import result_table
from torchmultiset.report.results import Run, read_runs
from torchmultiset.report.summary import summarise

__all__ = ["app"]

app = App(
    name="report",
    help_epilogue="""\
Examples:

- `multiset report`
- `multiset report --scale smoke --out /tmp/report`
""",
)


@app.default
def report(
    *,
    scale: ScaleName = "small",
    results: Path = Folders.results,
    data: Path = Folders.data,
    out: Path = Path("docs", "results"),
) -> None:
    """Show the results of the experiments beside the paper's, and write them as Markdown, figures and one HTML page.

    Args:
        scale: Which experiments.
        results: Folder of the records, as `multiset experiment` has it.
        data: Folder of the data sets, for test images with predictions; generated ones only. What is not there is
            left out.
        out: Folder to write to.
    """
    runs = read_runs(results / scale, [cell.to_json() for cell in all_cells(scale)])
    if not any(run.done for run in runs):
        raise ValueError(
            f"there are no records in {results / scale}: run `multiset experiment all --scale {scale}` first, or name"
            " the folder that has them (--results)"
        )
    blocks = summarise(runs)
    console = Console()
    for block in blocks:
        console.print(result_table(block))
        console.print(block.data, markup=False, highlight=False)
        console.print(block.verdict, markup=False, highlight=False)
        console.print()
    for note in NOTES:
        console.print(note, highlight=False)
    images = _images(runs, scale, data)
    written = publish(out, scale, runs, blocks, data=images, command=f"multiset report --scale {scale}")
    print(f"\n{sum(run.done for run in runs)} of {len(runs)} runs are done. Written, with {len(written) - 2} figures:")
    for path in written:
        if path.suffix != ".png":
            print(f"  {path}")
    if not images:
        print(f"Without test images and their predictions: the generated data is not in {data} (--data).")


def _images(runs: Sequence[Run], scale: ScaleName, data: Path) -> dict[str, Examples]:
    """Test examples of generated data sets, as far as they are there; photographs are not ours to show."""
    plans = SCALES[scale].data
    return {
        name: load_data(data / plan.path)["test"]
        for name, plan in plans.items()
        if plan.digits is not None
        and (data / plan.path).is_dir()
        and any(run.done and run.data_set == name for run in runs)
    }
