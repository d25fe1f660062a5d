"""Memories as rows of places: a map has h x w of them, a vector one."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from torchmultiset._checks import check

__all__ = ["places"]


def places(memory: Float[Tensor, "b d *hw"], channels: int) -> Float[Tensor, "b n d"]:
    """A vector (B, D) or a map (B, D, h, w) as (B, N, D)."""
    check(
        memory.ndim in (2, 4) and memory.shape[1] == channels and memory.is_floating_point(),
        "memory",
        f"a floating-point tensor of shape (B, {channels}) or (B, {channels}, height, width)",
        memory,
    )
    return memory.flatten(2).transpose(1, 2) if memory.ndim == 4 else memory[:, None]
