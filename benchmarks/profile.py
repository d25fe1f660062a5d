"""Profile of a training step: one process with one thread and half of the batch, as in `multiset train`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.contestant import CLASSES, OURS, SHAPES, SIDE, Contest, make
from benchmarks.timing import interleaved, matmul_gflops
from torchmultiset.encoders import ConvEncoder

STEPS, EXAMPLES = 5, 32
FORWARD, BACKWARD = "tower, convolutions forward", "tower, convolutions backward"
MEMORY, RECURRENT = "ConvLSTM, convolutions of memory and labels", "ConvLSTM, recurrent convolutions"
PARTS = {
    FORWARD: ("mkldnn_convolution 5",),
    BACKWARD: ("convolution_backward 5",),
    "tower, pooling": ("_MaxPool", "_ConvMaxPool"),
    MEMORY: ("mkldnn_convolution 3", "convolution_backward 3"),
    RECURRENT: ("bmm ", "mm "),
    "ConvLSTM, cells": ("_Cell",),
}
REST = "all else: adding up, loss, Adam, Python"


def mflop(steps: int, layers: int, hidden: int = 32, kernel: int = 3) -> dict[str, float]:
    """Return the multiplications and additions in the matrix products of one training image, in millions, by part.

    Only computed products count: those shared by all steps once, those with the zeros of the first hidden state not at
    all. Forward counts once, backward twice; the image needs no gradient.
    """
    tower, first, channels, side = 0.0, 0.0, 1, SIDE
    encoder = ConvEncoder()
    for i, features in enumerate((10, 10, 32)):
        side = side - encoder.kernel + 1
        work = 2 * side * side * encoder.kernel**2 * channels * features
        tower += work
        first = work if i == 0 else first
        channels, side = features, side // 2
    gates = 2 * side * side * kernel**2 * hidden * 4 * hidden  # of one feature map
    again = steps - 1 + (2 * steps - 1) * (layers - 1)  # hidden states of the layer itself and of the one below
    work_of = {FORWARD: tower, BACKWARD: 2 * tower - first, MEMORY: 3 * gates, RECURRENT: 3 * gates * again}
    return {part: work / 1e6 for part, work in {**work_of, REST: 3 * steps * 2 * hidden * CLASSES}.items()}


def measure(steps: int, layers: int) -> dict[str, Any]:
    """Measure each part's share of the time of a step, and the fraction of the peak that its convolutions reach."""
    threads = torch.get_num_threads()
    step = make(Contest(OURS, steps, layers, batch=EXAMPLES, threads=1))
    peak = matmul_gflops()
    seconds = interleaved({OURS: step}, repeats=15, warmup=5)[OURS] / EXAMPLES
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        for _ in range(STEPS):
            step()
    torch.set_num_threads(threads)
    spent: Counter[str] = Counter()
    for event in watched.events():
        spent[_part(event)] += event.self_cpu_time_total
    share = {part: spent[part] / spent.total() for part in (*PARTS, REST)}
    work = mflop(steps, layers)
    near = {part: work[part] / 1e3 / (share[part] * seconds) / peak for part in work if part != REST}
    # Parts above the peak, which compute less than is counted, stay as they are.
    saved = sum(share[part] * max(0.0, 1 - near[part]) for part in near)
    return {"images/s": 1 / seconds, "share": share, "of the peak": near, "with all at the peak": 1 / (1 - saved)}


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
            kernel = [5]  # a 5x5 kernel computed on 2x2 blocks has 3x3 blocks
        what = f"{each.name.removeprefix('aten::')} {''.join(map(str, kernel))}"
        for part, names in PARTS.items():
            if what.startswith(names):
                return part
    return REST


def measure_all() -> list[dict[str, Any]]:
    """Measure all shapes."""
    return [{"steps": steps, "layers": layers, **measure(steps, layers)} for steps, layers in SHAPES]
