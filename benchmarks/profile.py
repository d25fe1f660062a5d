"""Where the time of a training step goes: one process of one thread, half of the batch, as `multiset train` has it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.contestant import OURS, Contest, make

STEPS = 5
PARTS = {
    "tower, convolutions forward": ("mkldnn_convolution 5",),
    "tower, convolutions backward": ("convolution_backward 5",),
    "tower, pooling": ("_MaxPool", "_ConvMaxPool"),
    "ConvLSTM, convolutions of memory and labels": ("mkldnn_convolution 3", "convolution_backward 3"),
    "ConvLSTM, recurrent convolutions": ("bmm ", "mm "),
    "ConvLSTM, cells": ("_Cell",),
}
REST = "all else: adding up, loss, Adam, Python"


def measure(steps: int, layers: int) -> dict[str, float]:
    """The share of each part in the time of a step."""
    threads = torch.get_num_threads()
    step = make(Contest(OURS, steps, layers, batch=32, threads=1))
    for _ in range(5):
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        for _ in range(STEPS):
            step()
    torch.set_num_threads(threads)
    spent: Counter[str] = Counter()
    for event in watched.events():
        spent[_part(event)] += event.self_cpu_time_total
    return {part: spent[part] / spent.total() for part in (*PARTS, REST)}


def _part(event: Any) -> str:
    lineage = []
    while event is not None:
        lineage.append(event)
        event = event.cpu_parent
    by_blocks = any(each.name == "_ConvMaxPool" for each in lineage)
    for each in lineage:
        shapes = each.input_shapes or []
        kernel = shapes[2 if "backward" in each.name else 1][-1:] if "convolution" in each.name else [""]
        if by_blocks and kernel == [3]:
            kernel = [5]  # of pixels: 3x3 blocks
        what = f"{each.name.removeprefix('aten::')} {''.join(map(str, kernel))}"
        for part, names in PARTS.items():
            if what.startswith(names):
                return part
    return REST


def report(console: Console) -> list[dict[str, Any]]:
    """Measure, show a table, give the record."""
    rows: list[dict[str, Any]] = [{"steps": s, "layers": k, "share": measure(s, k)} for s, k in ((4, 1), (10, 2))]
    table = Table(title="Where the time of a training step goes")
    table.add_column("part")
    for row in rows:
        table.add_column(f"T={row['steps']}, {row['layers']} layer{'s' * (row['layers'] > 1)}", justify="right")
    for part in (*PARTS, REST):
        table.add_row(part, *[f"{row['share'][part]:.0%}" for row in rows])
    console.print(table)
    return rows
