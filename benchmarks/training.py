"""Training steps of the paper's MNIST Multi network beside plain implementations of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.losses import loop_over_steps
from benchmarks.textbook import GateByGate, JointGates, PlainTower
from benchmarks.timing import interleaved
from torchmultiset.encoders import ConvEncoder
from torchmultiset.losses import multiset_loss
from torchmultiset.multiset import from_labels
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import greedy, rollout

BATCH, CLASSES, SIDE = 64, 10, 100
PLAIN = ("one convolution", "gate by gate")


def training_step(
    encoder: nn.Module, policy: Any, loss: Callable[[Tensor, Tensor, Tensor], Tensor], steps: int, *, fused: bool
) -> Callable[[], None]:
    """One step of training on one batch: forward, backward, Adam."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH, 1, SIDE, SIDE, generator=generator)
    target = from_labels(torch.randint(0, CLASSES, (BATCH, steps), generator=generator), CLASSES)
    adam = torch.optim.Adam([*encoder.parameters(), *policy.parameters()], lr=1e-3, fused=fused)

    def step() -> None:
        trajectory = rollout(policy, encoder(images), greedy, steps)
        adam.zero_grad()
        loss(trajectory.logits, trajectory.labels, target).backward()  # type: ignore[no-untyped-call]
        adam.step()

    return step


def measure(steps: int, layers: int, *, repeats: int = 15) -> dict[str, float]:
    """Training images per second of each implementation, and the share of our step that the loss takes."""
    torch.manual_seed(0)
    encoder = ConvEncoder()
    policy = ConvLSTMPolicy(CLASSES, encoder.memory_shape(SIDE, SIDE), layers=layers)
    logits = torch.randn(BATCH, steps, CLASSES, requires_grad=True)
    labels = torch.randint(0, CLASSES, (BATCH, steps))
    target = from_labels(labels, CLASSES)

    def loss_alone() -> None:
        multiset_loss(logits, labels, target).backward()  # type: ignore[no-untyped-call]

    plain = PlainTower(encoder)
    seconds = interleaved(
        {
            "torchmultiset": training_step(encoder, policy, multiset_loss, steps, fused=True),
            "one convolution": training_step(plain, JointGates(policy), loop_over_steps, steps, fused=False),
            "gate by gate": training_step(plain, GateByGate(policy), loop_over_steps, steps, fused=False),
            "loss": loss_alone,
        },
        repeats=repeats,
    )
    share = seconds.pop("loss") / seconds["torchmultiset"]
    return {name: BATCH / s for name, s in seconds.items()} | {"share of the loss": share}


def report(console: Console) -> list[dict[str, float]]:
    """Measure, show a table, give the record."""
    table = Table(title="Training images/s, batch 64, 100x100 pixels (MNIST Multi)")
    for column in ("T", "layers", "ours", *PLAIN, "ratios", "loss's share"):
        table.add_column(column, justify="right")
    rows = []
    for layers in (1, 2):
        for steps in (4, 10):
            speed = measure(steps, layers)
            ours = speed["torchmultiset"]
            table.add_row(
                str(steps),
                str(layers),
                f"{ours:.0f}",
                *[f"{speed[name]:.0f}" for name in PLAIN],
                " / ".join(f"{ours / speed[name]:.2f}x" for name in PLAIN),
                f"{speed['share of the loss']:.1%}",
            )
            rows.append({"steps": steps, "layers": layers, **speed})
    console.print(table)
    return rows
