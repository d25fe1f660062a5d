"""An order-free transformer policy: one query, made from the counts so far, attends to the memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torchmultiset._arguments import recorded
from torchmultiset._memory import Memory, MemoryReader, MemorySpec
from torchmultiset.policies.feed_forward import CountPolicy, CountState
from torchmultiset.rollout import Step

__all__ = ["TransformerPolicy"]


class _Layer(nn.Module):
    """Cross-attention from one query to the memory, then a feed-forward network; both pre-norm and residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.keys_and_values = nn.Linear(width, 2 * width)
        self.attended = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: Float[Tensor, "b e"], memory: Float[Tensor, "b n 2*e"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b e"]:
        b, n, _ = memory.shape
        each = x.shape[1] // self.heads
        query = self.query(self.before_attention(x)).view(b, self.heads, 1, each)
        keys, values = memory.view(b, n, 2, self.heads, each).permute(2, 0, 3, 1, 4)
        attended = None if mask is None else mask[:, None, None]
        seen = scaled_dot_product_attention(query, keys, values, attn_mask=attended)
        x = x + self.attended(seen.reshape(x.shape))
        out: Tensor = x + self.network(x)
        return out


@recorded
class TransformerPolicy(MemoryReader, CountPolicy):
    """A transformer decoder whose only token encodes the counts of the labels so far.

    It sees no order, so that all orders of the same labels give exactly the same distribution. Keys and values of the
    memory are computed once per rollout; the cost of a step does not depend on the number of labels before it.

    Args:
        num_classes: Number of classes, C, including END if there is one.
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        places: Maximum number of positions, each with a learned embedding: h w for maps, 1 for vectors. 0: no
            embeddings, so that the number of positions is unlimited and their order does not matter, as for sets.
        width: Width of the query; a multiple of `heads`.
        heads: Number of attention heads.
        layers: Number of layers.
        dropout: Dropout probability of the memory's channels, drawn once per rollout.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = TransformerPolicy(num_classes=10, memory=32, places=81)
        >>> rollout(policy, torch.rand(2, 32, 9, 9), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        places: int = 1,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self._add_memory(num_classes, memory, places, width, heads, layers, dropout)
        self.features = width
        self.normalised = nn.LayerNorm(width)
        self.from_counts = nn.Linear(num_classes, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)

    @classmethod
    def for_memory(cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int) -> TransformerPolicy:
        """Create a policy for a memory from the settings of a model (`hidden`, `layers`, `dropout`)."""
        chosen = {name: settings[name] for name in ("layers", "dropout")}
        return cls(num_classes, memory.features, places=memory.positions, width=settings["hidden"], **chosen)

    def start(self, memory: Memory) -> CountState:
        """Compute the keys and values of each layer, which are the same at every step."""
        values, mask = self._read(memory)
        seen = self.normalised(values)
        named = torch.zeros(seen.shape[0], self.num_classes, dtype=torch.int64, device=seen.device)
        return CountState(tuple(layer.keys_and_values(seen) for layer in self._layers()), named, mask)

    def step(self, state: CountState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, CountState]:
        """Count the previous label and score the next one."""
        state = state.add(previous)
        x = self.from_counts(state.named.to(state.memory[0].dtype))
        for layer, memory in zip(self._layers(), state.memory, strict=True):
            x = layer(x, memory, state.mask)
        features = self.last(x)
        return Step(self.classifier(features), features), state

    def _layers(self) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]
