"""The arithmetic of an LSTM cell, shared by the policies with and without space."""

from __future__ import annotations

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
    opened = gates[:, : 3 * q].sigmoid()
    new = opened[:, :q] * gates[:, 3 * q :].tanh()
    if cell is not None:
        new = new + opened[:, q : 2 * q] * cell
    return opened[:, 2 * q :] * new.tanh(), new
