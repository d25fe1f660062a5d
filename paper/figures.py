"""Figures of the experiments: learning curves, errors by size and class, entropy at each step."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from paper.beyond import SHORT
from paper.blocks import LOSSES, TITLES, Block
from paper.records import ENTROPY_TABLES, CellRun
from torchmultiset.viz.entropy_figure import draw_oracle, draw_path, draw_policy
from torchmultiset.viz.panels import PALE, PLAIN

__all__ = [
    "Plot",
    "draw_curves",
    "draw_entropy",
    "draw_errors",
    "draw_losses",
    "draw_sizes",
    "error_rates",
    "losses_plot",
    "names_of",
    "plots",
    "png",
    "style_of",
    "styles_of",
]

_DPI = 110
_WIDTH = 8.0
# Okabe and Ito's palette, for colour blindness; further methods get another line style.
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
_FREE = (*_COLOURS, "#000000")
_MOST_LINES = len(_FREE)
_CLASSES = 30  # columns of a heat map; more cannot be read


class Plot(NamedTuple):
    """A figure with its file name, data set and caption."""

    name: str
    data_set: str
    caption: str
    figure: Figure


def plots(runs: Sequence[CellRun]) -> list[Plot]:
    """Draw all figures of some runs.

    Args:
        runs: From `read_runs`; missing ones are left out.
    """
    drawn = []
    for data_set, done in _by_data_set(runs).items():
        name = data_set.replace("/", "-")
        for kind, title, some in _few(done):
            head = f"{data_set}{title}"
            caption = f"{head}: learning curves, on validation data."
            drawn.append(Plot(f"curves-{name}{kind}", data_set, caption, draw_curves(some, head)))
            if _sizes(some):
                caption = f"{head}: exact match on test data, by size of the true multiset."
                drawn.append(Plot(f"sizes-{name}{kind}", data_set, caption, draw_sizes(some, head)))
        caption = f"{data_set}: labels missed and invented on test data, per 100 true labels of the class."
        drawn.append(Plot(f"errors-{name}", data_set, caption, draw_errors(done)))
        for table in ENTROPY_TABLES:
            groups = _by_method([run for run in done if table in run.tables])
            labels = names_of([run for group in groups.values() for run in group])
            curves = {
                labels[method]: curve for method, group in groups.items() if (curve := group[0].entropy()) is not None
            }
            if not curves:
                continue
            kind, title = ("", "") if table == "entropy" else _ending(table)
            caption = (
                f"{data_set}{title}: entropy at each step on validation data; lines are means, bands contain 90% of"
                " the examples. The policy's entropy is over classes. The oracle's decreases by Remark 4 if items of"
                " one class are distinguished (instances); over classes it can increase. The dotted line is the"
                " oracle's after the labels that the policy has emitted."
            )
            drawn.append(Plot(f"entropy-{name}{kind}", data_set, caption, draw_entropy(curves, f"{data_set}{title}")))
    return drawn


def losses_plot(blocks: Sequence[Block]) -> list[Plot]:
    """Draw the chart of Table 3, ours beside the paper's; none if there is no result.

    Args:
        blocks: From `summarise`.
    """
    shown = [block for block in blocks if block.table == LOSSES and block.results]
    caption = "Exact match on test data for each loss, ours beside the paper's."
    return [Plot("losses", "All data sets", caption, draw_losses(shown))] if shown else []


def draw_losses(blocks: Sequence[Block]) -> Figure:
    """Draw the exact match of each loss as a bar beside the paper's, a panel for each data set.

    Args:
        blocks: Data sets of Table 3 that have a result.
    """
    titles = [*dict.fromkeys(row.title for block in blocks for row in block.rows)]
    figure, panels = _figure(1, len(blocks), 1.3 + 0.42 * len(titles), "Exact match on test data, by loss")
    small: dict[str, Any] = {"va": "center", "fontsize": 7}
    tick: dict[str, Any] = {"color": _COLOURS[1], "markersize": 11, "markeredgewidth": 2}
    digits = any(row.seen.value is not None for block in blocks for row in block.results)
    for panel, block in zip(panels, blocks, strict=True):
        for row in block.rows:
            place, score = titles.index(row.title), row.scores["em"]
            if score.value is None:
                panel.text(0.02, place, "not run yet", color=PLAIN, style="italic", **small)
                continue
            ours = (place - 0.19, score.value, _COLOURS[5], "ours, unseen digits" if digits else "ours")
            for at, value, colour, label in (ours, (place + 0.19, score.paper or 0.0, PALE, "the paper")):
                panel.barh(at, value, 0.36, color=colour, label=label)
                panel.text(0.02, at, f"{value:.3f}", **small)
            if row.seen.value is not None:
                panel.plot(row.seen.value, place - 0.19, "|", label="ours, training digits", **tick)
        panel.set_title(block.column, fontsize=10, parse_math=False)
        panel.set(xlabel="exact match (0 to 1)", xlim=(0, 1.03), ylim=(len(titles) - 0.5, -0.5))
        panel.grid(False)
        panel.set_yticks(range(len(titles)), titles if panel is panels[0] else [""] * len(titles), parse_math=False)
    panels[0].set_ylabel("loss")
    _legend(figure, *panels)
    return figure


def draw_curves(runs: Sequence[CellRun], title: str = "") -> Figure:
    """Draw exact match and F1 on validation data after each epoch: mean over seeds, and their range as a band."""
    figure, (left, right) = _figure(1, 2, 3.8, title and f"{title}: scores on validation data")
    groups, names = _by_method(runs), names_of(runs)
    styles = styles_of([*groups])
    for method, group in groups.items():
        histories = [run.epochs() for run in group]
        length = min(map(len, histories))
        epochs = [line["epoch"] for line in histories[0][:length]]
        for axes, name in ((left, "validation_em"), (right, "validation_f1")):
            values = np.array([[line[name] for line in history[:length]] for history in histories])
            axes.plot(epochs, values.mean(0), label=names[method], marker="o", markersize=2, **styles[method])
            if len(values) > 1:
                colour = styles[method]["color"]
                axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    for axes, score in ((left, "exact match"), (right, "F1 per example")):
        axes.set(xlabel="epoch", ylabel=f"{score} (0 to 1)", ylim=(-0.02, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, left)
    return figure


def draw_sizes(runs: Sequence[CellRun], title: str = "") -> Figure:
    """Draw exact match on test data by size of the true multiset, averaged over seeds."""
    figure, (axes,) = _figure(1, 1, 3.8, title and f"{title}: exact match on test data, by size")
    sizes, groups, names = _sizes(runs), _by_method(runs), names_of(runs)
    styles = styles_of([*groups])
    for method, group in groups.items():
        tables = [run.metrics["test"]["sizes"] for run in group]
        means = [np.mean([table[str(size)]["exact_match"] for table in tables]) for size in sizes]
        axes.plot(sizes, means, label=names[method], marker="o", markersize=4, **styles[method])
    numbers = runs[0].metrics["test"]["sizes"]
    axes.set(ylim=(-0.02, 1.02), ylabel="exact match (0 to 1)", xlabel="number of labels (and of examples)")
    axes.set_xticks(sizes, [f"{size}\n({numbers[str(size)]['examples']:,})" for size in sizes])
    _legend(figure, axes)
    return figure


def draw_errors(runs: Sequence[CellRun]) -> Figure:
    """Draw two heat maps, a row for each method and a column for each class: labels missed, and labels invented."""
    groups, names = _by_method(runs), names_of(runs)
    classes = [name for name, scores in runs[0].metrics["test"]["classes"].items() if scores["labels"]]
    often = sorted(classes, key=lambda name: -runs[0].metrics["test"]["classes"][name]["labels"])[:_CLASSES]
    classes = [name for name in classes if name in often]
    figure, rows = _figure(
        2,
        1,
        2 * (0.9 + 0.28 * len(groups)) + 0.05 * max(map(len, classes)) + 0.3,
        f"{runs[0].data_set}: errors on test data, by class",
    )
    values = {method: [error_rates(group, name) for name in classes] for method, group in groups.items()}
    for which, (axes, kind) in enumerate(zip(rows, ("missed", "invented"), strict=True)):
        grid = np.array([[pair[which] for pair in pairs] for pairs in values.values()])
        # Values above 100 have the colour of 100.
        axes.imshow(grid, cmap="Oranges", vmin=0, vmax=100, aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            dark = value > 60
            axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
        axes.set_title(f"labels {kind}, per 100 true labels of the class", fontsize=10)
        axes.set_yticks(range(len(values)), [names[method] for method in values], parse_math=False)
        upright = max(map(len, classes)) > 2
        axes.set_xticks(range(len(classes)), classes, rotation=90 if upright else 0, parse_math=False)
        axes.tick_params(length=0, labelsize=7.5)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def error_rates(runs: Sequence[CellRun], name: str) -> tuple[float, float]:
    """Return the test labels of a class that are missed, and invented, per 100 true ones; over all seeds."""
    scores = [run.metrics["test"]["classes"][name] for run in runs]
    labels = sum(part["labels"] for part in scores)
    shared = sum((part["recall"] or 0.0) * part["labels"] for part in scores)
    predicted = sum(part["predicted"] for part in scores)
    return 100 * (labels - shared) / labels, 100 * (predicted - shared) / labels


def draw_entropy(curves: Mapping[str, Mapping[str, Any]], title: str = "") -> Figure:
    """Draw the mean entropies of all policies together, then each with its spread beside the oracle's.

    Args:
        curves: Name of the method -> result of `entropy_curves`; at least one.
        title: Title of the figure.
    """
    # Each loss has its own colour; dashes and dots are the oracle's.
    styles = styles_of([*curves])
    columns = 3
    rows = -(-(len(curves) + 1) // columns)
    figure, axes = _figure(rows, columns, 2.7 * rows + 0.2, title and f"{title}: entropy on validation data")
    for method, entropy in curves.items():
        draw_policy(axes[0], entropy, spread=False, label=method, **styles[method])
    shown = next(iter(curves.values()))
    draw_oracle(axes[0], shown, spread=False)
    axes[0].set(xlabel="step", ylabel=f"entropy ({shown['unit']})")
    axes[0].set_title("all policies, means", fontsize=10)
    for panel, (method, entropy) in zip(axes[1:], curves.items(), strict=False):
        draw_oracle(panel, entropy, spread=True)
        draw_path(panel, entropy)
        draw_policy(panel, entropy, spread=True, **styles[method])
        panel.set(xlabel="step")
        panel.set_title(method, parse_math=False, fontsize=10)
    top = max(panel.get_ylim()[1] for panel in axes[: len(curves) + 1])
    for i, panel in enumerate(axes):
        panel.set_visible(i <= len(curves))
        panel.set_ylim(-0.05, top)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, *axes[:2])
    return figure


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file with at most 256 colours; the same figure gives the same bytes."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(packed, format="png", optimize=True)
    return packed.getvalue()


def style_of(method: str) -> dict[str, Any]:
    """Return colour and line style of a method, the same in all figures."""
    if method not in _METHODS:
        return {"color": PLAIN, "linestyle": ":"}
    times, colour = divmod(_METHODS.index(method), len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": _LINES[times]}


def styles_of(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the styles of the methods of one figure: no two have the same colour, if there are at most seven."""
    styles: dict[str, dict[str, Any]] = {}
    for method in methods:
        style, taken = style_of(method), {each["color"] for each in styles.values()}
        free = [colour for colour in _FREE if colour not in taken]
        if style["color"] in (*taken, PLAIN) and free:
            style = {"color": free[0], "linestyle": "-"}
        styles[method] = style
    return styles


