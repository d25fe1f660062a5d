"""Optimisations of a training step that were tried, measured one by one: kept and rejected ones.

Measured with one thread and half of the batch, as in a process of `multiset train`, which also keeps freed memory. Each
optimisation and the code that it replaces run in turns.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad, pixel_unshuffle

from benchmarks.contestant import OURS, Contest, make
from benchmarks.timing import interleaved
from benchmarks.training import contest
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.encoders import ConvEncoder
from torchmultiset.encoders._pool import conv_max_pool, max_pool
from torchmultiset.pipeline.record import read_record
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.policies._lstm import lstm_cell
from torchmultiset.rollout import Step, greedy, rollout

B, LAST = 32, torch.channels_last
BATCHES = {64: 0.005, 128: 0.01, 256: 0.02}
"""Batch size -> learning rate: those of the demo, and larger ones."""


class Idea(NamedTuple):
    """An optimisation: plain and optimised implementation of the same computation."""

    name: str
    kept: bool
    plain: Callable[[], object]
    other: Callable[[], object]


def maps(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=LAST).requires_grad_(grad)


def backward(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    """Return a function that runs forward and backward with a gradient in the output's memory layout."""
    of_output = torch.randn_like(function(*inputs).detach())
    wanted = [x for x in inputs if x.requires_grad]

    def act() -> None:
        torch.autograd.grad(function(*inputs), wanted, of_output)

    return act


def cell_by_autograd(gates: Tensor, cell: Tensor) -> Tensor:
    opening, candidate = torch.split(gates, [3 * gates.shape[1] // 4, gates.shape[1] // 4], dim=1)
    into, keep, out = opening.sigmoid().chunk(3, 1)
    return out * torch.addcmul(into * candidate.tanh(), keep, cell).tanh()


def conv_pool_by_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """Compute convolution and pooling with the four positions of each window as channels."""
    features, channels, kernel, _ = weight.shape
    placed = pad(weight, (1, 1, 1, 1)).unfold(2, kernel + 1, 1).unfold(3, kernel + 1, 1)
    placed = placed.permute(2, 3, 0, 1, 4, 5).reshape(4 * features, channels, kernel + 1, kernel + 1)
    blocks, kernels = (pixel_unshuffle(a, 2).contiguous(memory_format=LAST) for a in (x, placed))
    return torch.stack(conv2d(blocks, kernels).chunk(4, 1)).amax(0)


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, padding: int = 1) -> Tensor:
    """Compute the weight gradient of a convolution with oneDNN."""
    one, none = [1, 1], [0, 0]
    grads: list[Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight, None, one, [padding] * 2, one, False, none, 1, [False, True, False]
    )
    return grads[1]


def weight_gradient_by_patches(x: Tensor, grad: Tensor) -> Tensor:
    """Compute the weight gradient of a convolution as one matrix product over patches."""
    b, c, h, w = x.shape
    around = pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    image, row, column, _ = around.stride()
    patches = around.as_strided((b, h, w, 3, 3 * c), (image, row, column, row, 1)).reshape(-1, 9 * c)
    return grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1]).t() @ patches


