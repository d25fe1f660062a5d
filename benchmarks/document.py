"""Write the tables of docs/performance.md from the record, each between ``<!-- part -->`` and ``<!-- /part -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestant import OURS, PLAIN, SHAPES

PAGE = Path("docs/performance.md")


def document(record: Mapping[str, Any], text: str) -> str:
    """Return the page with its tables replaced by those of this record."""
    for part, lines in TABLES.items():
        if part in record:
            text = between(text, part, lines(record[part]["measured"]), record[part])
    if {*AIMED_AT} <= {*record}:
        text = between(text, "aims", table(AIMS, aims(record)), *(record[part] for part in AIMED_AT))
    return text


def between(text: str, part: str, lines: Sequence[str], *circumstances: Mapping[str, Any]) -> str:
    """Return the text with these lines, and how they were measured, between the marks of a part."""
    content = "\n\n".join(["\n".join(lines), *dict.fromkeys(map(_measured, circumstances))])
    marks = re.compile(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)", re.DOTALL)
    text, found = marks.subn(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text)
    if not found:
        raise ValueError(f"the page has no <!-- {part} --> and <!-- /{part} -->: add them where the table belongs")
    return text


def _measured(circumstances: Mapping[str, Any]) -> str:
    machine = circumstances["machine"]
    cores = f"{machine['cores']} cores of {machine['processor']}, {machine['instructions']}"
    return f"*Measured on {circumstances['date'][:10]}, commit {circumstances['git'][:8]}, {cores}.*"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def _speeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [name for name in rows[0]["images/s"] if name != OURS]
    share = "share of the peak" in rows[0]
    header = ["T", "layers", "ours", *names, *(f"ours / {name}" for name in PLAIN), *["of peak"] * share]
    return table(
        header,
        [
            [
                str(row["steps"]),
                str(row["layers"]),
                *(f"{row['images/s'][name]:.0f}" for name in (OURS, *names)),
                *(f"{row['ratio'][name]:.2f}x" for name in PLAIN),
                *([f"{row['share of the peak']:.0%}"] if share else []),
            ]
            for row in rows
        ],
    )


def _training(measured: Mapping[str, Any]) -> list[str]:
    peak = f"The peak is the speed of a large matrix product: {measured['matmul GFLOP/s']:.0f} GFLOP/s."
    last = measured["rows"][-1]
    held = ", ".join(f"{name} {megabytes:.0f}" for name, megabytes in last["peak_mb"].items())
    memory = f"Peak memory of a step in one process, in MB, for T={last['steps']} and {last['layers']} layers: {held}."
    return [*_speeds(measured["rows"]), "", peak, memory]


def _profile(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cell(row: Mapping[str, Any], part: str) -> str:
        near = f" ({row['of the peak'][part]:.0%})" if part in row["of the peak"] else ""
        return f"{row['share'][part]:.0%}{near}"

    header = ["part", *(f"T={row['steps']}, {row['layers']} layer{'s' * (row['layers'] > 1)}" for row in rows)]
    parts = [[part, *(cell(row, part) for row in rows)] for part in rows[0]["share"]]
    gain = [f"{row['with all at the peak']:.2f}x" for row in rows]
    return table(header, [*parts, ["speedup with all convolutions at peak", *gain]])


def _tried(measured: Mapping[str, Any]) -> list[str]:
    ideas = {name: x for name, x in measured.items() if "kept" in x and isinstance(x["kept"], bool)}
    rows = table(
        ["idea", "kept", "ms without", "ms with", "speedup"],
        [
            [
                name,
                "yes" if x["kept"] else "no",
                f"{x['without']:.2f}",
                f"{x['with']:.2f}",
                f"{x['without'] / x['with']:.2f}x",
            ]
            for name, x in ideas.items()
        ],
    )
    speeds = {name: x for name, x in measured.items() if name.startswith("images/s")}
    items = [f"- {name}: {', '.join(f'{way} {x:.0f}' for way, x in by_way.items())}" for name, by_way in speeds.items()]
    header = ["batch", "learning rate", "validation EM", "images/s"]
    batches = [
        [str(x["batch"]), f"{x['lr']:g}", f"{x['validation_em']:.3f}", f"{x['images/s']:.0f}"]
        for x in measured["larger batches"]
    ]
    about = "Larger batches with a proportional learning rate, two epochs of the demo on all cores:"
    return [*rows, "", *items, "", about, "", *table(header, batches)]


def _latency(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [*rows[0]["ms"]]
    cells = ([str(row["steps"]), str(row["layers"]), *(f"{row['ms'][name]:.1f}" for name in names)] for row in rows)
    return table(["T", "layers", *(f"{name}, ms" for name in names)], cells)


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cells(row: Mapping[str, Any]) -> list[str]:
        ours, plain, matching = row["ms"].values()
        memory = row["memory"]["multiset_loss"]
        numbers = [f"{ours:.2f}", f"{ours / plain:.2f}x", f"{ours / matching:.2f}x", f"{memory:.1f}x"]
        return [str(row["batch"]), str(row["steps"]), f"{row['classes']:,}", *numbers]

    header = ["B", "T", "C", "multiset loss, ms", "/ `F.cross_entropy`", "/ matching", "memory / logits"]
    return table(header, map(cells, rows))


def _objectives(rows: Sequence[dict[str, Any]]) -> list[str]:
    first = {row["steps"]: row["images/s"] for row in reversed(rows)}

    def cells(row: dict[str, Any]) -> list[str]:
        speed, steps = row["images/s"], row["steps"]
        numbers = [f"{speed:.0f}", f"{speed / first[steps]:.2f}x", f"{row['peak_mb']:.0f}", f"{row['parameters']:,}"]
        return [row["objective"].replace("_", r"\_"), str(steps), *numbers]

    return table(["objective", "T", "images/s", "/ the first", "peak MB", "parameters"], map(cells, rows))


def _features(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cells(row: Mapping[str, Any]) -> list[str]:
        seconds = [f"{row[name]:.3f}" for name in ("epoch_seconds_without", "epoch_seconds_cached")]
        return [row["backbone"], str(row["images"]), str(row["size"]), *seconds, f"{row['speedup']:.0f}x"]

    return table(["backbone", "images", "pixels", "epoch uncached, s", "epoch cached, s", "speedup"], map(cells, rows))


def _reading(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cells(row: Mapping[str, Any]) -> list[str]:
        whole, ours = row["whole"], row["ours"]
        return [f"{row['size']:.0f}", f"{1000 * whole:.0f}", f"{1000 * ours:.0f}", f"{whole / ours:.1f}x"]

    return table(["pixels", "whole image, ms", "lower resolution, ms", "speedup"], map(cells, rows))


def _generation(measured: Mapping[str, Any]) -> list[str]:
    header = ["variant", "plain loop, images/s", "ours, images/s", "speedup"]
    speeds = {name: row.values() for name, row in measured["speed"].items()}
    rows = ([name, f"{a:,.0f}", f"{b:,.0f}", f"{c:.1f}x"] for name, (a, b, c) in speeds.items())
    built = measured["build of 4"]
    own = built["peak memory of the process, MB"] - built["of which before the build (Python, PyTorch, digits), MB"]
    return [
        *table(header, rows),
        "",
        f"Building MNIST Multi (4), {built['images']:,} images and {built['output, MB']:.0f} MB on disk, takes"
        f" {built['seconds']:.1f} s and {own:.0f} MB of memory.",
    ]


def _lm(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cells(row: Mapping[str, Any]) -> list[str]:
        ours, plain = row["ms"].values()
        memory, other = row["memory"].values()
        shape = [str(row["batch"]), str(row["tokens"]), f"{row['vocabulary']:,}", f"{row['labels']:,}"]
        return [*shape, f"{ours:.0f}", f"{plain:.0f}", f"{ours / plain:.2f}x", f"{memory:.1f}x", f"{other:.1f}x"]

    losses = ["order-free, ms", "`F.cross_entropy`, ms", "ratio", "memory / logits", "of `F.cross_entropy`"]
    return table(["B", "T", "vocabulary", "labels", *losses], map(cells, rows))


def _growth(measured: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    def ends(name: str) -> list[str]:
        first, last = measured[name][0], measured[name][-1]
        return [
            name,
            f"{first['value']} to {last['value']:,}",
            *(f"{first[of]:.0f} to {last[of]:.0f}" for of in ("ms", "peak_mb")),
        ]

    return table(["varied", "range", "ms", "peak MB"], map(ends, measured))


AIMS = ["quantity", "target", "measured", "met"]
AIMED_AT = ("training", "prediction", "losses", "profile")
TIMES, SHARE = 3, 0.6
"""Target speed relative to gate by gate, and target fraction of the peak."""


def aims(record: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the target table: target, measured values, and at how many points it is met."""
    training, prediction, losses, profiled = (record[part]["measured"] for part in AIMED_AT)
    slower = [*PLAIN][-1]

    def row(what: str, aim: str, values: Sequence[float], shown: str, good: Callable[[float], bool]) -> list[str]:
        reached = sum(map(good, values))
        text = ", ".join(format(x, shown) for x in values)
        if len(values) > len(SHAPES):
            text = f"{min(values):{shown}} to {max(values):{shown}}"
        return [what, aim, text, "yes" if reached == len(values) else f"{reached} of {len(values)}"]

    trained, predicted = ([row["ratio"][slower] for row in rows] for rows in (training["rows"], prediction))
    shares = [row["share of the peak"] for row in training["rows"]]
    milliseconds = [tuple(row["ms"].values()) for row in losses]
    memory = [row["memory"]["multiset_loss"] for row in losses]
    needed = [f"{share * TIMES / ratio:.0%}" for share, ratio in zip(shares, trained, strict=True)]
    most = [f"{ratio * row['with all at the peak']:.2f}" for ratio, row in zip(trained, profiled, strict=True)]
    return [
        row(f"training speed / {slower}", "at least 3", trained, ".2f", lambda x: x >= TIMES),
        row("training, fraction of peak", "60%", shares, ".0%", lambda x: x >= SHARE),
        [f"fraction of peak that {TIMES} x {slower} would need", "", ", ".join(needed), ""],
        [f"training speed / {slower}, with all convolutions at peak", "", ", ".join(most), ""],
        row(f"prediction speed / {slower}", "at least 3", predicted, ".2f", lambda x: x >= TIMES),
        row("loss time / cross-entropy", "at most 2", [a / b for a, b, _ in milliseconds], ".2f", lambda x: x <= 2),
        row("loss time / matching", "at most 1", [a / b for a, _, b in milliseconds], ".2f", lambda x: x <= 1),
        row("loss memory / logits", "at most 3", memory, ".1f", lambda x: x <= 3),
    ]


TABLES: Mapping[str, Callable[[Any], list[str]]] = {
    "training": _training,
    "prediction": _speeds,
    "profile": _profile,
    "tried": _tried,
    "latency": _latency,
    "losses": _losses,
    "objectives": _objectives,
    "generation": _generation,
    "features": _features,
    "reading": _reading,
    "growth": _growth,
    "lm": _lm,
}
