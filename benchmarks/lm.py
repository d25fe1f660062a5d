"""Time and peak memory of the order-free loss of language models, beside plain cross-entropy on the same logits."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import interleaved, peak_bytes
from torchmultiset.lm import LabelVocabulary, ListLoss

BATCH, TOKENS = 16, 128
SIZES = ((1_000, 500), (32_000, 500), (32_000, 20_000))
"""Number of tokens in the vocabulary, and number of labels."""
WAYS = ("order-free", "F.cross_entropy")


def problem(vocabulary_size: int, labels: int) -> tuple[LabelVocabulary, Tensor]:
    """Return labels of 2 to 5 tokens with a separator, and lists (B, T) of them that end within the last label."""
    random = Random(0)
    pieces: set[tuple[int, ...]] = set()
    while len(pieces) < labels:
        pieces.add((*(random.randrange(2, vocabulary_size) for _ in range(random.randint(2, 5))), 1))
    vocabulary = LabelVocabulary([*map(str, pieces)], [*pieces], end=0)
    rows = []
    for _ in range(BATCH):
        few = random.sample(vocabulary.labels, 20)  # some of them repeat
        row: list[int] = []
        while True:
            longer = row + vocabulary.encode([random.choice(few)])[:-1]
            if len(longer) >= TOKENS:
                break
            row = longer
        rows.append([*row, 0, *[-100] * (TOKENS - 1 - len(row))])
    return vocabulary, torch.tensor(rows)


def measure(vocabulary_size: int, labels: int) -> dict[str, Any]:
    """Measure forward + backward of both losses: milliseconds, and peak memory relative to the logits."""
    vocabulary, tokens = problem(vocabulary_size, labels)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, TOKENS, vocabulary_size, generator=generator).requires_grad_()
    order_free = ListLoss(vocabulary, causal=False)
    losses = {
        "order-free": lambda: order_free(logits, tokens),
        "F.cross_entropy": lambda: cross_entropy(logits.flatten(0, 1), tokens.flatten()),
    }

    def forward_backward(name: str) -> None:
        losses[name]().backward()  # type: ignore[no-untyped-call]
        logits.grad = None

    actions = {name: lambda name=name: forward_backward(name) for name in WAYS}
    seconds = interleaved(actions, repeats=9)
    return {
        "batch": BATCH,
        "tokens": TOKENS,
        "vocabulary": vocabulary_size,
        "labels": labels,
        "ms": {name: 1e3 * seconds[name] for name in WAYS},
        "memory": {name: peak_bytes(actions[name]) / logits.nbytes for name in WAYS},
    }


def report(console: Console) -> list[dict[str, Any]]:
    """Measure all sizes, print a table, and return the record."""
    table = Table(title="Order-free loss of language models, forward + backward")
    for column in ("B", "T", "vocabulary", "labels", *WAYS, "ratio", "memory / logits"):
        table.add_column(column, justify="right")
    rows = []
    for vocabulary_size, labels in SIZES:
        row = measure(vocabulary_size, labels)
        ours, plain = row["ms"].values()
        table.add_row(
            *(str(row[key]) for key in ("batch", "tokens", "vocabulary", "labels")),
            *(f"{ms:.1f}" for ms in row["ms"].values()),
            f"{ours / plain:.2f}x",
            f"{row['memory']['order-free']:.2f}",
        )
        rows.append(row)
    console.print(table)
    return rows
