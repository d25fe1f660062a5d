"""Policies small enough to enumerate."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmultiset.rollout import Step


class TablePolicy:
    """Logits depend on the whole prefix, order included, and on nothing else.

    The prefixes are the nodes of a tree: the root is node 0, and label y leads from node n to n * C + y + 1.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.previous: list[Tensor | None] = []
        """The previous labels that each step of the last rollout received."""

    @classmethod
    def random(cls, num_classes: int, steps: int, *, seed: int = 0) -> TablePolicy:
        """Normal float64 logits for each prefix shorter than `steps`; they take gradients."""
        nodes = sum(num_classes**t for t in range(steps))
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(nodes, num_classes, dtype=torch.float64, generator=generator)
        return cls(table.requires_grad_())

    def node(self, prefix: list[int]) -> int:
        """Row of a prefix in the table."""
        node = 0
        for label in prefix:
            node = node * self.table.shape[1] + label + 1
        return node

    def start(self, memory: Tensor) -> Tensor:
        self.previous = []
        return torch.zeros(len(memory), dtype=torch.int64)

    def step(self, state: Tensor, previous: Tensor | None) -> tuple[Step, Tensor]:
        self.previous.append(previous)
        if previous is not None:
            state = state * self.table.shape[1] + previous + 1
        return Step(self.table[state], state[:, None].double()), state


class FlatPolicy:
    """A policy whose labels are uniformly distributed at every step."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def start(self, memory: Tensor) -> int:
        return len(memory)

    def step(self, state: int, previous: Tensor | None) -> tuple[Step, int]:
        return Step(torch.zeros(state, self.num_classes), torch.zeros(state, 1)), state