def names_of(runs: Sequence[CellRun]) -> dict[str, str]:
    """Return the name of each method as in the tables, with the method in brackets where two are equal."""
    # A loss of Table 3 has its name from there: in Table 1, L_seq is called by the order of its labels.
    titles = {run.method: run.tables.get("table-3", next(iter(run.tables.values()))).row for run in runs}
    twice = {title for title, times in Counter(titles.values()).items() if times > 1}
    return {method: f"{title} ({method})" if title in twice else title for method, title in titles.items()}


def _few(runs: Sequence[CellRun]) -> Iterator[tuple[str, str, list[CellRun]]]:
    """Split runs into figures, each with the suffixes of its file name and of its title.

    The paper's losses share a figure; the other methods of each table follow, beside the paper's multiset loss.
    """
    papers = [run for run in runs if any(table.startswith("table-") or table == "entropy" for table in run.tables)]
    losses = [run for run in papers if "table-3" in run.tables or "entropy" in run.tables]
    others = [run for run in papers if run not in losses]
    if losses:
        yield "", "", losses
    if others:
        first = [run for run in losses if run.method == _METHODS[0]]
        yield from _parts("-variants" if losses else "", ", ranks and strategies", [*first, *others])
    for table in dict.fromkeys(table for run in runs if run not in papers for table in run.tables):
        own = [run for run in runs if run in papers and run.method == _METHODS[0]]
        own += [run for run in runs if run not in papers and table in run.tables]
        yield from _parts(*_ending(table), own)


