"""Order-free loss against cross-entropy for a model that writes lists: ``python -m benchmarks.lists``.

A small encoder-decoder learns from scratch to write the shopping list of a request (`benchmarks.shopping`), with the
order-free loss or with cross-entropy and the labels in one of several orders. All runs have the same network, examples,
batches, updates and learning rate schedule. Writes results/lm/shopping.json and the tables of
docs/howto/language-model.md. Runs that the record already holds are kept: delete it to start again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.document import between, table
from benchmarks.record import circumstances
from benchmarks.shopping import Request, open_shop, train_tokenizer
from torchmultiset.lm import LabelVocabulary, ListCollator, ListLoss, generate_lists, list_scores
from torchmultiset.lm._training import as_batch
from torchmultiset.viz.comparison import compare

RECORD, PAGE = Path("results/lm/shopping.json"), Path("docs/howto/language-model.md")
TRAIN, VALIDATION, TEST = 6_000, 300, 600
TOKENS, WIDTH, LAYERS, HEADS = 1_000, 64, 2, 4
UPDATES, BATCH, RATE = 1_000, 32, 3e-3
SEEDS = (0, 1, 2)
METHODS = {
    "order-free": "order-free loss, teacher in a random order",
    "sorted": "cross-entropy, alphabetical order",
    "fixed": "cross-entropy, one random order per example",
    "random": "cross-entropy, fresh random order",
    "mentioned": "cross-entropy, order of the text",
}
LONGEST = 80


class Problem:
    """Splits, tokenizer and vocabulary, the same for all runs."""

    def __init__(self) -> None:
        shop, random = open_shop(), Random(1)
        drawn: dict[str, Request] = {}
        while len(drawn) < TRAIN + VALIDATION + TEST:  # no text occurs twice
            request = shop.request(random)
            drawn[request.text] = request
        requests = [*drawn.values()]
        self.splits = {
            "train": requests[:TRAIN],
            "validation": requests[TRAIN : TRAIN + VALIDATION],
            "test": requests[TRAIN + VALIDATION :],
        }
        texts = [request.text for request in self.splits["train"]] + [f"{label}\n" for label in shop.labels]
        self.tokenizer = train_tokenizer(texts, TOKENS)
        self.vocabulary = LabelVocabulary.from_tokenizer(self.tokenizer, shop.labels)
        self.pad = self.tokenizer.pad_token_id

    def inputs(self, requests: Sequence[Request]) -> list[list[int]]:
        """Tokenise the texts."""
        tokens: list[list[int]] = self.tokenizer([request.text for request in requests])["input_ids"]
        return tokens


def build_model(problem: Problem) -> Any:
    """Build an encoder-decoder with random weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    config: Any = T5Config
    return T5ForConditionalGeneration(
        config(
            vocab_size=len(problem.tokenizer),
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=4 * WIDTH,
            num_layers=LAYERS,
            num_heads=HEADS,
            dropout_rate=0.0,
            pad_token_id=problem.pad,
            eos_token_id=problem.vocabulary.end,
            decoder_start_token_id=problem.pad,
        )
    )


def train(method: str, seed: int, problem: Problem, updates: int = UPDATES) -> dict[str, Any]:
    """Train one model and score it; return its record."""
    torch.manual_seed(seed)
    start = time.process_time()
    model: Any = build_model(problem)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, RATE, total_steps=updates, pct_start=0.1)
    examples = problem.splits["train"]
    inputs = problem.inputs(examples)
    collate = ListCollator(problem.vocabulary, pad=problem.pad, decoder_start=problem.pad)
    order_free = ListLoss(problem.vocabulary, causal=False)
    random = Random(seed)
    orders: dict[str, Callable[[Sequence[str], int], Sequence[str]]] = {
        "sorted": lambda labels, _: sorted(labels),
        "mentioned": lambda labels, _: labels,
        "fixed": lambda labels, number: Random(number).sample(labels, len(labels)),
        "random": lambda labels, _: random.sample(labels, len(labels)),
    }
    model.train()
    for _ in range(updates):
        chosen = torch.randint(len(examples), (BATCH,)).tolist()
        if method in orders:
            lists = [problem.vocabulary.encode(orders[method](examples[i].labels, i)) for i in chosen]
            batch = as_batch([inputs[i] for i in chosen], lists, pad=problem.pad, decoder_start=problem.pad)
            labels = batch.pop("labels")
            loss = cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten())
        else:
            batch = collate([{"input_ids": inputs[i], "labels": examples[i].labels} for i in chosen])
            labels = batch.pop("labels")
            loss = order_free(model(**batch), labels)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    seconds = time.process_time() - start
    scores = {split: score(model, problem, split) for split in ("validation", "test")}
    right = [*map(int, scores["test"].pop("right"))]
    scores["validation"].pop("right")
    return {
        "method": method,
        "seed": seed,
        "cpu_seconds": round(seconds, 1),
        "last_loss": round(loss.item(), 4),
        **scores,
        "right": "".join(map(str, right)),
    }


