"""The LSTM cell that `LSTMPolicy` and `ConvLSTMPolicy` share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["lstm_cell"]


def lstm_cell(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the new hidden and cell state from the gates' pre-activations.

    Args:
        gates: Pre-activations (B, 4 q, ...) of input, forget and output gate and candidate, q channels each.
        cell: Cell state (B, q, ...), or None for zeros before the first step.

    Returns:
        Hidden and cell state, (B, q, ...) each.
    """
    if torch.compiler.is_exporting():  # other runtimes need plain operations, and no backward pass
        into, keep, out, candidate = gates.chunk(4, 1)
        new = into.sigmoid() * candidate.tanh()
        if cell is not None:
            new = new + keep.sigmoid() * cell
        return out.sigmoid() * new.tanh(), new
    hidden, new = _Cell.apply(gates, cell)  # type: ignore[no-untyped-call]
    return hidden, new


class _Cell(torch.autograd.Function):
    """Manual forward and backward pass, with half the memory traffic of autograd and fewer allocations."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        q = gates.shape[1] // 4
        opened = torch.empty_like(gates)
        torch.sigmoid(gates[:, : 3 * q], out=opened[:, : 3 * q])
        into, keep, out, candidate = opened.chunk(4, 1)
        _tanh(gates[:, 3 * q :], out=candidate)
        new = into * candidate
        if cell is not None:
            new.addcmul_(keep, cell)
        shown = _tanh(new, out=torch.empty_like(new))
        ctx.save_for_backward(opened, cell, shown)
        return out * shown, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_hidden: Tensor, of_new: Tensor) -> tuple[Tensor, Tensor | None]:
        opened, cell, shown = ctx.saved_tensors
        q = shown.shape[1]
        into, keep, out, candidate = opened.chunk(4, 1)
        grad = torch.empty_like(opened)
        of_into, of_keep, of_out, of_candidate = grad.chunk(4, 1)
        of_new = torch.addcmul(of_new, torch.ops.aten.tanh_backward(of_hidden, shown), out)
        torch.mul(of_hidden, shown, out=of_out)
        torch.mul(of_new, candidate, out=of_into)
        torch.mul(of_new, into, out=of_candidate)
        if cell is None:
            of_keep.zero_()
        else:
            torch.mul(of_new, cell, out=of_keep)
        sigmoids, tanh = grad[:, : 3 * q], of_candidate
        torch.ops.aten.sigmoid_backward.grad_input(sigmoids, opened[:, : 3 * q], grad_input=sigmoids)
        torch.ops.aten.tanh_backward.grad_input(tanh, candidate, grad_input=tanh)
        return grad, None if cell is None else of_new.mul_(keep)


def _tanh(x: Tensor, *, out: Tensor) -> Tensor:
    """Compute tanh(x) as 2 sigmoid(2 x) - 1, whose kernel is faster."""
    return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)
