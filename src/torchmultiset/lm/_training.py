"""Training of language models on lists: batches with labels in random order, and a loss for `transformers.Trainer`.

Nothing here imports `transformers`: a batch is a dictionary of tensors, and a model is a function of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._checks import can_look, check
from torchmultiset.lm._loss import OrderAndContent, list_loss, order_and_content
from torchmultiset.lm._vocabulary import LabelVocabulary, Reading
from torchmultiset.multiset import from_labels, pad_rows

__all__ = ["IGNORED", "ListCollator", "ListLoss"]

IGNORED = -100
"""Label of the steps that are not part of a list, as in `transformers`."""


class ListCollator:
    """Data collator that puts each example's labels in a new random order.

    An example is a dictionary with ``"input_ids"``, the tokens of the prompt (causal model) or of the encoder's input
    (encoder-decoder), and ``"labels"``, the label texts in any order. A batch holds tensors, padded on the right:
    ``input_ids``, ``attention_mask`` and ``labels``, which are the tokens of the list and -100 elsewhere; for
    encoder-decoders also ``decoder_input_ids``. The prompt of a causal model is part of ``input_ids`` and masked in
    ``labels``.

    With `transformers.Trainer`, set ``remove_unused_columns=False``, since "labels" are texts before collation.

    Args:
        vocabulary: Vocabulary of all labels.
        pad: Padding token.
        decoder_start: Token that starts the decoder of an encoder-decoder, ``model.config.decoder_start_token_id``;
            None for causal models.
        generator: Random number generator of the order; PyTorch's default if None.

    Example:
        >>> vocabulary = LabelVocabulary(["red apple", "rye"], [[5, 6, 1], [8, 1]], end=0)
        >>> collate = ListCollator(vocabulary, pad=0, generator=torch.Generator().manual_seed(1))
        >>> batch = collate([{"input_ids": [3, 4], "labels": ["rye", "red apple"]}, {"input_ids": [3], "labels": []}])
        >>> batch["input_ids"]
        tensor([[3, 4, 5, 6, 1, 8, 1, 0],
                [3, 0, 0, 0, 0, 0, 0, 0]])
        >>> batch["labels"]
        tensor([[-100, -100,    5,    6,    1,    8,    1,    0],
                [-100,    0, -100, -100, -100, -100, -100, -100]])
    """

    def __init__(
        self,
        vocabulary: LabelVocabulary,
        *,
        pad: int,
        decoder_start: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.pad = pad
        self.decoder_start = decoder_start
        self.generator = generator

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate examples."""
        for key in ("input_ids", "labels"):
            given = sorted({key for example in examples for key in example})
            check(all(key in example for example in examples), "examples", f'dictionaries with "{key}"', given)
        inputs = [[*map(int, example["input_ids"])] for example in examples]
        lists = [self.vocabulary.encode(self._shuffle(example["labels"])) for example in examples]
        return as_batch(inputs, lists, pad=self.pad, decoder_start=self.decoder_start)

    def _shuffle(self, labels: Sequence[str]) -> list[str]:
        return [labels[i] for i in torch.randperm(len(labels), generator=self.generator).tolist()]


class ListLoss:
    """The multiset loss of lists, for `compute_loss_func` of `transformers.Trainer` or a custom training loop.

    Args:
        vocabulary: Vocabulary of all labels.
        causal: Whether the model is causal, so that its logits at a step predict the token of the next step; False
            for encoder-decoders.

    Example:
        >>> vocabulary = LabelVocabulary(["red apple", "rye"], [[5, 6, 1], [8, 1]], end=0)
        >>> loss = ListLoss(vocabulary, causal=False)
        >>> loss(torch.zeros(1, 3, 9), torch.tensor([[8, 1, 0]]))  # ln 9 for each token
        tensor(2.1972)
    """

    def __init__(self, vocabulary: LabelVocabulary, *, causal: bool) -> None:
        self.vocabulary = vocabulary
        self.causal = causal

    def __call__(
        self,
        outputs: Any,
        labels: Int64[Tensor, "b t"],
        num_items_in_batch: Tensor | int | float | None = None,
        *,
        target: Int64[Tensor, "b c"] | None = None,
    ) -> Float[Tensor, ""]:
        """Compute the mean loss per token.

        Args:
            outputs: Logits (B, T, V), or an object with the attribute `logits`.
            labels: Tokens (B, T) of reference lists or samples; -100 elsewhere.
            num_items_in_batch: Number of tokens to divide the sum by, for gradient accumulation; None: the number of
                tokens in this batch.
            target: Counts (B, C) of the labels. None: those of `labels`, which must then be reference lists.
        """
        logits, tokens, *others = self._arguments(outputs, labels, target)
        total = list_loss(logits, tokens, *others, end=self.vocabulary.end, reduction="sum")
        if num_items_in_batch is None:
            num_items_in_batch = (tokens >= 0).sum().clamp(min=1)
        return total / num_items_in_batch

    @torch.no_grad()
    def order_and_content(
        self, outputs: Any, labels: Int64[Tensor, "b t"], *, target: Int64[Tensor, "b c"] | None = None
    ) -> OrderAndContent:
        """Split the loss of each list, summed over its tokens, into order and content, for logging."""
        return order_and_content(*self._arguments(outputs, labels, target), end=self.vocabulary.end)

    def _arguments(
        self, outputs: Any, labels: Tensor, target: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the arguments of `list_loss`: logits, tokens, starts, target and the tokens of each label."""
        logits: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
        logits, tokens = (logits[:, :-1], labels[:, 1:]) if self.causal else (logits, labels)
        reading = self._read(tokens)
        target = from_labels(reading.completed, len(self.vocabulary)) if target is None else target
        return logits, tokens, reading.starts, target, self.vocabulary.tokens.to(tokens.device)

    def _read(self, tokens: Tensor) -> Reading:
        reading = self.vocabulary.read(tokens)
        unknown = (tokens >= 0) & ~reading.known
        if can_look(tokens) and bool(unknown.any()):
            row, step = unknown.nonzero()[0].tolist()
            raise ValueError(
                f"labels must hold tokens of the vocabulary's labels, but token {int(tokens[row, step])} of row {row}"
                f" continues no label after {tokens[row, :step][tokens[row, :step] >= 0].tolist()}; tokenise lists with"
                " LabelVocabulary.encode, and restrict samples with AllowedTokens"
            )
        return reading


def as_batch(
    inputs: Sequence[Sequence[int]], lists: Sequence[Sequence[int]], *, pad: int, decoder_start: int | None
) -> dict[str, Tensor]:
    """Build a batch from the tokens of inputs and lists; see `ListCollator`."""
    if decoder_start is None:
        rows = [[*prompt, *tokens] for prompt, tokens in zip(inputs, lists, strict=True)]
        labels = [[*[IGNORED] * len(prompt), *tokens] for prompt, tokens in zip(inputs, lists, strict=True)]
    else:
        rows, labels = [[*row] for row in inputs], [[*tokens] for tokens in lists]
    batch = {
        "input_ids": pad_rows(rows, pad),
        "attention_mask": pad_rows([[1] * len(row) for row in rows], 0),
        "labels": pad_rows(labels, IGNORED),
    }
    if decoder_start is not None:
        batch["decoder_input_ids"] = pad_rows([[decoder_start, *tokens[:-1]] for tokens in lists], pad)
    return batch
