"""Generation of lists restricted to a vocabulary of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchmultiset._install import pip_install
from torchmultiset.lm._training import IGNORED, as_batch
from torchmultiset.lm._vocabulary import LabelVocabulary
from torchmultiset.multiset import pad_rows

__all__ = ["AllowedTokens", "generate_lists", "sample_batch"]


class AllowedTokens:
    """Logits processor that allows only tokens that continue a list of known labels.

    Every allowed token continues a label of the vocabulary, or ends the list between two labels. It works with greedy
    search, sampling and beam search of `transformers`, and in custom decoding loops.

    Args:
        vocabulary: Vocabulary of all labels.
        prompt_length: Number of tokens before the list: the length of the prompt of a causal model, or 1 for the start
            token of a decoder.

    Example:
        >>> vocabulary = LabelVocabulary(["red apple", "red pepper"], [[5, 6, 1], [5, 7, 1]], end=0)
        >>> AllowedTokens(vocabulary, prompt_length=1)(torch.tensor([[3, 5]]), torch.zeros(1, 8))
        tensor([[-inf, -inf, -inf, -inf, -inf, -inf, 0., 0.]])
    """

    def __init__(self, vocabulary: LabelVocabulary, *, prompt_length: int) -> None:
        self.vocabulary = vocabulary
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Int64[Tensor, "b t"], scores: Float[Tensor, "b v"]) -> Float[Tensor, "b v"]:
        """Return the scores (B, V) with minus infinity for all tokens that are not allowed."""
        restricted = torch.full_like(scores, -torch.inf)
        for row, allowed in enumerate(self.vocabulary.allowed(input_ids[:, self.prompt_length :])):
            index = torch.tensor(allowed, device=scores.device)
            restricted[row, index] = scores[row, index]
        return restricted


def generate_lists(
    model: Any,
    inputs: Mapping[str, Tensor],
    vocabulary: LabelVocabulary,
    *,
    pad: int,
    max_new_tokens: int,
    **options: Any,
) -> Int64[Tensor, "b t"]:
    """Generate lists of known labels with a model of `transformers`.

    Args:
        model: Model with a `generate` method, causal or encoder-decoder.
        inputs: Its inputs, ``input_ids`` and ``attention_mask``; prompts of causal models are padded on the left.
        vocabulary: Vocabulary of all labels.
        pad: Padding token.
        max_new_tokens: Maximum number of tokens of a list.
        **options: Options of `generate`, such as ``do_sample=True`` or ``num_beams=4``; greedy search by default.

    Returns:
        Tokens (B, T) of the lists without prompt, -100 after the end token; ``vocabulary.decode`` gives the labels.
        A list that is cut off by `max_new_tokens` has no end token.
    """
    try:
        from transformers import LogitsProcessorList
    except ImportError as error:
        raise ImportError(f"generate_lists needs transformers: {pip_install('lm')}") from error
    causal = not model.config.is_encoder_decoder
    before = inputs["input_ids"].shape[1] if causal else 1
    settings = {"do_sample": False, **({"top_k": 0} if options.get("do_sample") else {}), **options}
    generated: Tensor = model.generate(
        **inputs,
        logits_processor=LogitsProcessorList([AllowedTokens(vocabulary, prompt_length=before)]),
        max_new_tokens=max_new_tokens,
        eos_token_id=vocabulary.end,
        pad_token_id=pad,
        **settings,
    )
    return vocabulary.until_end(generated[:, before:])


def sample_batch(
    model: Any,
    batch: Mapping[str, Tensor],
    vocabulary: LabelVocabulary,
    *,
    pad: int,
    max_new_tokens: int,
    **options: Any,
) -> dict[str, Tensor]:
    """Replace the reference lists of a batch by samples of the model, for roll-in with the model's own predictions.

    Compute the target first, since the returned labels do not contain it: ``vocabulary.target(batch["labels"])``.
    `batch` comes from `ListCollator`; the other arguments are those of `generate_lists`.

    Returns:
        Batch of the same form, with the sampled lists in ``labels`` and in the input of the model.
    """
    rows = [row[mask > 0] for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    start = None
    if "decoder_input_ids" in batch:
        start = int(batch["decoder_input_ids"][0, 0])
        inputs = [row.tolist() for row in rows]
        given = {key: batch[key] for key in ("input_ids", "attention_mask")}
    else:
        sizes = (batch["labels"] != IGNORED).sum(1).tolist()
        inputs = [row[:-size].tolist() for row, size in zip(rows, sizes, strict=True)]
        device = batch["input_ids"].device
        given = {
            "input_ids": pad_rows(inputs, pad, left=True).to(device),
            "attention_mask": pad_rows([[1] * len(row) for row in inputs], 0, left=True).to(device),
        }
    training = model.training
    model.eval()
    with torch.no_grad():
        sampled = generate_lists(
            model, given, vocabulary, pad=pad, max_new_tokens=max_new_tokens, **{"do_sample": True, **options}
        )
    model.train(training)
    lists = [[token for token in row if token != IGNORED] for row in sampled.tolist()]
    rolled = as_batch(inputs, lists, pad=pad, decoder_start=start)
    return {key: value.to(batch["input_ids"].device) for key, value in rolled.items()}
