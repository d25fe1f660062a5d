"""Small language models learn to write lists, with a plain training loop and with the Trainer."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("transformers", reason='install it with: pip install "torchmultiset[lm]"')
from tiny_language_models import END, LABELS, PAD, TOKENIZER, VOCABULARY, causal, encoder_decoder

from torchmultiset.lm import (
    AllowedTokens,
    ListCollator,
    ListLoss,
    generate_lists,
    list_loss,
    list_scores,
    sample_batch,
)

LISTS = {
    "red": ["red onion", "red lentils"],
    "two rye": ["rye", "rye"],
    "one of each": ["rye bread", "rye", "red onion"],
    "none": [],
}
EXAMPLES = [{"input_ids": TOKENIZER(text + "\n")["input_ids"], "labels": labels} for text, labels in LISTS.items()]
START = {causal: None, encoder_decoder: PAD}
both = pytest.mark.parametrize("build", [causal, encoder_decoder])


def collator(build, seed=0):
    return ListCollator(VOCABULARY, pad=PAD, decoder_start=START[build], generator=torch.Generator().manual_seed(seed))


def inputs_of(build):
    """Inputs for generating the lists; prompts of a causal model are padded on the left."""
    longest = max(len(example["input_ids"]) for example in EXAMPLES)
    rows = [example["input_ids"] for example in EXAMPLES]
    left = build is causal
    fill = [[PAD] * (longest - len(row)) for row in rows]
    mask = [[0] * len(more) + [1] * len(row) if left else [1] * len(row) + [0] * len(more)
            for row, more in zip(rows, fill, strict=True)]  # fmt: skip
    tokens = [more + row if left else row + more for row, more in zip(rows, fill, strict=True)]
    return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}


def generated(model, build, **options):
    tokens = generate_lists(model, inputs_of(build), VOCABULARY, pad=PAD, max_new_tokens=40, **options)
    return VOCABULARY.decode(tokens)


def exact(model, build):
    return list_scores(generated(model, build), [*LISTS.values()]).exact_match.tolist()


@both
def test_a_batch_has_prompts_masks_and_lists_in_random_order(build):
    collate, orders = collator(build), set()
    for _ in range(20):
        batch = collate(EXAMPLES)
        assert torch.equal(VOCABULARY.target(batch["labels"]), VOCABULARY.counts([*LISTS.values()]))
        for b, example in enumerate(EXAMPLES):
            (labels,) = VOCABULARY.decode(batch["labels"][b : b + 1])
            assert Counter(labels) == Counter(example["labels"])
            real = batch["input_ids"][b][batch["attention_mask"][b] > 0].tolist()
            if build is causal:
                assert real == example["input_ids"] + VOCABULARY.encode(labels)
                assert batch["labels"][b, len(example["input_ids"]) : len(real)].tolist() == VOCABULARY.encode(labels)
                assert (batch["labels"][b, : len(example["input_ids"])] == -100).all()
            else:
                assert real == example["input_ids"]
                fed = batch["decoder_input_ids"][b, : len(VOCABULARY.encode(labels))].tolist()
                assert fed == [PAD, *VOCABULARY.encode(labels)[:-1]]
            orders.add((b, *labels))
    assert len(orders) == 2 + 1 + 6 + 1  # all orders


@both
def test_padding_and_batching_do_not_change_the_loss_of_a_list(build):
    model, loss = build().eval(), ListLoss(VOCABULARY, causal=build is causal)
    batch = collator(build)(EXAMPLES)
    labels = batch.pop("labels")
    together = sum(loss.order_and_content(model(**batch), labels)).tolist()
    for b in range(len(EXAMPLES)):
        (order,) = VOCABULARY.decode(labels[b : b + 1])
        alone = ListCollator(VOCABULARY, pad=PAD, decoder_start=START[build])
        alone._shuffle = lambda _, order=order: order  # type: ignore[method-assign]
        single = alone([EXAMPLES[b]])
        own = single.pop("labels")
        assert sum(loss.order_and_content(model(**single), own)).item() == pytest.approx(together[b], rel=1e-4)


@both
def test_the_loss_of_a_batch_equals_the_function_on_the_tokens_of_the_lists(build):
    model, loss = build().eval(), ListLoss(VOCABULARY, causal=build is causal)
    batch = collator(build)(EXAMPLES)
    labels = batch.pop("labels")
    logits = model(**batch).logits
    shifted = (logits[:, :-1], labels[:, 1:]) if build is causal else (logits, labels)
    wanted = list_loss(
        *shifted, VOCABULARY.read(shifted[1]).starts, VOCABULARY.counts([*LISTS.values()]), VOCABULARY.tokens,
        end=END, reduction="sum",
    )  # fmt: skip
    tokens = sum(len(VOCABULARY.encode(labels)) for labels in LISTS.values())
    torch.testing.assert_close(loss(logits, labels), wanted / tokens)
    torch.testing.assert_close(loss(model(**batch), labels, num_items_in_batch=10), wanted / 10)


@pytest.mark.slow
@both
def test_a_plain_training_loop_learns_the_lists(build):
    model = build()
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_of = ListLoss(VOCABULARY, causal=build is causal)
    loader = DataLoader(EXAMPLES, batch_size=4, collate_fn=collator(build))
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1, 0, total_iters=160)
    for _ in range(160):
        for batch in loader:
            labels = batch.pop("labels")
            loss = loss_of(model(**batch), labels)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    assert exact(model.eval(), build) == [1, 1, 1, 1]
    order, content = parts(model, build)
    assert content.max() < 2
    assert order[0].item() == pytest.approx(math.log(2))
    assert order[[1, 3]].tolist() == [0, 0]  # {rye, rye} and {} have one order


def parts(model, build):
    """The parts `order` and `content` of the loss on the training lists."""
    batch = collator(build)(EXAMPLES)
    labels = batch.pop("labels")
    return ListLoss(VOCABULARY, causal=build is causal).order_and_content(model(**batch), labels)


@pytest.mark.slow
@both
def test_training_on_own_samples_lowers_the_loss(build):
    model = build()
    before = parts(model, build).content
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_of = ListLoss(VOCABULARY, causal=build is causal)
    collate = collator(build)
    for _ in range(15):
        batch = collate(EXAMPLES)
        target = VOCABULARY.target(batch["labels"])
        sampled = sample_batch(model, batch, VOCABULARY, pad=PAD, max_new_tokens=12)
        assert {*sampled} == {*batch}
        assert model.training
        for b, example in enumerate(EXAMPLES):
            given = example["input_ids"]
            assert sampled["input_ids"][b, : len(given)].tolist() == given
        labels = sampled.pop("labels")
        assert VOCABULARY.read(labels).known[labels >= 0].all()
        loss = loss_of(model(**sampled), labels, target=target)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert (parts(model, build).content < before / 2).all()


@pytest.mark.slow
@both
@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"num_beams": 3}])
def test_generated_lists_have_known_labels_for_any_weights(build, options):
    for seed in range(3):
        model = build(seed).eval()
        tokens = generate_lists(model, inputs_of(build), VOCABULARY, pad=PAD, max_new_tokens=30, **options)
        assert VOCABULARY.read(tokens).known[tokens >= 0].all()
        assert all(label in LABELS for labels in VOCABULARY.decode(tokens) for label in labels)
        free = model.generate(**inputs_of(build), max_new_tokens=30, do_sample=False, pad_token_id=PAD)
        new = free[:, inputs_of(build)["input_ids"].shape[1] if build is causal else 1 :]
        unrestricted = VOCABULARY.read(VOCABULARY.until_end(new))
        assert not unrestricted.known[new >= 0].all()


def test_allowed_tokens_keep_their_scores():
    scores = torch.randn(2, len(TOKENIZER))
    so_far = torch.tensor([[7, *VOCABULARY.encode(["rye"])[:-1]], [7, *VOCABULARY.encode(["red onion"])[:2]]])
    restricted = AllowedTokens(VOCABULARY, prompt_length=1)(so_far, scores)
    for b, allowed in enumerate(VOCABULARY.allowed(so_far[:, 1:])):
        assert restricted[b].isfinite().nonzero().flatten().tolist() == sorted(allowed)
        assert torch.equal(restricted[b, allowed], scores[b, allowed])


def test_labels_outside_the_vocabulary_are_refused():
    tokens = torch.tensor([[*TOKENIZER("rye milk\n")["input_ids"], END]])
    with pytest.raises(ValueError, match=r"labels must hold tokens of the vocabulary's labels, but token \d+ of row 0"):
        ListLoss(VOCABULARY, causal=False)(torch.zeros(*tokens.shape, len(TOKENIZER)), tokens)


def test_an_example_without_labels_is_refused():
    with pytest.raises(ValueError, match='examples must be dictionaries with "labels"'):
        ListCollator(VOCABULARY, pad=PAD)([{"input_ids": [1]}])


def trainer(model, build, examples, folder, **options):
    pytest.importorskip("accelerate", reason='Trainer needs it: pip install "torchmultiset[lm]"')
    from transformers import Trainer, TrainingArguments

    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    here = {"output_dir": str(folder), "use_cpu": True, "dataloader_pin_memory": False}
    return Trainer(
        model,
        TrainingArguments(remove_unused_columns=False, lr_scheduler_type="constant", **quiet, **here, **options),
        data_collator=collator(build),
        train_dataset=examples,
        eval_dataset=examples,
        compute_loss_func=ListLoss(VOCABULARY, causal=build is causal),
    )


@pytest.mark.slow
@both
def test_the_trainer_learns_the_lists(build, tmp_path):
    model = build()
    training = trainer(model, build, EXAMPLES, tmp_path, num_train_epochs=60, learning_rate=5e-3)
    before = training.evaluate()["eval_loss"]
    training.train()
    assert training.evaluate()["eval_loss"] < before / 5
    assert exact(model.eval(), build)[1::2] == [1, 1]


@pytest.mark.slow
def test_accumulated_batches_equal_a_single_batch(tmp_path):
    """The sum of the losses is divided by the number of tokens in all accumulated batches."""
    examples = [{"input_ids": [5] * n, "labels": ["rye"] * n} for n in (1, 2, 3, 4)]  # lists with a single order
    weights = []
    for size, number in ((4, 1), (2, 2)):
        model = causal()
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": number, "max_steps": 2}
        trainer(model, causal, examples, tmp_path, learning_rate=1e-2, **options).train()
        weights.append(model.transformer.wte.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
