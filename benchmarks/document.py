"""The tables of docs/performance.md, from the record. ``<!-- part -->`` and ``<!-- /part -->`` are around each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestant import OURS, PLAIN

PAGE = Path("docs/performance.md")


def document(record: Mapping[str, Any], text: str) -> str:
    """The page with the tables of this record in the places of the old ones."""
    for part, lines in TABLES.items():
        if part in record:
            text = between(text, part, lines(record[part]["measured"]), record[part])
    return text


def between(text: str, part: str, lines: Sequence[str], circumstances: Mapping[str, Any]) -> str:
    """The text with these lines, and how they were measured, between the marks of a part."""
    told = "\n".join([*lines, "", _measured(circumstances)])
    marks = re.compile(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)", re.DOTALL)
    text, found = marks.subn(lambda found: f"{found[1]}\n{told}\n\n{found[2]}", text)
    if not found:
        raise ValueError(f"the page has no <!-- {part} --> and <!-- /{part} --> for the table to go between")
    return text


def _measured(circumstances: Mapping[str, Any]) -> str:
    machine = circumstances["machine"]
    return (
        f"*Measured on {circumstances['date'][:10]}, commit {circumstances['git'][:8]}, {machine['cores']} cores of"
        f" {machine['processor']}.*"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (header, ["---:"] * len(header), *rows)]


def _speeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [name for name in rows[0]["images/s"] if name != OURS]
    share = "share of the peak" in rows[0]
    header = ["T", "layers", "ours", *names, *(f"ours / {name}" for name in PLAIN), *["of the peak"] * share]
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
    peak = f"The peak is that of a product of two large matrices: {measured['matmul GFLOP/s']:.0f} GFLOP/s."
    return [*_speeds(measured["rows"]), "", peak]


def _profile(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ["part", *(f"T={row['steps']}, {row['layers']} layer{'s' * (row['layers'] > 1)}" for row in rows)]
    return table(header, [[part, *(f"{row['share'][part]:.0%}" for row in rows)] for part in rows[0]["share"]])


def _tried(measured: Mapping[str, Any]) -> list[str]:
    ideas = {name: told for name, told in measured.items() if "kept" in told and isinstance(told["kept"], bool)}
    return table(
        ["idea", "kept", "ms without", "ms with", "gain"],
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

    header = ["B", "T", "C", "multiset loss, ms", "to `F.cross_entropy`", "to matching", "memory to logits"]
    return table(header, map(cells, rows))


def _features(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def cells(row: Mapping[str, Any]) -> list[str]:
        seconds = [f"{row[name]:.3f}" for name in ("epoch_seconds_without", "epoch_seconds_cached")]
        return [row["backbone"], str(row["images"]), str(row["size"]), *seconds, f"{row['speedup']:.0f}x"]

    return table(["backbone", "images", "pixels", "epoch without, s", "cached, s", "ratio"], map(cells, rows))


TABLES: Mapping[str, Callable[[Any], list[str]]] = {
    "training": _training,
    "prediction": _speeds,
    "profile": _profile,
    "tried": _tried,
    "latency": _latency,
    "losses": _losses,
    "features": _features,
}
