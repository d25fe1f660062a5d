"""Processor time of a training step of EfficientNet-Lite0: number format, memory layout, batch norms, trained stages.

Run it with `python -m benchmarks.finetune`; it prints a table and writes results/finetune/finetune.json. Times are
processor times, which depend less on other processes than wall-clock times do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.record import circumstances
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.encoders import FinetunedBackbone, trunk
from torchmultiset.encoders.finetuned import Trainable

RECORD = Path("results/finetune/finetune.json")
BATCH, SIZE, REPEATS = 8, 320, 3


def measure() -> list[dict[str, float | str]]:
    """Time forward and backward passes of all variants, in milliseconds of one core per image."""
    torch.set_num_threads(1)
    images = torch.randint(256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    rows: list[dict[str, float | str]] = []
    for name, make in VARIANTS.items():
        encoder, fold = make()
        for dtype in (torch.float32, torch.bfloat16):
            with mock.patch.object(trunk, "conv2d", nn.functional.conv2d if fold else _separate):
                milliseconds = 1000 / BATCH * _seconds(partial(_step, encoder, images, dtype))
            rows.append({"variant": name, "format": str(dtype).removeprefix("torch."), "ms": round(milliseconds, 1)})
    return rows


def _step(encoder: FinetunedBackbone, images: Tensor, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        memory = encoder(images)
    memory.float().square().mean().backward()


def _seconds(action: Callable[[], None]) -> float:
    action()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def _separate(x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> Tensor:
    """Convolve, then scale and shift the activations, as a separate batch norm does."""
    out = nn.functional.conv2d(x, weight, None, *settings)
    zero, one = torch.zeros_like(bias.detach()), torch.ones_like(bias.detach())
    return nn.functional.batch_norm(out, zero, one, one, bias, eps=1e-5)


def _encoder(trainable: Trainable, *, depthwise: bool = False) -> FinetunedBackbone:
    encoder = FinetunedBackbone("efficientnet-lite0", trainable=trainable)
    return encoder.requires_grad_(True) if depthwise else encoder


VARIANTS: dict[str, Callable[[], tuple[FinetunedBackbone, bool]]] = {
    "all, with depthwise kernels, separate batch norms": lambda: (_encoder("all", depthwise=True), False),
    "all, with depthwise kernels": lambda: (_encoder("all", depthwise=True), True),
    "all": lambda: (_encoder("all"), True),
    "most": lambda: (_encoder("most"), True),
    "last": lambda: (_encoder("last"), True),
}


def main() -> None:
    """Measure, print and record."""
    keep_freed_memory()
    rows = measure()
    table = Table("trained", "float32", "bfloat16", title=f"ms per image, {SIZE} pixels, batches of {BATCH}, one core")
    for name in VARIANTS:
        table.add_row(name, *(str(row["ms"]) for row in rows if row["variant"] == name))
    Console().print(table)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
