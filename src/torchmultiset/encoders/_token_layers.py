"""Layers over tokens that ignore padding: residual convolutions, self-attention, positions, standardisation."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["Attention", "Convolution", "Standardised", "sinusoids"]

ATTENTION_HEADS = 4
"""Number of attention heads."""


class Convolution(nn.Module):
    """A residual convolution over positions: x + linear(relu(conv(norm(x)))), which reads zeros at padding."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, kernel, padding=dilation * (kernel // 2), dilation=dilation)
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """Add the convolution of the positions where the mask is True."""
        seen = self.norm(x).masked_fill(~mask[..., None], 0)
        out: Tensor = x + self.dropout(self.linear(self.conv(seen.transpose(1, 2)).transpose(1, 2).relu()))
        return out


class Attention(nn.Module):
    """Self-attention and a feed-forward network, both pre-norm and residual; padding is masked out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """Attend from each position to those where the mask is True, at least one in each example."""
        b, n, width = x.shape
        query, key, value = (
            self.inputs(self.norm(x)).view(b, n, 3, ATTENTION_HEADS, width // ATTENTION_HEADS).permute(2, 0, 3, 1, 4)
        )
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        x = x + self.output(seen.transpose(1, 2).reshape(b, n, width))
        out: Tensor = x + self.network(x)
        return out


class Standardised(nn.Module):
    """Standardised features: mean and standard deviation are fitted to training data."""

    mean: Tensor
    spread: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Standardise features."""
        return (x - self.mean) / self.spread

    @torch.no_grad()
    def fit(self, batches: Iterable[Float[Tensor, "_ d"]]) -> None:
        """Set mean and standard deviation to those of all rows."""
        number, total, squares = 0, self.mean.double() * 0, self.mean.double() * 0
        for rows in batches:
            number += len(rows)
            total += rows.double().sum(0)
            squares += rows.double().square().sum(0)
        if number == 0:
            return
        mean = total / number
        self._set(mean, (squares / number - mean.square()).clamp(min=0).sqrt())

    def _set(self, mean: Float[Tensor, " d"], spread: Float[Tensor, " d"]) -> None:
        self.mean.copy_(mean)
        # Features that are constant up to rounding are not rescaled.
        self.spread.copy_(torch.where(spread > 1e-6 * mean.abs(), spread, 1.0))


def sinusoids(positions: int, width: int, like: Tensor) -> Float[Tensor, "n d"]:
    r"""Return the position embeddings of "Attention Is All You Need", for any number of positions.

    .. math:: p_{n, 2i} = \sin(n / 10000^{2i/D}), \qquad p_{n, 2i+1} = \cos(n / 10000^{2i/D})
    """
    n = torch.arange(positions, device=like.device, dtype=like.dtype)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-9.210340371976184 / width))
    return torch.stack([(n * rates).sin(), (n * rates).cos()], -1).flatten(1)
