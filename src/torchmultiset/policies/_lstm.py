"""The arithmetic of an LSTM cell, shared by the policies with and without space."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["lstm_cell"]


def lstm_cell(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    """New hidden and cell state from the sum of all that enters the gates.

    Args:
        gates: (B, 4 q, ...): input, forget and output gate and candidate, q channels each.
        cell: (B, q, ...), or None before the first step, when it is 0.

    Returns:
        Hidden and cell state, (B, q, ...) each.
    """
    q = gates.shape[1] // 4
    # Split and not slices: in the backward pass a split joins gradients, where each slice would fill a zero tensor.
    opening, candidate = torch.split(gates, [3 * q, q], dim=1)
    into, keep, out = opening.sigmoid().chunk(3, 1)
    new = into * candidate.tanh()
    if cell is not None:
        new = torch.addcmul(new, keep, cell)
    return out * new.tanh(), new
