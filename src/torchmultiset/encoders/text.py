"""Encoders of text as bytes: convolutions with embeddings of byte n-grams, and plain counts of n-grams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float
from torchmultiset._memory import MemorySpec, Tokens
from torchmultiset.encoders._token_layers import Standardised
from torchmultiset.encoders.tokens import OrderedEncoder, check_token_shape

__all__ = ["NgramEncoder", "TextEncoder"]

SYMBOLS = 258
"""Values of channel 0: padding, 256 bytes, and the first position of a text."""


class TextWithColumns(OrderedEncoder):
    """Base class of the encoders of text: the first position also holds the columns of a table, if there are any."""

    columns_needed = 0
    untrained = "ngrams"

    def _add_columns(self, columns: int, width: int) -> None:
        check(columns >= 0, "columns", "at least 0", columns)
        self.columns = columns
        self.standardised = Standardised(columns)
        self.from_columns = nn.Linear(columns, width) if columns else None

    def _run_with_columns(self, values: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"], x: Tensor) -> Tokens:
        """Add the columns of the inputs (B, N, 1 + columns) to the first position, then run all layers."""
        if self.from_columns is not None:
            beside = self.from_columns(self.standardised(x[:, 0, 1:]))
            first = torch.arange(values.shape[1], device=x.device) == 0
            values = values + beside[:, None] * first[:, None]
        return self._run_layers(values, mask)

    def fit_inputs(self, batches: Iterable[Float[Tensor, "_ _ k"]]) -> None:
        """Compute the mean and standard deviation of the table's columns from training inputs."""
        if self.columns:
            self.standardised.fit(x[:, 0, 1:] for x in batches)


