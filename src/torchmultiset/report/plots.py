"""Figures of the experiments: how the methods learned, where they err, and how sure they are at each step."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from torchmultiset.report.blocks import TITLES
from torchmultiset.report.results import ENTROPY_TABLES, Run
from torchmultiset.viz.entropy_figure import draw_oracle, draw_path, draw_policy

__all__ = [
    "Plot",
    "draw_curves",
    "draw_entropy",
    "draw_errors",
    "draw_sizes",
    "error_rates",
    "plots",
    "png",
    "style_of",
]

_DPI = 110
_WIDTH = 8.0
_GREY = "#57606a"
_PALE = "#afb8c1"
# Okabe and Ito's colours, which most people can tell apart; methods beyond them get another line.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LINES = ("-", "--", ":", "-.", (0, (1, 3)), (0, (6, 3)), (0, (3, 1, 1, 1)))
_METHODS = (
    *("multi", "rl", "dm-l1", "dm-kl", "seq", "one-step"),
    *("multi-stochastic", "multi-oracle", "seq-random-per-batch", "seq-area", "seq-spatial"),
    *("counts", "hungarian", "power", "marginal", "multi-transformer"),
    *("multi-js", "multi-tv"),
    *("multi-plain", "multi-wide", "multi-fine", "multi-fresh", "multi-distort", "multi-affine"),
    *("counts-plain", "counts-wide", "counts-fine", "counts-fresh", "counts-distort", "counts-affine"),
    *("multi-faster", "counts-faster", "multi-transformer-faster", "seq-faster"),
    *("rl-transformer", "dm-l1-transformer", "dm-kl-transformer", "seq-transformer"),
)
_CLASSES = 30  # columns of a heat map; more cannot be read


class Plot(NamedTuple):
    """A figure with what to call it and what to say below it."""

    name: str
    data_set: str
    caption: str
    figure: Figure


def plots(runs: Sequence[Run]) -> list[Plot]:
    """Every figure that the runs give.

    Args:
        runs: From `read_runs`; those that are missing are left out.
    """
    drawn = []
    for data_set, done in _by_data_set(runs).items():
        name = data_set.replace("/", "-")
        for kind, title, some in _few(done):
            caption = f"{data_set}{title}: learning curves, on validation data."
            drawn.append(Plot(f"curves-{name}{kind}", data_set, caption, draw_curves(some)))
            if _sizes(some):
                caption = f"{data_set}{title}: exact match on test data, by size of the true multiset."
                drawn.append(Plot(f"sizes-{name}{kind}", data_set, caption, draw_sizes(some)))
        caption = f"{data_set}: labels missed and invented on test data, for 100 true labels of the class."
        drawn.append(Plot(f"errors-{name}", data_set, caption, draw_errors(done)))
        for table in ENTROPY_TABLES:
            groups = _by_method([run for run in done if table in run.tables])
            curves = {method: told for method, group in groups.items() if (told := group[0].entropy()) is not None}
            if not curves:
                continue
            kind, title = ("", "") if table == "entropy" else _ending(table)
            caption = (
                f"{data_set}{title}: entropy at each step on validation data; lines are means, bands hold 90% of"
                " the examples. The policy's is over classes. The oracle's falls by Remark 4 if items of one class are"
                " told apart (instances); over classes it can rise."
                " The dotted line is the oracle's after what the policy itself has named."
            )
            drawn.append(Plot(f"entropy-{name}{kind}", data_set, caption, draw_entropy(curves)))
    return drawn


def draw_curves(runs: Sequence[Run]) -> Figure:
    """Exact match and F1 on validation data after each epoch: the mean over seeds, and their range as a band."""
    figure, (left, right) = _figure(1, 2, 3.6)
    for method, group in _by_method(runs).items():
        histories = [run.epochs() for run in group]
        length = min(map(len, histories))
        epochs = [line["epoch"] for line in histories[0][:length]]
        for axes, name in ((left, "validation_em"), (right, "validation_f1")):
            values = np.array([[line[name] for line in history[:length]] for history in histories])
            axes.plot(epochs, values.mean(0), label=method, marker="o", markersize=2, **style_of(method))
            if len(values) > 1:
                colour = style_of(method)["color"]
                axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    for axes, title in ((left, "Exact match"), (right, "F1 per example")):
        axes.set(title=title, xlabel="epoch", ylim=(-0.02, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, left)
    return figure


def draw_sizes(runs: Sequence[Run]) -> Figure:
    """Exact match on test data by size of the true multiset; the mean over seeds."""
    figure, (axes,) = _figure(1, 1, 3.6)
    sizes = _sizes(runs)
    for method, group in _by_method(runs).items():
        tables = [run.metrics["test"]["sizes"] for run in group]
        means = [np.mean([table[str(size)]["exact_match"] for table in tables]) for size in sizes]
        axes.plot(sizes, means, label=method, marker="o", markersize=4, **style_of(method))
    numbers = runs[0].metrics["test"]["sizes"]
    axes.set(ylim=(-0.02, 1.02), ylabel="exact match", xlabel="size (and examples)")
    axes.set_xticks(sizes, [f"{size}\n({numbers[str(size)]['examples']:,})" for size in sizes])
    _legend(figure, axes)
    return figure


def draw_errors(runs: Sequence[Run]) -> Figure:
    """Two heat maps, a row for each method and a column for each class: labels missed, and labels invented."""
    groups = _by_method(runs)
    classes = [name for name, told in runs[0].metrics["test"]["classes"].items() if told["labels"]]
    often = sorted(classes, key=lambda name: -runs[0].metrics["test"]["classes"][name]["labels"])[:_CLASSES]
    classes = [name for name in classes if name in often]
    figure, rows = _figure(2, 1, 2 * (0.9 + 0.28 * len(groups)) + 0.05 * max(map(len, classes)))
    values = {method: [error_rates(group, name) for name in classes] for method, group in groups.items()}
    for which, (axes, title) in enumerate(zip(rows, ("missed", "invented"), strict=True)):
        grid = np.array([[pair[which] for pair in pairs] for pairs in values.values()])
        # Beyond 100 all is as bad as it gets.
        axes.imshow(grid, cmap="Oranges", vmin=0, vmax=100, aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            dark = value > 60
            axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
        axes.set_title(title)
        axes.set_yticks(range(len(values)), [*values], parse_math=False)
        upright = max(map(len, classes)) > 2
        axes.set_xticks(range(len(classes)), classes, rotation=90 if upright else 0, parse_math=False)
        axes.tick_params(length=0, labelsize=7.5)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def error_rates(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Test labels of a class that are missed, and ones that are invented, for 100 true ones; over all seeds."""
    told = [run.metrics["test"]["classes"][name] for run in runs]
    labels = sum(part["labels"] for part in told)
    shared = sum((part["recall"] or 0.0) * part["labels"] for part in told)
    predicted = sum(part["predicted"] for part in told)
    return 100 * (labels - shared) / labels, 100 * (predicted - shared) / labels