@torch.no_grad()
def score(model: Any, problem: Problem, split: str) -> dict[str, Any]:
    """Score greedy lists of known labels; split the loss with teacher forcing into order and content."""
    model.eval()
    requests = problem.splits[split]
    lists: list[list[str]] = []
    parts: list[Tensor] = []
    teacher = ListCollator(
        problem.vocabulary, pad=problem.pad, decoder_start=problem.pad, generator=torch.Generator().manual_seed(0)
    )
    order_free = ListLoss(problem.vocabulary, causal=False)
    for first in range(0, len(requests), 300):
        part = requests[first : first + 300]
        rows = [
            {"input_ids": tokens, "labels": request.labels}
            for tokens, request in zip(problem.inputs(part), part, strict=True)
        ]
        batch = teacher(rows)
        given = {key: batch[key] for key in ("input_ids", "attention_mask")}
        tokens = generate_lists(model, given, problem.vocabulary, pad=problem.pad, max_new_tokens=LONGEST)
        lists += problem.vocabulary.decode(tokens)
        labels = batch.pop("labels")
        parts.append(torch.stack(order_free.order_and_content(model(**batch), labels)))
    scores = list_scores(lists, [request.labels for request in requests])
    order, content = torch.cat(parts, 1).mean(1).tolist()
    means = {name: round(values.mean().item(), 4) for name, values in scores._asdict().items()}
    return {**means, "order": round(order, 3), "content": round(content, 3), "right": scores.exact_match.tolist()}


def document(record: Mapping[str, Any], page: str) -> str:
    """Return the page with the tables of this record."""
    runs = record["runs"]
    rows, correct = [], {}
    for method, about in METHODS.items():
        mine = [run for run in runs if run["method"] == method]
        if not mine:
            continue
        correct[method] = {run["seed"]: np.array([*map(int, run["right"])], dtype=bool) for run in mine}
        cells = [
            _mean([run[split][name] for run in mine])
            for split in ("validation", "test")
            for name in ("exact_match", "f1")
        ]
        seconds = sum(run["cpu_seconds"] for run in mine) / len(mine)
        rows.append([about, str(len(mine)), *cells, f"{seconds:.0f}"])
    header = ["loss", "seeds", "validation EM", "validation F1", "test EM", "test F1", "training, CPU s"]
    first = next(iter(METHODS))
    mine = [run["test"] for run in runs if run["method"] == first]
    order, content = (np.mean([run[part] for run in mine]) for part in ("order", "content"))
    split = f"Of the loss of the first row on a test list, {order:.2f} nats are order and {content:.2f} nats content."
    page = between(page, "lists", [*table(header, rows), "", split], record)
    tests = compare(correct[first], {name: other for name, other in correct.items() if name != first})
    compared = [
        [METHODS[test.other], str(test.wins), str(test.losses), f"{test.ahead} of {test.seeds}", f"{test.adjusted:.2g}"]
        for test in tests
    ]
    header = [f"{METHODS[first]} against", "only it right", "only the other right", "seeds ahead", "p"]
    return between(page, "lists-tests", table(header, compared))


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"


def main() -> None:
    """Train the runs that the record lacks, and write the record and the page."""
    torch.set_num_threads(1)
    problem = Problem()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {**circumstances(), "runs": []}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    record["settings"] = {
        "examples": {split: len(requests) for split, requests in problem.splits.items()},
        "labels": len(problem.vocabulary),
        "tokens": len(problem.tokenizer),
        "network": {"width": WIDTH, "layers": LAYERS, "heads": HEADS},
        "updates": UPDATES,
        "batch": BATCH,
        "learning rate": RATE,
    }
    done = {(run["method"], run["seed"]) for run in record["runs"]}
    for method, seed in product(METHODS, SEEDS):
        if (method, seed) not in done:
            run = train(method, seed, problem)
            record["runs"].append(run)
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            print({key: value for key, value in run.items() if key != "right"}, flush=True)
    PAGE.write_text(document(record, PAGE.read_text()))


if __name__ == "__main__":
    main()
