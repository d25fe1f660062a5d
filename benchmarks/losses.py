"""The multiset loss beside loops and beside cross-entropy on the same logits: time and peak memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import interleaved, peak_bytes
from torchmultiset.losses import multiset_loss
from torchmultiset.multiset import free_labels, from_labels
from torchmultiset.oracle import oracle


def loop_over_steps(logits: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """One step at a time, the free label multiset updated in place."""
    free = target.clone()
    total = logits.new_zeros(len(logits))
    for t in range(logits.shape[1]):
        size = free.sum(-1)
        oracle_t = free / size.clamp(min=1)[:, None]
        total = total - (oracle_t * logits[:, t].log_softmax(-1)).sum(-1)
        chosen = labels[:, t, None]
        free = free.scatter(1, chosen, (free.gather(1, chosen) - 1).clamp(min=0))
    return total.mean()


def loop_over_examples_and_steps(logits: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """As the paper's definition reads: for each example, for each step, for each item that is free."""
    losses = []
    for logits_i, labels_i, counts in zip(logits, labels.tolist(), target, strict=True):
        free = [c for c, n in enumerate(counts.tolist()) for _ in range(n)]
        loss = logits.new_zeros(())
        for t, label in enumerate(labels_i):
            if not free:
                break
            log_pi = logits_i[t].log_softmax(-1)
            loss = loss - torch.stack([log_pi[y] for y in free]).mean()
            if label in free:
                free.remove(label)
        losses.append(loss)
    return torch.stack(losses).mean()


def problem(batch: int, steps: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random logits, targets of `steps` labels, and trajectories that name a right label half of the time."""
    generator = torch.Generator().manual_seed(0)
    items = torch.randint(0, classes, (batch, steps), generator=generator)
    wrong = torch.randint(0, classes, (batch, steps), generator=generator)
    labels = torch.where(torch.rand(batch, steps, generator=generator) < 0.5, items, wrong)
    logits = torch.randn(batch, steps, classes, generator=generator).requires_grad_()
    return logits, labels, from_labels(items, classes)


def measure(
    batch: int = 256, steps: int = 10, classes: int = 1000, *, repeats: int = 30, loops: bool = True
) -> dict[str, dict[str, float]]:
    """Milliseconds and peak megabytes of forward + backward, for each way to compute it."""
    logits, labels, target = problem(batch, steps, classes)
    # What cross-entropy needs is prepared for it: only the loss itself is measured.
    shares = oracle(free_labels(target, labels)).flatten(0, 1)
    ways: dict[str, Callable[[], Tensor]] = {
        "multiset_loss": lambda: multiset_loss(logits, labels, target),
        "F.cross_entropy": lambda: cross_entropy(logits.flatten(0, 1), shares, reduction="sum") / batch,
    }
    if loops:
        ways["loop over steps"] = lambda: loop_over_steps(logits, labels, target)
        ways["loop over examples and steps"] = lambda: loop_over_examples_and_steps(logits, labels, target)
    value = {name: float(way().detach()) for name, way in ways.items()}
    expected = value["F.cross_entropy"]
    assert all(abs(v - expected) < 1e-3 * abs(expected) for v in value.values()), f"the ways disagree: {value}"

    def forward_backward(name: str) -> None:
        logits.grad = None
        ways[name]().backward()  # type: ignore[no-untyped-call]

    quick = {name: lambda name=name: forward_backward(name) for name in ways if "examples" not in name}
    slow = {name: lambda name=name: forward_backward(name) for name in ways if "examples" in name}
    seconds = interleaved(quick, repeats=repeats) | interleaved(slow, repeats=2, warmup=0)
    return {
        name: {"ms": 1e3 * seconds[name], "peak_mb": peak_bytes(action) / 1e6}
        for name, action in (quick | slow).items()
    }


def report(console: Console) -> dict[str, object]:
    """Measure, show a table, give the record."""
    batch, steps, classes = 256, 10, 1000
    ways = measure(batch, steps, classes)
    table = Table(title=f"Loss forward + backward, B={batch}, T={steps}, C={classes}")
    for column in ("", "ms", "peak MB", "against F.cross_entropy"):
        table.add_column(column, justify="right")
    for name, cost in ways.items():
        ratio = cost["ms"] / ways["F.cross_entropy"]["ms"]
        table.add_row(name, f"{cost['ms']:.1f}", f"{cost['peak_mb']:.1f}", f"{ratio:.2f}x")
    console.print(table)
    return {"batch": batch, "steps": steps, "classes": classes, "ways": ways}
