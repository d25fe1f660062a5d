"""An encoder of text with pretrained word embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Float16, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._files import file_sha256
from torchmultiset._install import pip_install
from torchmultiset._memory import MemorySpec, Tokens
from torchmultiset.encoders.text import SYMBOLS, TextWithColumns, split_text
from torchmultiset.encoders.tokens import OrderedEncoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["WordEncoder", "words_installed"]

_PACKAGE = "wordllama"
_TOKENIZER, _VECTORS = "tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"
_FEATURES = 256


@recorded
class WordEncoder(TextWithColumns):
    """Text as word pieces with pretrained, frozen embeddings, then residual convolutions and self-attention.

    The embeddings are static: 256 numbers for each of 32,000 pieces, from the input layers of large language models.
    They come with the package WordLlama (the extra ``text``) and are not part of the state dict. Inputs and the other
    arguments are those of `TextEncoder`. The memory has a first position for the table's other columns, then one
    position per word piece.

    Args:
        fingerprint: SHA-256 of the embeddings used in training; other embeddings are rejected. None: not checked.

    Raises:
        ImportError: The extra ``text`` is not installed.
        ValueError: The embeddings are not those used in training.

    Example:
        >>> from torchmultiset.data.tokens import TokenText
        >>> import numpy as np
        >>> x = torch.from_numpy(TokenText(["two cats and a dog", ""])[np.arange(2)])
        >>> values, mask = WordEncoder(width=16)(x)
        >>> values.shape, mask.sum(1)  # two, c, ats, and, a, dog
        (torch.Size([2, 7, 16]), tensor([7, 1]))

    Reference:
        Miller, "WordLlama", https://github.com/dleemiller/WordLlama.
    """

    name = "words"
    export_instead = "one that reads bytes (train with --encoder text): ONNX cannot split text into word pieces"
    """What can be exported in its place, for an error message: ONNX has no operator for the tokenizer."""

    def __init__(
        self,
        columns: int = 0,
        *,
        width: int = 128,
        layers: int = 2,
        kernel: int = 5,
        attention: int = 0,
        dropout: float = 0.1,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__()
        if fingerprint not in (None, _fingerprint()):
            raise ValueError(
                f"the word embeddings are not those this model was trained with: the fingerprint was"
                f" {str(fingerprint)[:12]}... and is now {_fingerprint()[:12]}.... Install the original version of"
                f" {_PACKAGE}, or train the model again"
            )
        self.from_pieces = nn.Linear(_FEATURES, width)
        self._add_columns(columns, width)
        self._add_layers(width, layers, kernel, attention, dropout)

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[OrderedEncoder, MemorySpec]:
        """Return an encoder for inputs (0, 1 + D), from `units` and `attention`, and the shape of its memory."""
        encoder, memory = super().for_inputs(shape, settings)
        encoder.arguments["fingerprint"] = _fingerprint()
        return encoder, memory

    def forward(self, x: Float[Tensor, "b n k"]) -> Tokens:
        """Compute tokens (B, M, width) of M word pieces from padded texts (B, N, 1 + D)."""
        pieces, mask = self._pieces(x)
        return self._run_with_columns(self.from_pieces(_vectors(x.device)[pieces].to(x.dtype)), mask, x)

    def _pieces(self, x: Tensor) -> tuple[Int64[Tensor, "b m"], Bool[Tensor, "b m"]]:
        """Return the indices (B, M) of the word pieces, and the mask of those that are not padding."""
        symbols, mask = split_text(x, self.columns)
        lengths = mask.sum(1).tolist()
        # A joined text (`data.joined`) has the start symbol of its second text inside it: a line break.
        letters = (symbols - 1).masked_fill(symbols == SYMBOLS - 1, ord("\n")).tolist()
        texts = [bytes(row[1:length]) for row, length in zip(letters, lengths, strict=True)]
        found = [
            pieces if length else []  # an example of padding only has no first position
            for pieces, length in zip(tokenise(texts), lengths, strict=True)
        ]
        most = max(map(len, found), default=1) or 1
        padded = [[*one, *[0] * (most - len(one))] for one in found]
        indices = torch.tensor(padded, dtype=torch.int64, device=x.device).view(len(found), most)
        sizes = torch.tensor([len(one) for one in found], dtype=torch.int64, device=x.device)
        return indices, torch.arange(most, device=x.device) < sizes[:, None]


def words_installed() -> bool:
    """Return whether the extra ``text``, which contains the embeddings, is installed."""
    return find_spec(_PACKAGE) is not None and find_spec("tokenizers") is not None


def tokenise(texts: Sequence[bytes]) -> list[list[int]]:
    """Return the indices of the word pieces of each text (UTF-8), preceded by the start token."""
    encoded = _tokenizer().encode_batch([text.decode(errors="replace") for text in texts])
    return [one.ids for one in encoded]


def _folder() -> Path:
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"word embeddings require an extra: {pip_install('text')}")
    return Path(found.submodule_search_locations[0])


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer

    # The package itself is not imported, since it would look for a newer version of this file on the internet.
    return Tokenizer.from_file(str(_folder() / _TOKENIZER))


@lru_cache(maxsize=2)
def _vectors(device: torch.device) -> Float16[Tensor, "p d"]:
    from safetensors.torch import load_file

    return load_file(_folder() / _VECTORS, device=str(device))["embedding.weight"]


@lru_cache(maxsize=1)
def _fingerprint() -> str:
    return file_sha256(_folder() / _VECTORS)
