"""An order-free transformer policy: one query, made of the counts so far, over the places of the memory."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import places
from torchmultiset.policies.feed_forward import CountState, count, select
from torchmultiset.rollout import Step

__all__ = ["TransformerPolicy"]


class _Layer(nn.Module):
    """Cross-attention from one query to the memory, then a small network; both with a residual, normalised before."""

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

    def forward(self, x: Float[Tensor, "b e"], memory: Float[Tensor, "b n 2*e"]) -> Float[Tensor, "b e"]:
        b, n, _ = memory.shape
        each = x.shape[1] // self.heads
        query = self.query(self.before_attention(x)).view(b, self.heads, 1, each)
        keys, values = memory.view(b, n, 2, self.heads, each).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, keys, values)
        x = x + self.attended(seen.reshape(x.shape))
        out: Tensor = x + self.network(x)
        return out


@recorded
class TransformerPolicy(nn.Module):
    """A transformer decoder whose only token holds the counts of the labels so far.

    It sees no order, so that every prefix with the same labels gives the same distribution, exactly. Keys and values
    of the memory are computed once per rollout; a step costs the same however many labels came before it.

    Args:
        num_classes: C; with END, count it too.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).
        places: The most places a map may have, h w: each has a learned position. 1 for vectors.
        width: Features of the query; a multiple of `heads`.
        heads: Attention heads.
        layers: Number of layers.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = TransformerPolicy(num_classes=10, memory=32, places=81)
        >>> rollout(policy, torch.rand(2, 32, 9, 9), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    counts_only = True

    def __init__(
        self, num_classes: int, memory: int, *, places: int = 1, width: int = 64, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        check(heads >= 1 and width % heads == 0, "width", f"a multiple of heads = {heads}", width)
        self.num_classes = num_classes
        self.memory = memory
        self.places = places
        self.features = width
        self.from_memory = nn.Linear(memory, width)
        self.position = nn.Parameter(0.02 * torch.randn(places, width))
        self.normalised = nn.LayerNorm(width)
        self.from_counts = nn.Linear(num_classes, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)

    def start(self, memory: Float[Tensor, "b d *hw"]) -> CountState:
        """Compute what will not change with the steps: keys and values of each layer."""
        tokens = places(memory, self.memory)
        n = tokens.shape[1]
        check(n <= self.places, "memory", f"a map of at most {self.places} places (the policy's `places`)", memory)
        tokens = self.normalised(self.from_memory(tokens) + self.position[:n])
        named = torch.zeros(tokens.shape[0], self.num_classes, dtype=torch.int64, device=tokens.device)
        return CountState(tuple(layer.keys_and_values(tokens) for layer in self._layers()), named)

    def step(self, state: CountState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, CountState]:
        """Count the label named last and score the next."""
        state = count(state, previous)
        x = self.from_counts(state.named.to(state.memory[0].dtype))
        for layer, memory in zip(self._layers(), state.memory, strict=True):
            x = layer(x, memory)
        features = self.last(x)
        return Step(self.classifier(features), features), state

    def select(self, state: CountState, index: Int64[Tensor, " n"]) -> CountState:
        """The state of the examples at these positions, in this order; one may be named several times."""
        return select(state, index)

    def _layers(self) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, _Layer)]
