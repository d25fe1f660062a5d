"""Predict multisets of digits from images, with a custom training loop; `make demo` does the same with one command.

Each image shows one to four digits among clutter. The only supervision is the multiset of digits, without positions or
order. A ConvLSTM policy is trained with the multiset loss to emit them one at a time, and a stop head to end the
sequence. The test images contain digits that do not occur in training.

    python examples/mnist_multi.py [number of training batches]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from torchmultiset import multiset
from torchmultiset.data import Examples
from torchmultiset.data.digits import load_digits
from torchmultiset.data.mnist_multi import MnistMulti, generate, stream
from torchmultiset.encoders import ConvEncoder
from torchmultiset.heads import StopHead
from torchmultiset.losses import multiset_loss, stop_loss
from torchmultiset.metrics import exact_match, f1, precision, recall
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import greedy, rollout, until_stop

PICTURES = MnistMulti(sizes=(1, 4), digit_px=(20, 28), canvas=60, clutter=4)
CLASSES, LARGEST, BATCH = 10, 4, 64
STEPS = LARGEST + 1  # the last step is only for stopping


class Model(nn.Module):
    """Encoder, policy and stop head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = ConvEncoder(norm="batch")
        memory = self.encoder.memory_shape(PICTURES.canvas, PICTURES.canvas)
        self.policy = ConvLSTMPolicy(CLASSES, memory, layers=1, norm="layer")
        self.stop = StopHead(self.policy.features)

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        logits, features, labels = rollout(self.policy, self.encoder(x), greedy, STEPS)
        return multiset_loss(logits, labels, target) + stop_loss(self.stop(features), target)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Tensor:
        trajectory = rollout(self.policy, self.encoder(x), greedy, STEPS)
        return multiset.from_labels(trajectory.labels, CLASSES, where=until_stop(self.stop(trajectory.features)))


def train(model: Model, batches: Iterator[tuple[Tensor, Tensor]], number: int, console: Console) -> None:
    adam = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=5e-3, total_steps=number)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=number)
        for done in range(1, number + 1):
            loss = model.loss(*next(batches))
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
            progress.advance(task)
            if done % 20 == 0:
                progress.update(task, description=f"training, loss {loss.item():6.3f}")


def evaluate(model: Model, examples: Examples) -> tuple[Tensor, Tensor]:
    """Return predicted and true counts (N, C) of all examples."""
    model.eval()
    pairs = []
    for start in range(0, len(examples), 500):
        batch = examples.batch(np.arange(start, min(start + 500, len(examples))))
        pairs.append((model.predict(batch.x), batch.target))
    counts, target = zip(*pairs, strict=True)
    return torch.cat(counts), torch.cat(target)


def report(counts: Tensor, target: Tensor, constant: Tensor, console: Console) -> float:
    table = Table(title=f"{len(target):,} test images of digits not seen in training")
    for column in ("", "exact match", "precision", "recall", "F1"):
        table.add_column(column, justify="right")

    def add(name: str, predicted: Tensor, true: Tensor) -> None:
        table.add_row(
            name, *[f"{metric(predicted, true).mean():.3f}" for metric in (exact_match, precision, recall, f1)]
        )

    add("multiset loss", counts, target)
    size = multiset.cardinality(target)
    for n in range(1, LARGEST + 1):
        add(f"{n} digit{'s' if n > 1 else ''}", counts[size == n], target[size == n])
    add("majority baseline", constant.expand_as(target), target)
    console.print(table)
    return exact_match(counts, target).mean().item()


def most_common(target: Tensor) -> Tensor:
    """Return the most frequent multiset (C,), the prediction of the majority baseline."""
    rows, times = torch.unique(target, dim=0, return_counts=True)
    best: Tensor = rows[times.argmax()]
    return best


def draw(examples: Examples, counts: Tensor, target: Tensor, path: Path) -> None:
    """Draw 18 correct and 6 wrong predictions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    right = multiset.equal(counts, target)
    chosen = torch.cat([right.nonzero()[:18, 0], (~right).nonzero()[:6, 0]]).tolist()
    figure, axes = plt.subplots(3, 8, figsize=(12, 5.6), layout="constrained")
    pixels = examples.batch(chosen).x[:, 0].numpy()

    def text(row: Tensor) -> str:
        return " ".join(str(label) for label in multiset.to_labels(row[None])[0].tolist()) or "none"

    for axis, i, picture in zip(axes.flat, chosen, pixels, strict=False):
        axis.imshow(picture, cmap="gray")
        colour = "tab:green" if right[i] else "tab:red"
        axis.set_title(text(counts[i]) if right[i] else f"{text(counts[i])}\nnot {text(target[i])}", color=colour)
        axis.patch.set(edgecolor=colour, linewidth=4)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.suptitle("Predicted multisets; the last six are wrong")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(number: int = 3000, folder: Path = Path("runs/example"), tested: int = 4000) -> float:
    console = Console()
    torch.manual_seed(0)
    pools = load_digits()
    console.print(
        f"Training on {number * BATCH:,} images of 1 to 4 digits among clutter, each seen once, generated from"
        f" {len(pools.train.images):,} digits ({pools.name})."
    )
    model = Model()
    start = time.perf_counter()
    batches = ((batch.x, batch.target) for batch in stream(PICTURES, pools.train, BATCH))
    train(model, batches, number, console)
    minutes = (time.perf_counter() - start) / 60
    constant = most_common(torch.from_numpy(generate(PICTURES, pools.train, "train", range(10_000)).counts))
    examples = generate(PICTURES, pools.test, "test", range(tested))
    counts, target = evaluate(model, examples)
    em = report(counts, target, constant, console)
    draw(examples, counts, target, folder / "predictions.png")
    console.print(
        f"Trained in {minutes:.1f} minutes. Correct and wrong predictions: {folder / 'predictions.png'}\n"
        "Next: read examples/mnist_multi.py, and replace multiset_loss with another loss of torchmultiset.losses."
    )
    return em


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
