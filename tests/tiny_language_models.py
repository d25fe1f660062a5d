"""Tokenizers trained on a few words and language models of a few thousand weights; nothing is downloaded."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from torchmultiset.lm import LabelVocabulary

SPECIAL = ["<pad>", "</s>"]


def _fast(tokenizer: Tokenizer, texts: list[str], alphabet: list[str], end: str | None) -> PreTrainedTokenizerFast:
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token=end)


def byte_tokenizer(texts: list[str], *, end: str | None = "</s>") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, like GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer, texts * 9, pre_tokenizers.ByteLevel.alphabet(), end)


def metaspace_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with a marker for the space before a word, like T5's, and without a newline token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    return _fast(tokenizer, texts * 9, [";"], "</s>")


LABELS = ["red onion", "red lentils", "rye", "rye bread"]
TOKENIZER = byte_tokenizer([*LABELS, "one two of each"])
VOCABULARY = LabelVocabulary.from_tokenizer(TOKENIZER, LABELS)
PAD, END = TOKENIZER.pad_token_id, TOKENIZER.eos_token_id


def causal(seed: int = 0) -> GPT2LMHeadModel:
    """A causal model with random weights."""
    torch.manual_seed(seed)
    tokens = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD}
    sizes = {"vocab_size": len(TOKENIZER), "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    without = {"initializer_range": 0.1, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **without, **tokens))


def encoder_decoder(seed: int = 0) -> T5ForConditionalGeneration:
    """An encoder-decoder with random weights."""
    torch.manual_seed(seed)
    config = T5Config(vocab_size=len(TOKENIZER), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                      dropout_rate=0.0, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD)  # fmt: skip
    return T5ForConditionalGeneration(config)
