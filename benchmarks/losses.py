"""Time and peak memory of the multiset loss, cross-entropy and Hungarian matching on the same logits."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import forward_backward
from torchmultiset.losses import multiset_loss
from torchmultiset.multiset import free_labels, from_labels
from torchmultiset.oracle import oracle

BATCH, STEPS, CLASSES = 256, (4, 10, 30, 100), (10, 100, 1000, 10_000)
LARGEST = 250_000_000
"""Maximum number of elements of the logits, 1 GB; larger batches are halved until they fit."""


def loop_over_steps(logits: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """Compute the multiset loss one step at a time, updating the free label multiset."""
    free = target.clone()
    total = logits.new_zeros(len(logits))
    for t in range(logits.shape[1]):
        size = free.sum(-1)
        oracle_t = free / size.clamp(min=1)[:, None]
        total = total - (oracle_t * logits[:, t].log_softmax(-1)).sum(-1)
        chosen = labels[:, t, None]
        free = free.scatter(1, chosen, (free.gather(1, chosen) - 1).clamp(min=0))
    return total.mean()


def hungarian(logits: Tensor, items: Tensor) -> Tensor:
    """Compute the loss of DETR: match steps and target items at minimum cost -p(class), then cross-entropy."""
    with torch.no_grad():
        costs = -logits.softmax(-1).gather(2, items[:, None].expand(-1, logits.shape[1], -1))
        order = torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs.numpy()])
    return cross_entropy(logits.flatten(0, 1), items.gather(1, order).flatten(), reduction="sum") / len(logits)


def problem(batch: int, steps: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return random logits (B, T, C), labels (B, T) of which half are correct, and target items (B, T)."""
    generator = torch.Generator().manual_seed(0)
    items = torch.randint(0, classes, (batch, steps), generator=generator)
    wrong = torch.randint(0, classes, (batch, steps), generator=generator)
    labels = torch.where(torch.rand(batch, steps, generator=generator) < 0.5, items, wrong)
    logits = torch.randn(batch, steps, classes, generator=generator).requires_grad_()
    return logits, labels, items


def measure(batch: int, steps: int, classes: int) -> dict[str, Any]:
    """Measure forward + backward of each loss: milliseconds, and peak memory relative to the logits."""
    logits, labels, items = problem(batch, steps, classes)
    target = from_labels(items, classes)
    # The targets of cross-entropy are precomputed: only the loss itself is measured.
    shares = oracle(free_labels(target, labels)).flatten(0, 1)
    losses = {
        "multiset_loss": lambda: multiset_loss(logits, labels, target),
        "F.cross_entropy": lambda: cross_entropy(logits.flatten(0, 1), shares, reduction="sum") / batch,
        "Hungarian": lambda: hungarian(logits, items),
    }
    found, wanted = (losses[name]().item() for name in ("multiset_loss", "F.cross_entropy"))
    assert abs(found - wanted) < 1e-3 * wanted, f"the multiset loss is {found}, cross-entropy {wanted}"
    repeats = min(max(50_000_000 // logits.numel(), 5), 100)
    shape = {"batch": batch, "steps": steps, "classes": classes}
    return {**shape, **forward_backward(losses, logits, repeats=repeats)}


def measure_all() -> list[dict[str, Any]]:
    """Measure the whole grid."""
    rows = []
    for steps, classes in product(STEPS, CLASSES):
        batch = BATCH
        while batch * steps * classes > LARGEST:
            batch //= 2
        rows.append(measure(batch, steps, classes))
    return rows