def _parts(kind: str, title: str, runs: Sequence[CellRun]) -> Iterator[tuple[str, str, list[CellRun]]]:
    """Split runs of many methods into figures of at most seven lines."""
    methods = [*_by_method(runs)]
    for part, start in enumerate(range(0, len(methods), _MOST_LINES), start=1):
        chosen = methods[start : start + _MOST_LINES]
        number = "" if part == 1 else f"-{part}"
        yield f"{kind}{number}", f"{title}{f', part {part}' if number else ''}", [r for r in runs if r.method in chosen]


def _ending(table: str) -> tuple[str, str]:
    """Return the suffixes of file name and title of a figure of a table beyond the paper."""
    return f"-{table}", f", {TITLES.get(table, table).lower()}"


def _sizes(runs: Sequence[CellRun]) -> list[int]:
    """Return the sizes of the true multisets, if there are several."""
    sizes = sorted({int(size) for run in runs for size in run.metrics["test"]["sizes"]})
    return sizes if len(sizes) > 1 else []


def _by_data_set(runs: Sequence[CellRun]) -> dict[str, list[CellRun]]:
    groups: dict[str, list[CellRun]] = {}
    for run in runs:
        if run.done and not {*run.tables} <= {*SHORT}:  # runs of one or few epochs have no curves
            groups.setdefault(run.data_set, []).append(run)
    return groups


