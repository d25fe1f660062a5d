"""Numerical precision of computations."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(value: Tensor) -> Tensor:
    """Convert to at least float32, so that sums of half-precision terms are accumulated in float32."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
