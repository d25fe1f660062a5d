"""An LSTM policy for vectors and pooled memories: the paper's recurrent model without spatial dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory, MemorySpec
from torchmultiset._pooling import PooledFeatures, PoolKind
from torchmultiset.policies._lstm import lstm_cell
from torchmultiset.rollout import Step

__all__ = ["LSTMPolicy", "LSTMState"]


class LSTMState(NamedTuple):
    """State of an LSTM policy with q hidden units."""

    memory_gates: Float[Tensor, "b 4*q"]
    """Contribution of the memory to the first layer's gates, the same at every step."""
    hidden: tuple[Float[Tensor, "b q"], ...]
    cell: tuple[Float[Tensor, "b q"], ...]


@recorded
class LSTMPolicy(nn.Module):
    """LSTM layers that read the memory and the previous label at each step, followed by a softmax classifier.

    Args:
        num_classes: Number of classes, C, including END if there is one.
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        hidden: Units of each layer, q.
        layers: Number of layers.
        embedding: Dimension of the label embeddings.
        pool: How positions are pooled: ``"mean"``, ``"max"``, ``"mean-max"`` (both), ``"attention"`` or ``"sum"``.
        dropout: Dropout probability of the pooled features, drawn once per rollout.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = LSTMPolicy(num_classes=10, memory=16)
        >>> rollout(policy, torch.rand(2, 16), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    counts_only = False

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        hidden: int = 128,
        layers: int = 1,
        embedding: int = 32,
        pool: PoolKind = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        self.num_classes = num_classes
        self.features = hidden
        # The last row embeds the start of the sequence, before the first label.
        self.embedding = nn.Embedding(num_classes + 1, embedding)
        self.pooled = PooledFeatures(memory, pool, dropout=dropout)
        self.from_memory = nn.Linear(self.pooled.width, 4 * hidden)
        inputs = [embedding] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(nn.Linear(size + hidden, 4 * hidden, bias=i > 0) for i, size in enumerate(inputs))
        self.classifier = nn.Linear(hidden, num_classes)

    @classmethod
    def for_memory(cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int) -> LSTMPolicy:
        """Create a policy for a memory from the settings of a model (`hidden`, `layers`, `pool`, `dropout`)."""
        chosen = {name: settings[name] for name in ("hidden", "layers", "pool", "dropout")}
        return cls(num_classes, memory.features, **chosen)

    def start(self, memory: Memory) -> LSTMState:
        """Compute the contribution of the memory, which is the same at every step."""
        gates = self.from_memory(self.pooled(memory))
        zero = gates.new_zeros(gates.shape[0], self.features)
        zeros = (zero,) * len(self.layers)
        return LSTMState(gates, zeros, zeros)

    def step(self, state: LSTMState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, LSTMState]:
        """Read the previous label and score the next one."""
        if previous is None:
            previous = torch.full(state.memory_gates.shape[:1], self.num_classes, device=state.memory_gates.device)
        below = self.embedding(previous)
        hidden: list[Tensor] = []
        cell: list[Tensor] = []
        for layer, before, cell_before in zip(self.layers, state.hidden, state.cell, strict=True):
            gates = layer(torch.cat([below, before], 1))
            below, new_cell = lstm_cell(gates if hidden else gates + state.memory_gates, cell_before)
            hidden.append(below)
            cell.append(new_cell)
        return Step(self.classifier(below), below), state._replace(hidden=tuple(hidden), cell=tuple(cell))

    def select(self, state: LSTMState, index: Int64[Tensor, " n"]) -> LSTMState:
        """Return the state of the examples at these indices, in this order; indices may repeat."""
        hidden, cell = (tuple(layer[index] for layer in part) for part in (state.hidden, state.cell))
        return LSTMState(state.memory_gates[index], hidden, cell)