def _by_method(runs: Sequence[CellRun]) -> dict[str, list[CellRun]]:
    groups: dict[str, list[CellRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault(run.method, []).append(run)
    return {method: groups[method] for method in dict.fromkeys(run.method for run in runs)}


def _figure(rows: int, columns: int, height: float, title: str = "") -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=11, parse_math=False)
    made = figure.subplots(rows, columns, squeeze=False)
    for axes in made.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=PALE, linewidth=0.5, alpha=0.6)
    return figure, [*made.flat]


def _legend(figure: Figure, *axes: Axes) -> None:
    """Draw one legend for all axes; each label appears once."""
    shown = dict[str, Any]()
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    legend = figure.legend(shown.values(), shown, loc="outside lower center", ncols=_columns([*shown]), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _columns(labels: Sequence[str]) -> int:
    """Return how many columns of labels fit side by side, by the estimated width of the longest label in each.

    Example:
        >>> _columns(["multi", "rl"] * 5), _columns(["multi-transformer"] * 5), _columns(["x" * 200])
        (5, 4, 1)
    """
    lengths = np.array([len(label) for label in labels])
    for number in range(5, 1, -1):
        if sum(0.67 + 0.07 * part.max(initial=0) for part in np.array_split(lengths, number)) <= _WIDTH:
            return number
    return 1
