"""2x2 max-pooling of channels-last maps on a CPU, alone or fused with the preceding convolution.

`max_pool` takes the maximum of two rows, then of two columns, each an elementwise operation on whole rows of memory.
For the backward pass it keeps a 0/1 mask to multiply gradients with, instead of the index of each maximum.

`conv_max_pool` is a convolution followed by pooling. For images of one or two channels it computes the four results of
each window as features of one position, which is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d, pad

__all__ = ["conv_max_pool", "max_pool"]

FEW_CHANNELS = 2
"""Maximum number of channels for the fused layout; with more, multiplying its zeros costs more than it saves."""


def conv_max_pool(
    x: Float[Tensor, "b channels height width"],
    weight: Float[Tensor, "c channels k k"],
    bias: Float[Tensor, " c"] | None = None,
) -> Float[Tensor, "b c h w"]:
    """Compute `max_pool2d(conv2d(x, weight, bias), 2)`."""
    if _plain(x) or torch.is_autocast_enabled("cpu"):  # autocast chooses the dtype of `conv2d`
        return max_pool(conv2d(x, weight, bias))
    in_pairs = x.shape[2] % 2 == x.shape[3] % 2 == x.storage_offset() % 2 == 0 and x.is_contiguous()
    few = weight.shape[1] <= FEW_CHANNELS and not x.requires_grad
    if not (in_pairs and few and weight.shape[2] % 2 == 1 and x.dtype.itemsize >= 4):
        return max_pool(conv2d(x, weight, bias))
    if not torch.is_grad_enabled():  # grad mode is always off inside `forward`
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    pooled: Tensor = _ConvMaxPool.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    height, width = ((side - weight.shape[2] + 1) // 2 for side in x.shape[2:])
    return pooled.view(x.shape[0], height, width, weight.shape[0]).permute(0, 3, 1, 2)


def max_pool(x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c h w"]:
    """Compute `max_pool2d(x, 2)`, the maximum of each 2x2 window; a trailing odd row or column is dropped."""
    b, c, height, width = x.shape
    rows = x.permute(0, 2, 3, 1)
    if _plain(x) or not rows.is_contiguous() or height % 2 or width % 2:
        return max_pool2d(x, 2)
    pooled: Tensor = _MaxPool.apply(rows)  # type: ignore[no-untyped-call]
    return pooled.view(b, height // 2, width // 2, c).permute(0, 3, 1, 2)


class _MaxPool(torch.autograd.Function):
    """Max-pooling of maps (b, height, width, c); among equal values, one gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        learns, c = ctx.needs_input_grad[0], x.shape[3]
        columns, is_upper = _larger(x.view(-1, 2, x.shape[2] * c), learns)
        pooled, is_left = _larger(columns.view(-1, 2, c), learns)
        ctx.save_for_backward(is_upper, is_left)
        ctx.shape = x.shape
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        is_upper, is_left = ctx.saved_tensors
        columns = _to_pairs(grad, is_left).view(-1, ctx.shape[2] * ctx.shape[3])
        return _to_pairs(columns, is_upper.view(columns.shape)).view(ctx.shape)


class _ConvMaxPool(torch.autograd.Function):
    """Convolution that computes the four results of a window as features of one position, without an image gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        learns = any(ctx.needs_input_grad)
        c, channels, kernel, _ = weight.shape
        # The kernel at each position of the window, padded with zeros, so that all four read the same image patch.
        placed = pad(weight, (1, 1, 1, 1)).unfold(2, kernel + 1, 1).unfold(3, kernel + 1, 1)
        placed = placed.permute(2, 3, 0, 1, 4, 5).flip(0, 1).reshape(4 * c, channels, kernel + 1, kernel + 1)
        blocks, kernels = _blocks(x), _blocks(placed)
        features = conv2d(blocks, kernels, None if bias is None else bias.repeat(4)).permute(0, 2, 3, 1)
        columns, is_upper = _larger(features.reshape(-1, 2, 2 * c), learns)
        pooled, is_left = _larger(columns.view(-1, 2, c), learns)
        ctx.save_for_backward(blocks, kernels, is_upper, is_left)
        ctx.strides = weight.stride()
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor | None]:
        blocks, kernels, is_upper, is_left = ctx.saved_tensors
        c, channels, kernel = grad.shape[1], blocks.shape[1] // 4, 2 * kernels.shape[2] - 1
        features = _to_pairs(_to_pairs(grad, is_left).view(is_upper.shape), is_upper)
        height, width = (side - kernels.shape[2] + 1 for side in blocks.shape[2:])
        of_features = features.view(-1, height, width, 4 * c).permute(0, 3, 1, 2)
        one, none = [1, 1], [0, 0]
        _, of_kernels, _ = torch.ops.aten.convolution_backward(
            of_features, blocks, kernels, None, one, none, one, False, none, 1, [False, True, False]
        )
        # Undo the blocks, then take each kernel from its position in the window.
        places = of_kernels.view(4 * c, channels, 2, 2, *kernels.shape[2:]).permute(0, 1, 4, 2, 5, 3)
        placed = places.reshape(2, 2, c, channels, kernel + 1, kernel + 1)
        windows = [placed[i, j, ..., i : i + kernel, j : j + kernel] for i in (0, 1) for j in (0, 1)]
        of_weight = grad.new_empty_strided(
            (c, channels, kernel, kernel), ctx.strides
        )  # DDP expects the weight's strides
        torch.sum(torch.stack(windows), 0, out=of_weight)
        return None, of_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def _larger(pairs: Tensor, learns: bool) -> tuple[Tensor, Tensor | None]:
    """Return the larger of each pair, (n, 2, m) -> (n, m), and if `learns` a mask: 1 where it is the first, else 0."""
    first, second = pairs.unbind(1)
    is_first = torch.ge(first, second, out=torch.empty(first.shape, dtype=first.dtype)) if learns else None
    return torch.maximum(first, second), is_first


def _to_pairs(grad: Tensor, is_first: Tensor) -> Tensor:
    """Compute the gradient of pairs (n, 2, m) from that of the larger of each (n, m)."""
    pairs = grad.new_empty(grad.shape[0], 2, grad.shape[1])
    first, second = pairs.unbind(1)
    torch.mul(grad, is_first, out=first)
    torch.sub(grad, first, out=second)
    return pairs


def _blocks(x: Tensor) -> Tensor:
    """Move 2x2 pixels to channels, channels last. Copying two neighbours as one complex number is faster."""
    b, c, height, width = x.shape
    pairs = torch.view_as_complex(x.view(b, c, height // 2, 2, width // 2, 2))
    blocks = torch.view_as_real(pairs.permute(0, 2, 4, 1, 3).contiguous())
    return blocks.view(b, height // 2, width // 2, 4 * c).permute(0, 3, 1, 2)


def _plain(x: Tensor) -> bool:
    return x.device.type != "cpu" or torch.compiler.is_exporting()
