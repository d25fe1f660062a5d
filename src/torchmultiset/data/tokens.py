"""Inputs of varying length, padded per batch: text as bytes, sets and sequences of vectors.

A batch of such inputs is one float32 array (B, N, 1 + D), where N is the length of the longest input of the batch.
Channel 0 is 0 at padding, which follows the positions of an input. The other D channels are features.

| input                | channel 0                                      | other channels                             |
| -------------------- | ---------------------------------------------- | ------------------------------------------ |
| set, sequence        | 1                                              | the vector at this position                |
| text                 | 257 at the first position, then byte value + 1 | at the first position, the columns of the  |
|                      |                                                | table beside the text; else 0              |
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Int, Int64, Shaped

from torchmultiset._checks import check

__all__ = ["LONGEST", "START", "TokenKind", "TokenRows", "TokenText", "cut_text", "warn_of_cut"]

TokenKind: TypeAlias = Literal["text", "set", "sequence", "either"]
"""Kind of positions: bytes, vectors without an order, vectors in order, or vectors whose order may matter."""
LONGEST = 2_048
"""Maximum number of bytes of a text, or of vectors of a set or sequence; longer inputs are truncated."""
START = 257
"""Value of channel 0 at the first position of a text; a byte b has b + 1."""


class TokenRows:
    """`Inputs` that are sets or sequences of vectors.

    Args:
        rows: One array (N, D) per input, with any N and, unless N is 0, the same D. Arrays longer than `LONGEST` are
            truncated.

    Example:
        >>> rows = TokenRows([np.ones((1, 2)), np.full((2, 2), 5.0)])
        >>> rows[np.array([0, 1])].tolist()
        [[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [[1.0, 5.0, 5.0], [1.0, 5.0, 5.0]]]
    """

    def __init__(self, rows: Sequence[Shaped[np.ndarray, "_ _"]]) -> None:
        widths = {row.shape[1] for row in rows if len(row)} or {max((row.shape[1] for row in rows), default=0)}
        check(len(rows) > 0 and len(widths) == 1, "rows", "arrays (N, D) with the same D", sorted(widths))
        (self.width,) = widths
        self.lengths: Int64[np.ndarray, " n"] = np.array([min(len(row), LONGEST) for row in rows], dtype=np.int64)
        """Number of positions (N,) of each input."""
        self.cut = sum(len(row) > LONGEST for row in rows)
        """Number of inputs that are longer than `LONGEST`."""
        kept = [row[:LONGEST] for row in rows if len(row)] or [np.zeros((0, self.width))]
        self.values = np.concatenate(kept, dtype=np.float32, casting="unsafe")
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Float32[np.ndarray, "b n k"]:
        longest = max(int(self.lengths[indices].max(initial=0)), 1)
        batch = np.zeros((len(indices), longest, 1 + self.width), dtype=np.float32)
        for row, i in enumerate(indices):
            end, length = self._ends[i], self.lengths[i]
            batch[row, :length, 0] = 1
            batch[row, :length, 1:] = self.values[end - length : end]
        return batch


class TokenText:
    """`Inputs` that are texts, optionally with the other columns of a table.

    Args:
        texts: One text per input. Texts longer than `LONGEST` bytes are truncated; see `cut_text`.
        columns: Numeric columns (N, D), if any.

    Example:
        >>> TokenText(["", "é"])[np.array([0, 1])].squeeze(-1).tolist()
        [[257.0, 0.0, 0.0], [257.0, 196.0, 170.0]]
    """

    def __init__(self, texts: Sequence[str], columns: Float32[np.ndarray, "n d"] | None = None) -> None:
        self.columns = np.zeros((len(texts), 0), dtype=np.float32) if columns is None else columns
        check(len(self.columns) == len(texts), "columns", f"{len(texts)} rows, one for each text", len(self.columns))
        kept = [cut_text(text) for text in texts]
        self.lengths: Int64[np.ndarray, " n"] = np.array([len(text) + 1 for text in kept], dtype=np.int64)
        """Number of positions (N,) of each input: its bytes, and the first position."""
        self.cut = sum(len(one) < len(text.encode(errors="replace")) for one, text in zip(kept, texts, strict=True))
        """Number of inputs that are longer than `LONGEST`."""
        self._ends = np.cumsum(self.lengths - 1)
        self._bytes = np.frombuffer(b"".join(kept), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Float32[np.ndarray, "b n k"]:
        longest = max(int(self.lengths[indices].max(initial=0)), 1)
        batch = np.zeros((len(indices), longest, 1 + self.columns.shape[1]), dtype=np.float32)
        for row, i in enumerate(indices):
            end, length = self._ends[i], self.lengths[i] - 1
            batch[row, 0, 0] = START
            batch[row, 0, 1:] = self.columns[i]
            batch[row, 1 : 1 + length, 0] = self._bytes[end - length : end].astype(np.float32) + 1
        return batch


def cut_text(text: str, most: int = LONGEST) -> bytes:
    """Encode a text as UTF-8, truncated to at most `most` bytes without splitting a character.

    Lone surrogates, which UTF-8 cannot encode, become question marks.

    Example:
        >>> cut_text("naïve", most=3)
        b'na'
    """
    data = text[:most].encode("utf-8", errors="replace")
    if len(data) <= most:
        return data
    while data[most] & 0xC0 == 0x80:  # a continuation byte: its character begins before the limit
        most -= 1
    return data[:most]


def warn_of_cut(number: int) -> None:
    """Warn that some inputs, if any, are truncated: in training this is one of the printed settings.

    Args:
        number: Number of inputs that are longer than `LONGEST`.
    """
    if number:
        some = f"{number:,} inputs are" if number > 1 else "1 input is"
        message = f"{some} longer than {LONGEST:,} bytes or vectors: only the first part of each is read"
        warnings.warn(message, stacklevel=3)
