"""Train a language model to write shopping lists, in no particular order: python examples/language_model.py

Needs the extra "lm". Trains a small GPT-2 from scratch in less than five minutes on one CPU core.
"""

import random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from torchmultiset.lm import LabelVocabulary, ListCollator, ListLoss, generate_lists, list_scores

LABELS = [
    f"{kind} {food}" for kind in ("red", "white", "sweet") for food in ("onion", "rice", "pepper", "wine", "corn")
]
NUMBERS = ("one", "two", "three")


def request() -> tuple[str, list[str]]:
    """Draw a text such as "two red onion and one white rice" and its list."""
    chosen = {label: random.randint(1, 3) for label in random.sample(LABELS, random.randint(1, 3))}
    text = " and ".join(f"{NUMBERS[number - 1]} {label}" for label, number in chosen.items())
    return text, [label for label, number in chosen.items() for _ in range(number)]


def main(steps: int = 1500, tested: int = 200) -> dict[str, float]:
    random.seed(0)
    torch.manual_seed(0)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([request()[0] for _ in range(500)] + LABELS * 9, trainer)
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>")
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id

    vocabulary = LabelVocabulary.from_tokenizer(tokenizer, LABELS)
    config: Any = GPT2Config
    model: Any = GPT2LMHeadModel(
        config(
            vocab_size=len(tokenizer),
            n_embd=64,
            n_layer=3,
            n_head=4,
            initializer_range=0.1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
        )
    )
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 2e-3, total_steps=steps)
    collate, loss_of = ListCollator(vocabulary, pad=pad), ListLoss(vocabulary, causal=True)

    for step in range(steps):
        drawn = [request() for _ in range(32)]
        batch = collate(
            [{"input_ids": tokenizer(f"{text}\n")["input_ids"], "labels": labels} for text, labels in drawn]
        )
        tokens = batch.pop("labels")
        loss = loss_of(model(**batch), tokens)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:4}: loss {loss.item():.3f} per token")

    model.eval()
    order, content = (part.mean().item() for part in loss_of.order_and_content(model(**batch), tokens))
    print(f"mean loss of a list: {order:.2f} for its order, which is irreducible, and {content:.2f} for its content")
    drawn = [request() for _ in range(tested)]
    tokenizer.padding_side = "left"
    inputs = tokenizer(
        [f"{text}\n" for text, _ in drawn], padding=True, return_tensors="pt", return_token_type_ids=False
    )
    lists = vocabulary.decode(generate_lists(model, inputs, vocabulary, pad=pad, max_new_tokens=60))
    for (text, _), labels in zip(drawn[:3], lists, strict=False):
        print(f"{text}: {', '.join(labels)}")
    scores = list_scores(lists, [labels for _, labels in drawn])
    means = {name: values.mean().item() for name, values in scores._asdict().items()}
    print(", ".join(f"{name} {value:.3f}" for name, value in means.items()))
    return means


if __name__ == "__main__":
    main()
