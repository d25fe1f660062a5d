"""Pooling of the positions of a memory to one feature vector, for heads and policies."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import Memory, Tokens, places

__all__ = ["Pool", "PoolKind", "PooledFeatures"]

PoolKind: TypeAlias = Literal["mean", "max", "mean-max", "attention", "sum"]


class Pool(nn.Module):
    r"""Pools positions (B, N, D) to features (B, W).

    .. math::
        \text{mean: } \frac{1}{N} \sum_n v_n \qquad
        \text{max: } \max_n v_{nd} \text{ for each channel } d \qquad
        \text{attention: } \sum_n a_n v_n, \quad a = \operatorname{softmax}_n (w^\top v_n) \qquad
        \text{sum: } \frac{1}{10} \sum_n v_n

    ``"mean-max"`` concatenates both, so that W = 2 D; otherwise W = D. Padding is ignored. A single position, such as a
    vector, passes through unchanged (twice for ``"mean-max"``, scaled for ``"sum"``). Only the sum grows with the
    number of positions; its factor makes it equal to the mean for ten of them. Only ``"attention"`` has a parameter: w
    is initialised to 0, which gives the mean.

    Args:
        features: Number of features of a position, D.
        kind: How to pool.

    Example:
        >>> from torchmultiset._memory import Tokens
        >>> tokens = Tokens(torch.tensor([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]]), torch.tensor([[True, True, False]]))
        >>> Pool(2, "mean-max")(tokens)
        tensor([[2., 2., 3., 4.]])
    """

    def __init__(self, features: int, kind: PoolKind = "mean") -> None:
        super().__init__()
        check_one_of("pool", kind, get_args(PoolKind))
        self.kind = kind
        self.width = 2 * features if kind == "mean-max" else features
        self.attention = nn.Parameter(torch.zeros(features)) if kind == "attention" else None

    def forward(self, tokens: Tokens) -> Float[Tensor, "b w"]:
        """Pool the positions that are not padding; there must be at least one in each example."""
        values, mask = tokens
        if mask is not None:
            values = values.masked_fill(~mask[..., None], 0)
        if self.attention is not None:
            scores = values @ self.attention
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            return (scores.softmax(1)[:, None] @ values).squeeze(1)
        if self.kind == "sum":
            # In bfloat16, a sum of many positions would be rounded to three digits.
            return values.sum(1, dtype=torch.promote_types(values.dtype, torch.float32)) / 10
        pooled = []
        if self.kind != "max":
            pooled.append(values.mean(1) if mask is None else values.sum(1) / mask.sum(1, keepdim=True))
        if self.kind != "mean":
            unpadded = values if mask is None else values.masked_fill(~mask[..., None], -torch.inf)
            pooled.append(unpadded.amax(1))
        return torch.cat(pooled, 1) if len(pooled) > 1 else pooled[0]


class PooledFeatures(nn.Module):
    """Pooled features of a memory: an optional projection with ReLU at each position, pooling, dropout.

    Args:
        memory: Number of features D of the memory: a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D).
        pool: How positions are pooled, see `Pool`.
        hidden: Features of the projection, a 1x1 convolution; None: no projection.
        dropout: Dropout probability of the pooled features.

    Example:
        >>> pooled = PooledFeatures(32, "mean-max", hidden=16)
        >>> pooled(torch.rand(2, 32, 9, 9)).shape, pooled.width
        (torch.Size([2, 32]), 32)
    """

    def __init__(
        self, memory: int, pool: PoolKind = "mean", *, hidden: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check(hidden is None or hidden >= 1, "hidden", "at least 1, or None", hidden)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        self.memory = memory
        self.project = None if hidden is None else nn.Linear(memory, hidden)
        self.pool = Pool(memory if hidden is None else hidden, pool)
        self.dropout = nn.Dropout(dropout)
        self.width = self.pool.width
        """Number of pooled features, W."""

    def forward(self, memory: Memory) -> Float[Tensor, "b w"]:
        """Compute features (B, W)."""
        tokens = places(memory, self.memory)
        if self.project is not None:
            tokens = tokens._replace(values=self.project(tokens.values).relu())
        out: Tensor = self.dropout(self.pool(tokens))
        return out