@recorded
class TextEncoder(TextWithColumns):
    """Text as UTF-8 bytes: embeddings of bytes and byte n-grams, residual convolutions, then self-attention.

    Inputs are (B, N, 1 + D): channel 0 is 257 at the first position of a text, byte + 1 at those after it, and 0 at
    padding. The first position also holds D columns of a table, if any, which are standardised if `fit_inputs` was
    called. The encoder is trained from scratch and has no vocabulary: it reads any language, and empty text.

    Args:
        columns: Number of other columns of the table, D.
        width: Number of features of the memory; a multiple of 4.
        layers: Number of convolutions; each reads positions that are twice as far apart as the one before.
        kernel: Kernel size of the convolutions, odd.
        attention: Number of self-attention layers.
        ngrams: Length of the longest byte n-grams that are embedded; 1: bytes only.
        buckets: Number of embeddings for the n-grams of one length. N-grams share them by their hash.
        dropout: Dropout probability in each convolution.

    Example:
        >>> from torchmultiset.data.tokens import TokenText
        >>> import numpy as np
        >>> x = torch.from_numpy(TokenText(["ethanol", ""])[np.arange(2)])
        >>> values, mask = TextEncoder(width=16)(x)
        >>> values.shape, mask.sum(1)
        (torch.Size([2, 8, 16]), tensor([8, 1]))
    """

    name = "text"

    def __init__(
        self,
        columns: int = 0,
        *,
        width: int = 128,
        layers: int = 2,
        kernel: int = 5,
        attention: int = 0,
        ngrams: int = 4,
        buckets: int = 4096,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check(ngrams >= 1, "ngrams", "at least 1", ngrams)
        self.buckets = buckets
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.ngrams = nn.ModuleList(nn.Embedding(buckets, width) for _ in range(ngrams - 1))
        for each in self.ngrams:
            assert isinstance(each, nn.Embedding)
            nn.init.normal_(each.weight, std=0.1)
        self._add_columns(columns, width)
        self._add_layers(width, layers, kernel, attention, dropout)

    def forward(self, x: Float[Tensor, "b n k"]) -> Tokens:
        """Compute tokens (B, N, width) from padded texts (B, N, 1 + D)."""
        symbols, mask = split_text(x, self.columns)
        values = self.symbols(symbols)
        for each, codes in zip(self.ngrams, hashed_ngrams(symbols, len(self.ngrams) + 1)[1:], strict=True):
            values = values + each(codes % self.buckets)
        return self._run_with_columns(values, mask, x)


@recorded
class NgramEncoder(nn.Module):
    """Counts of the most frequent byte n-grams of a text, followed by the columns of its table: a vector (B, D).

    For ridge regression, and for the baselines of text. It has no trainable weights; `fit_inputs` chooses the n-grams
    that occur in the most training texts. Inputs are those of `TextEncoder`.

    Args:
        columns: Number of other columns of the table.
        longest: Length of the longest n-grams, in bytes; shorter ones are also counted.
        features: Maximum number of n-grams that are counted.
        buckets: Number of hash values. N-grams with the same value are counted together.

    Example:
        >>> from torchmultiset.data.tokens import TokenText
        >>> import numpy as np
        >>> x = torch.from_numpy(TokenText(["aba", ""])[np.arange(2)])
        >>> encoder = NgramEncoder(longest=2, features=8)
        >>> encoder.fit_inputs([x])
        >>> encoder(x).sum(1)  # a, b, a, ab, ba, and a at the beginning
        tensor([6., 0.])
    """

    column_of: Int64[Tensor, " h"]

    def __init__(self, columns: int = 0, *, longest: int = 4, features: int = 4096, buckets: int = 2**18) -> None:
        super().__init__()
        check(longest >= 1, "longest", "at least 1", longest)
        check(features >= 1, "features", "at least 1", features)
        self.columns = columns
        self.longest = longest
        self.features = features
        self.buckets = buckets
        # Column of each hash value; all other n-grams share an extra column, which is dropped.
        self.register_buffer("column_of", torch.full((buckets,), features, dtype=torch.int64))

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[NgramEncoder, MemorySpec]:  # noqa: ARG003
        """Return an encoder for inputs (0, 1 + D), and the shape of its memory, a vector."""
        check_token_shape(shape, "ngrams", features=0)
        encoder = cls(shape[1] - 1)
        return encoder, MemorySpec(encoder.features + encoder.columns)

    def forward(self, x: Float[Tensor, "b n k"]) -> Float[Tensor, "b d"]:
        """Count n-grams (B, features) in padded texts, and append the table's columns."""
        found = self.column_of[self._hashed(x)]
        counts = x.new_zeros(x.shape[0], self.features + 1).scatter_add(1, found, torch.ones_like(found, dtype=x.dtype))
        return torch.cat([counts[:, :-1], x[:, 0, 1:]], 1)

    @torch.no_grad()
    def fit_inputs(self, batches: Iterable[Float[Tensor, "_ _ k"]]) -> None:
        """Choose the n-grams that occur in the most training texts."""
        texts = torch.zeros(self.buckets, dtype=torch.int64)
        for x in batches:
            for codes in self._hashed(x.cpu()):
                texts[codes.unique()] += 1
        texts[0] = 0  # the value of padding and of the first position
        number = min(self.features, int((texts > 0).sum()))
        chosen = texts.argsort(descending=True, stable=True)[:number]
        self.column_of.fill_(self.features)
        self.column_of[chosen] = torch.arange(number, device=self.column_of.device)

    def _hashed(self, x: Tensor) -> Int64[Tensor, "b m"]:
        """Return hash values (B, longest N) of the n-grams that end at each position; 0 for none."""
        symbols, mask = split_text(x, self.columns)
        counted = mask & (symbols < SYMBOLS - 1)
        every = hashed_ngrams(symbols, self.longest)
        return torch.cat([torch.where(counted, 1 + codes % (self.buckets - 1), 0) for codes in every], 1)


def split_text(x: Float[Tensor, "b n k"], columns: int) -> tuple[Int64[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """Return the symbols (B, N) of padded texts, from 0 to 257, and the mask of those that are not padding."""
    check_float("x", x, "(B, N, 1 + columns)", like=(None, None, 1 + columns))
    symbols = x[..., 0].to(torch.int64).clamp(0, SYMBOLS - 1)
    return symbols, symbols > 0


def hashed_ngrams(symbols: Int64[Tensor, "b n"], longest: int) -> list[Int64[Tensor, "b n"]]:
    """Return a hash of the n-gram that ends at each position, for n = 1, ..., longest.

    Texts are padded on the left, so that n-grams at the beginning of a text differ from those inside it. The hash is a
    polynomial of the symbols modulo a prime below 2^31, so that products fit in 64 bits.
    """
    codes = [symbols]
    for n in range(1, longest):
        before = pad(symbols, (n, 0))[:, : symbols.shape[1]]
        codes.append((codes[-1] * 1_000_003 + before * (7_919 + n) + n) % 2_147_483_647)
    return codes