class Turned(torch.autograd.Function):
    """Convolution whose input gradient is a convolution with flipped weights instead of oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return conv2d(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        turned = weight.transpose(0, 1).flip(2, 3).contiguous(memory_format=LAST)
        of_x = conv2d(grad, turned, padding=weight.shape[-1] - 1)
        return of_x, weight_gradient(x, grad, weight, padding=0)


def predicting(mode: Callable[[], AbstractContextManager[Any]], *, ends: bool = False) -> Callable[[], None]:
    """Return a function that predicts for ten steps, or until all examples, with 1 to 4 labels each, have stopped."""
    encoder = ConvEncoder()
    policy = ConvLSTMPolicy(10, encoder.memory_shape(100, 100), layers=1)
    images, sizes = torch.rand(B, 1, 100, 100), torch.randint(1, 5, (B,))

    def act() -> None:
        emitted = 0

        def until(_: Step, labels: Tensor) -> Tensor:
            nonlocal emitted
            emitted += 1
            return sizes.expand_as(labels) <= emitted

        with mode():
            rollout(policy, encoder(images), greedy, 10, until=until if ends else None)

    return act


def ideas() -> list[Idea]:
    picture, kernel = maps(B, 1, 100, 100, grad=False), maps(10, 1, 5, 5)
    second, second_kernel = maps(B, 10, 48, 48), maps(10, 10, 5, 5)
    tower, gates, cell = maps(B, 10, 96, 96), maps(B, 128, 9, 9), maps(B, 32, 9, 9)
    table, chosen = maps(11, 128, 9, 9), torch.randint(0, 11, (B,))
    hidden, of_gates = (maps(*s, grad=False) for s in ((B, 32, 9, 9), (B, 128, 9, 9)))
    recurrent = maps(128, 32, 3, 3)
    many = torch.randint(0, 256, (2048, 1, 100, 100), dtype=torch.uint8)
    many_floats, batch = many / 255, torch.randint(0, 2048, (B,))
    steps = 4
    all_hidden, all_gates = (torch.cat([x] * steps).contiguous(memory_format=LAST) for x in (hidden, of_gates))

    def rows(table: Tensor) -> Tensor:
        found = torch.nn.functional.embedding(chosen, table.permute(0, 2, 3, 1).flatten(1))
        return found.view(B, 9, 9, 128).permute(0, 3, 1, 2)

    def one_by_one() -> None:
        for _ in range(steps):
            weight_gradient(hidden, of_gates, recurrent)

    return [
        Idea(
            "pooling by rows and columns",
            True,
            backward(lambda x: max_pool2d(x, 2), tower),
            backward(max_pool, tower),
        ),
        Idea(
            "first convolution with its pooling, on 2x2 blocks",
            True,
            backward(lambda x, w: max_pool(conv2d(x, w)), picture, kernel),
            backward(conv_max_pool, picture, kernel),
        ),
        Idea(
            "LSTM cell by hand",
            True,
            backward(cell_by_autograd, gates, cell),
            backward(lambda a, b: lstm_cell(a, b)[0], gates, cell),
        ),
        Idea(
            "label maps as an embedding",
            True,
            backward(lambda x: x.index_select(0, chosen), table),
            backward(rows, table),
        ),
        Idea(
            "no gradient of the picture",
            True,
            backward(conv2d, picture.detach().requires_grad_(), kernel),
            backward(conv2d, picture, kernel),
        ),
        Idea(
            "pictures are bytes until a batch is read",
            True,
            lambda: many_floats[batch],
            lambda: many[batch] / 255,
        ),
        Idea(
            "prediction in inference mode, not without gradients",
            True,
            predicting(torch.no_grad),
            predicting(torch.inference_mode),
        ),
        Idea(
            "prediction ends once all have stopped: 1 to 4 labels, at most 10",
            True,
            predicting(torch.inference_mode),
            predicting(torch.inference_mode, ends=True),
        ),
        Idea(
            "2x2 blocks as channels, second convolution of the tower",
            False,
            backward(lambda x, w: max_pool(conv2d(x, w)), second, second_kernel),
            backward(conv_pool_by_blocks, second, second_kernel),
        ),
        Idea(
            "gradient of its input as a convolution with turned weights",
            False,
            backward(conv2d, second, second_kernel),
            backward(Turned.apply, second, second_kernel),
        ),
        Idea(
            "weight gradient as a product over patches",
            False,
            lambda: weight_gradient(hidden, of_gates, recurrent),
            lambda: weight_gradient_by_patches(hidden, of_gates),
        ),
        Idea(
            "weight gradients of 4 steps in one call",
            False,
            one_by_one,
            lambda: weight_gradient(all_hidden, all_gates, recurrent),
        ),
    ]


def larger_batches() -> list[dict[str, Any]]:
    """Train the demo for two epochs with each batch size, and return validation exact match and speed."""
    rows, digits = [], {**os.environ, "TORCHMULTISET_MNIST": "bundled"}
    with tempfile.TemporaryDirectory() as folder:
        for size, lr in BATCHES.items():
            command = [sys.executable, "-m", "torchmultiset", "train", "--preset", "demo"]
            command += ["--epochs", "2", "--batch-size", str(size), "--lr", str(lr), "--out", f"runs/{size}"]
            subprocess.run(command, check=True, cwd=folder, env=digits, stdout=subprocess.DEVNULL)
            run = Path(folder, "runs", str(size))
            epochs = map(json.loads, (run / "epochs.jsonl").read_text().splitlines())
            speed = statistics.median(epoch["images_per_second"] for epoch in epochs)
            rows.append(
                {"batch": size, "lr": lr, "validation_em": read_record(run)["validation_em"], "images/s": speed}
            )
    return rows


def measure_all() -> dict[str, Any]:
    """Measure all optimisations."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    record: dict[str, Any] = {}
    for name, kept, plain, other in ideas():
        seconds = interleaved({"without": plain, "with": other}, repeats=25, warmup=3)
        record[name] = {"kept": kept, **{way: 1e3 * value for way, value in seconds.items()}}
    record["images/s by batch, one thread"] = {
        batch: batch / interleaved({"step": make(Contest(OURS, 4, 1, batch=batch, threads=1))}, repeats=7)["step"]
        for batch in (16, 32, 64, 128)
    }
    one = Contest(OURS, 4, 1, threads=threads)
    memory = contest({"kept": one, "handed back": replace(one, keep_memory=False)})
    record["images/s with freed memory, one process"] = memory
    if shutil.which("c++"):
        alone = Contest(OURS, 4, 1, batch=B, threads=1)
        joint = replace(alone, name="joint gates")
        compiled = contest({"ours": alone, "joint gates": joint, "compiled": replace(joint, compiled=True)})
        record["images/s of one thread, joint gates also through torch.compile"] = compiled
    torch.set_num_threads(threads)
    record["larger batches"] = larger_batches()
    return record
