"""From pictures of digits to multisets, start to finish, in a training loop of one's own; `make demo` does the same.

Each picture shows one to four digits among clutter, and the only supervision is which digits there are, with repeats.
Nothing says how many, where, or in which order. A ConvLSTM policy learns to name them one at a time with the multiset
loss, and a stop head learns when to stop. The test pictures are made of digits that were never seen in training.

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
STEPS = LARGEST + 1  # the last slot can only stop


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
    """Predicted and true counts of all examples."""
    model.eval()
    pairs = []
    for start in range(0, len(examples), 500):
        batch = examples.batch(np.arange(start, min(start + 500, len(examples))))
        pairs.append((model.predict(batch.x), batch.target))
    counts, target = zip(*pairs, strict=True)
    return torch.cat(counts), torch.cat(target)


def report(counts: Tensor, target: Tensor, constant: Tensor, console: Console) -> float:
    table = Table(title=f"{len(target):,} test pictures of digits never seen in training")
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
    add("best constant answer", constant.expand_as(target), target)
    console.print(table)
    return exact_match(counts, target).mean().item()


def most_common(target: Tensor) -> Tensor:
    """The multiset that occurs most often: what to answer without looking."""
    rows, times = torch.unique(target, dim=0, return_counts=True)
    best: Tensor = rows[times.argmax()]
    return best


def draw(examples: Examples, counts: Tensor, target: Tensor, path: Path) -> None:
    """A picture of predictions, right and wrong ones marked, wrong ones more often than they occur."""
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
    figure.suptitle("Predicted multisets (one row of six wrong ones at the end)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(number: int = 3000, folder: Path = Path("runs/example"), tested: int = 4000) -> float:
    console = Console()
    torch.manual_seed(0)
    pools = load_digits()
    console.print(
        f"Pictures of 1 to 4 digits among clutter, made of {len(pools.train.images):,} training digits ({pools.name});"
        f" {number * BATCH:,} of them, each seen once."
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
        f"Trained in {minutes:.1f} minutes. Predictions, right and wrong: {folder / 'predictions.png'}\n"
        "Next: read examples/mnist_multi.py, and swap multiset_loss for another of torchmultiset.losses."
    )
    return em


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
