"""Memories, the outputs of encoders: vectors, maps and masked tokens, all viewed as sequences of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchmultiset._checks import check

__all__ = [
    "Memory",
    "MemoryReader",
    "MemorySpec",
    "Tokens",
    "batch_size",
    "drop_channels",
    "places",
    "repeat_memory",
    "select_memory",
]


class Tokens(NamedTuple):
    """A memory of up to N positions, for sets, text and sequences of different lengths."""

    values: Float[Tensor, "b n d"]
    """Features (B, N, D) of each position; those of padding are ignored."""
    mask: Bool[Tensor, "b n"] | None = None
    """True (B, N) where there is a position, False at padding; None: no padding."""


@dataclass(frozen=True)
class MemorySpec:
    """Shape of the memory of one example, from which policies and heads are built.

    Example:
        >>> MemorySpec(32, grid=(9, 9)).positions, MemorySpec(128).positions, MemorySpec(64, tokens=True).positions
        (81, 1, 0)
    """

    features: int
    """Number of features D of a position."""
    grid: tuple[int, int] | None = None
    """Height and width of a map; None for vectors and tokens."""
    tokens: bool = False
    """Whether the memory is `Tokens`, whose number differs between examples."""

    @property
    def positions(self) -> int:
        """Number of positions: h w for a map, 1 for a vector, 0 (unlimited) for tokens."""
        if self.tokens:
            return 0
        return 1 if self.grid is None else self.grid[0] * self.grid[1]


Memory: TypeAlias = Float[Tensor, "b ..."] | Tokens
"""A vector (B, D), a map (B, D, h, w), `Tokens`, or any other object that a user-defined policy reads."""


def places(memory: Memory, channels: int) -> Tokens:
    """Return the positions of a memory: one for a vector (B, D), h w for a map (B, D, h, w), N for tokens (B, N, D).

    Padding is set to zero. An example without any position gets one position of zeros.

    Example:
        >>> places(torch.rand(2, 5, 3, 4), 5).values.shape
        torch.Size([2, 12, 5])
        >>> places(Tokens(torch.ones(2, 3, 5), torch.tensor([[True, True, False], [False] * 3])), 5).mask
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    if isinstance(memory, Tokens):
        values, mask = memory
        ok = values.ndim == 3 and values.shape[2] == channels and values.is_floating_point()
        check(ok, "memory", f"tokens with floating-point values of shape (B, N, {channels})", values)
        check(bool(values.shape[1] >= 1), "memory", "tokens of at least one position, which may be padding", values)
        if mask is None:
            return memory
        fits = mask.dtype == torch.bool and mask.shape == values.shape[:2]
        check(bool(fits), "mask", f"a boolean tensor of shape (B, N) = {tuple(values.shape[:2])}", mask)
        values = values.masked_fill(~mask[..., None], 0)
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        return Tokens(values, mask | (first & ~mask.any(1, keepdim=True)))
    check(
        memory.ndim in (2, 4) and memory.shape[1] == channels and memory.is_floating_point(),
        "memory",
        f"a floating-point tensor of shape (B, {channels}) or (B, {channels}, height, width)",
        memory,
    )
    return Tokens(memory.flatten(2).transpose(1, 2) if memory.ndim == 4 else memory[:, None])


class MemoryReader(nn.Module):
    """Base class of modules that attend to a memory: a linear layer and, if `places`, embeddings of its positions."""

    def _add_memory(
        self, num_classes: int, memory: int, places: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        check(heads >= 1 and width % heads == 0, "width", f"a multiple of heads = {heads}", width)
        check(places >= 0, "places", "at least 0", places)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        self.num_classes, self.memory, self.places, self.dropout = num_classes, memory, places, dropout
        self.from_memory = nn.Linear(memory, width)
        self.position = nn.Parameter(0.02 * torch.randn(places, width)) if places else None

    def _read(self, memory: Memory) -> Tokens:
        values, mask = drop_channels(places(memory, self.memory), self.dropout, training=self.training)
        n, seen = values.shape[1], self.from_memory(values)
        if self.position is not None:
            check(n <= self.places, "memory", f"a map of at most {self.places} positions (argument `places`)", memory)
            seen = seen + self.position[:n]
        return Tokens(seen, mask)


def drop_channels(tokens: Tokens, p: float, *, training: bool) -> Tokens:
    """Apply dropout to whole channels: all positions of an example drop the same ones.

    Dropping single values would have little effect, since most policies and heads average over positions.
    """
    if p == 0 or not training:
        return tokens
    keep = torch.nn.functional.dropout(torch.ones_like(tokens.values[:, :1]), p)
    return tokens._replace(values=tokens.values * keep)


def batch_size(memory: Memory) -> int:
    """Return the number of examples, B."""
    return len(memory.values if isinstance(memory, Tokens) else memory)


def select_memory(memory: Memory, index: Int64[Tensor, " n"]) -> Float[Tensor, "n ..."] | Tokens:
    """Return the memory of the examples at these indices, in this order; indices may repeat."""
    if isinstance(memory, Tokens):
        return Tokens(memory.values[index], None if memory.mask is None else memory.mask[index])
    return memory[index]


def repeat_memory(memory: Memory, times: int) -> Float[Tensor, "n ..."] | Tokens:
    """Return the memory with each example repeated; its copies are adjacent."""
    device = (memory.values if isinstance(memory, Tokens) else memory).device
    return select_memory(memory, torch.arange(batch_size(memory), device=device).repeat_interleave(times))