def draw_entropy(curves: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The policies' mean entropies together, then each with its spread beside the oracle's.

    Args:
        curves: Method -> what `entropy_curves` gives; at least one.
    """
    # Only losses differ, each with a colour of its own; dashes and dots are the oracle's.
    styles = {method: style_of(method.removesuffix("-transformer")) for method in curves}
    columns = 3
    rows = -(-(len(curves) + 1) // columns)
    figure, axes = _figure(rows, columns, 2.7 * rows)
    for method, told in curves.items():
        draw_policy(axes[0], told, spread=False, label=method, **styles[method])
    shown = next(iter(curves.values()))
    draw_oracle(axes[0], shown, spread=False)
    axes[0].set(title="all, means", xlabel="step", ylabel=f"entropy ({shown['unit']})")
    for panel, (method, told) in zip(axes[1:], curves.items(), strict=False):
        draw_oracle(panel, told, spread=True)
        draw_path(panel, told)
        draw_policy(panel, told, spread=True, **styles[method])
        panel.set(xlabel="step")
        panel.set_title(method, parse_math=False)
    top = max(panel.get_ylim()[1] for panel in axes[: len(curves) + 1])
    for i, panel in enumerate(axes):
        panel.set_visible(i <= len(curves))
        panel.set_ylim(-0.05, top)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, *axes[:2])
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG file of at most 256 colours, a third of the size; the same figure gives the same bytes."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(packed, format="png", optimize=True)
    return packed.getvalue()


def style_of(method: str) -> dict[str, Any]:
    """Colour and line of a method, the same in all figures."""
    if method not in _METHODS:
        return {"color": _GREY, "linestyle": ":"}
    times, colour = divmod(_METHODS.index(method), len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": _LINES[times]}


def _few(runs: Sequence[Run]) -> Iterator[tuple[str, str, list[Run]]]:
    """As many as can be told apart in a figure, with the end of its name and its title.

    The paper's own together; then what each other table adds to them, with the paper's method beside it.
    """
    papers = [run for run in runs if any(table.startswith("table-") or table == "entropy" for table in run.tables)]
    if papers:
        yield "", "", papers
    for table in dict.fromkeys(table for run in runs if run not in papers for table in run.tables):
        own = [run for run in runs if run in papers and run.method == _METHODS[0]]
        own += [run for run in runs if run not in papers and table in run.tables]
        yield *_ending(table), own


def _ending(table: str) -> tuple[str, str]:
    """What a figure's name and its title end with, if it is about a table that is not the paper's."""
    return f"-{table}", f", {TITLES.get(table, table).lower()}"


def _sizes(runs: Sequence[Run]) -> list[int]:
    """Sizes of the true multisets, if there are several."""
    sizes = sorted({int(size) for run in runs for size in run.metrics["test"]["sizes"]})
    return sizes if len(sizes) > 1 else []


def _by_data_set(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.done:
            groups.setdefault(run.data_set, []).append(run)
    return groups


def _by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault(run.method, []).append(run)
    return {method: groups[method] for method in dict.fromkeys(run.method for run in runs)}


def _figure(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained", facecolor="white")
    made = figure.subplots(rows, columns, squeeze=False)
    for axes in made.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_PALE, linewidth=0.5, alpha=0.6)
    return figure, [*made.flat]


def _legend(figure: Figure, *axes: Axes) -> None:
    """One for all; what several axes have is in it once."""
    shown = dict[str, Any]()
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    legend = figure.legend(shown.values(), shown, loc="outside lower center", ncols=_columns([*shown]), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _columns(labels: Sequence[str]) -> int:
    """As many as have room side by side, in inches: for each a line and a gap, and what its longest label takes.

    Example:
        >>> _columns(["multi", "rl"] * 5), _columns(["multi-transformer"] * 5), _columns(["x" * 200])
        (5, 4, 1)
    """
    lengths = np.array([len(label) for label in labels])
    for number in range(5, 1, -1):
        if sum(0.67 + 0.07 * part.max(initial=0) for part in np.array_split(lengths, number)) <= _WIDTH:
            return number
    return 1
