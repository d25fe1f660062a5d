"""Time and peak memory of the order-free loss of language models, beside plain cross-entropy on the same logits."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import forward_backward
from torchmultiset.lm import LabelVocabulary, ListLoss

BATCH, TOKENS = 16, 128
SIZES = ((1_000, 500), (32_000, 500), (32_000, 20_000))
"""Number of tokens in the vocabulary, and number of labels."""


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
    shape = {"batch": BATCH, "tokens": TOKENS, "vocabulary": vocabulary_size, "labels": labels}
    return {**shape, **forward_backward(losses, logits, repeats=9)}


def measure_all() -> list[dict[str, Any]]:
    """Measure all sizes."""
    return [measure(vocabulary_size, labels) for vocabulary_size, labels in SIZES]
