"""Encoders of sets and sequences of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float
from torchmultiset._memory import MemorySpec, Tokens
from torchmultiset.encoders._token_layers import ATTENTION_HEADS, Attention, Convolution, Standardised, sinusoids

__all__ = ["SequenceEncoder", "SetEncoder"]


@recorded
class SetEncoder(nn.Module):
    r"""Sets of vectors: linear layers with ReLU at each position, then self-attention; their order does not matter.

    .. math:: v_n = \phi(x_n) \quad \text{or, with attention,} \quad v_n = \phi'(x_n, \{x_1, \ldots, x_N\})

    Without attention and with a summing head this is DeepSets. Inputs are (B, N, 1 + D): channel 0 is 0 at padding, and
    the other D are features, which are standardised first if `fit_inputs` was called. Without layers, the memory is the
    standardised features and a constant 1, so that a sum also counts positions.

    Args:
        features: Number of features of a position, D.
        width: Number of features of the memory; a multiple of 4 with attention.
        layers: Number of linear layers.
        attention: Number of self-attention layers.

    Example:
        >>> encoder = SetEncoder(3, width=8)
        >>> x = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]]])  # one vector, and padding
        >>> values, mask = encoder(x)
        >>> values.shape, mask.tolist()
        (torch.Size([1, 2, 8]), [[True, False]])

    Reference:
        Zaheer et al., "Deep Sets", NeurIPS 2017; Lee et al., "Set Transformer", ICML 2019.
    """

    def __init__(self, features: int, *, width: int = 128, layers: int = 2, attention: int = 0) -> None:
        super().__init__()
        check(features >= 1, "features", "at least 1", features)
        check(layers >= 0, "layers", "at least 0", layers)
        check(attention == 0 or layers >= 1, "layers", "at least 1 with attention", layers)
        check(
            not attention or width % ATTENTION_HEADS == 0,
            "width",
            f"a multiple of {ATTENTION_HEADS} with attention",
            width,
        )
        self.features = features
        self.standardised = Standardised(features)
        widths = [features, *[width] * layers]
        self.layers = nn.Sequential(*[part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())])
        self.attention = nn.ModuleList(Attention(width) for _ in range(attention))
        self.width = width if layers else features + 1

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[SetEncoder, MemorySpec]:
        """Return an encoder for inputs (0, 1 + D), from `units` and `attention`, and the shape of its memory."""
        check_token_shape(shape, "set")
        units = settings["units"]
        attention = settings["attention"] if units else 0
        encoder = cls(shape[1] - 1, width=units[-1] if units else 1, layers=len(units), attention=attention)
        return encoder, MemorySpec(encoder.width, tokens=True)

    def forward(self, x: Float[Tensor, "b n k"]) -> Tokens:
        """Compute tokens (B, N, width) from padded vectors (B, N, 1 + D)."""
        values, mask = split_tokens(x, self.features)
        values = self.standardised(values)
        if not self.layers:
            return Tokens(torch.cat([values, torch.ones_like(values[..., :1])], -1), mask)
        return Tokens(_attend(self.attention, self.layers(values), mask), mask)

    def fit_inputs(self, batches: Iterable[Float[Tensor, "_ _ k"]]) -> None:
        """Compute the mean and standard deviation for standardisation from training inputs."""
        self.standardised.fit(values[mask] for values, mask in (split_tokens(x, self.features) for x in batches))


class OrderedEncoder(nn.Module):
    """Base class of the encoders of sequences and texts: dilated convolutions, self-attention, a last layer."""

    name: ClassVar[str]
    """Name of the encoder in the registry."""
    columns_needed: ClassVar[int]
    """Minimum number of features D of a position."""
    untrained: ClassVar[str]
    """Name of the encoder to use instead if no layers are trained."""
    arguments: dict[str, Any]
    """Constructor arguments, set by `recorded`."""

    def _add_layers(self, width: int, layers: int, kernel: int, attention: int, dropout: float = 0.0) -> None:
        check(width % ATTENTION_HEADS == 0, "width", f"a multiple of {ATTENTION_HEADS}", width)
        check(kernel >= 1 and kernel % 2 == 1, "kernel", "an odd number", kernel)
        self.width = width
        self.convolutions = nn.ModuleList(Convolution(width, kernel, 2**i, dropout) for i in range(layers))
        self.attention = nn.ModuleList(Attention(width) for _ in range(attention))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[OrderedEncoder, MemorySpec]:
        """Return an encoder for inputs (0, 1 + D), from `units` and `attention`, and the shape of its memory."""
        check_token_shape(shape, cls.name, features=cls.columns_needed)
        units = settings["units"]
        instead = f"{cls.untrained!r} with an objective in closed form, which trains no layers"
        check(len(units) >= 1, "encoder", instead, cls.name)
        encoder = cls(shape[1] - 1, width=units[-1], layers=len(units), attention=settings["attention"])
        return encoder, MemorySpec(encoder.width, tokens=True)

    def _run_layers(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Tokens:
        for convolution in self.convolutions:
            x = convolution(x, mask)
        if len(self.attention):
            x = x + sinusoids(x.shape[1], x.shape[2], x)
        return Tokens(self.last(_attend(self.attention, x, mask)), mask)


@recorded
class SequenceEncoder(OrderedEncoder):
    """Sequences of vectors: a linear layer at each position, residual dilated convolutions, then self-attention.

    Inputs are (B, N, 1 + D) as for `SetEncoder`, but their order matters.

    Args:
        features: Number of features of a position, D.
        width: Number of features of the memory; a multiple of 4.
        layers: Number of convolutions; each reads positions that are twice as far apart as the one before.
        kernel: Kernel size of the convolutions, odd.
        attention: Number of self-attention layers.

    Example:
        >>> encoder = SequenceEncoder(3, width=8)
        >>> encoder(torch.ones(2, 7, 4)).values.shape
        torch.Size([2, 7, 8])
    """

    name = "sequence"
    columns_needed = 1
    untrained = "set"

    def __init__(
        self, features: int, *, width: int = 128, layers: int = 2, kernel: int = 5, attention: int = 0
    ) -> None:
        super().__init__()
        check(features >= 1, "features", "at least 1", features)
        self.features = features
        self.standardised = Standardised(features)
        self.first = nn.Linear(features, width)
        self._add_layers(width, layers, kernel, attention)

    def forward(self, x: Float[Tensor, "b n k"]) -> Tokens:
        """Compute tokens (B, N, width) from padded vectors (B, N, 1 + D)."""
        values, mask = split_tokens(x, self.features)
        return self._run_layers(self.first(self.standardised(values)), mask)

    def fit_inputs(self, batches: Iterable[Float[Tensor, "_ _ k"]]) -> None:
        """Compute the mean and standard deviation for standardisation from training inputs."""
        self.standardised.fit(values[mask] for values, mask in (split_tokens(x, self.features) for x in batches))


def split_tokens(x: Float[Tensor, "b n k"], features: int) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "b n"]]:
    """Split padded inputs (B, N, 1 + D) into features (B, N, D) and the mask (B, N) of the positions."""
    check_float("x", x, "(B, N, 1 + features)", like=(None, None, 1 + features))
    return x[..., 1:], x[..., 0] > 0


def check_token_shape(shape: tuple[int, ...], name: str, *, features: int = 1) -> None:
    """Raise a ValueError unless inputs of this shape are tokens with at least this many features."""
    ok = len(shape) == 2 and shape[1] >= 1 + features
    check(ok, "encoder", f"'mlp' or 'conv' for inputs of shape {shape}, which are not tokens", name)


def _attend(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    """Apply self-attention layers; an example without positions attends to its first one, which is padding."""
    if len(layers):
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        mask = mask | (first & ~mask.any(1, keepdim=True))
    for layer in layers:
        x = layer(x, mask)
    return x
