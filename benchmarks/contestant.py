"""One contestant of the training benchmark, in its own process.

``python -m benchmarks.contestant '{"name": "torchmultiset", "steps": 4, ...}'``, see `Contest`. Each line on standard
input is a number of steps to run; the process replies on standard output with the seconds they took.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.losses import loop_over_steps
from benchmarks.textbook import GateByGate, JointGates, PlainTower
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.data import Examples
from torchmultiset.encoders import ConvEncoder
from torchmultiset.losses import multiset_loss
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import from_labels
from torchmultiset.pipeline.run import share_cores
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import Trajectory, greedy, rollout
from torchmultiset.training.evaluation import evaluate

OURS, PLAIN = "torchmultiset", {"joint gates": JointGates, "gate by gate": GateByGate}
BATCH, CLASSES, SIDE = 64, 10, 100
SHAPES = [(4, 1), (10, 1), (4, 2), (10, 2)]
"""Pairs of steps and layers that are measured."""
EVALUATED = inspect.signature(evaluate).parameters["batch_size"].default


@dataclass(frozen=True)
class Contest:
    """Implementation and task of one contestant."""

    name: str
    """`OURS`, or one of `PLAIN`."""
    steps: int
    layers: int
    train: bool = True
    """Whether to measure training (forward, backward, Adam) or prediction."""
    batch: int = BATCH
    """Examples per step, over all processes."""
    processes: int = 1
    threads: int = 2
    """Threads per process."""
    keep_memory: bool = True
    """Whether our implementation keeps freed memory, as the `multiset` command does."""
    compiled: bool = False
    """Whether the model is compiled with `torch.compile`."""
    port: int = 0
    """Port of the process group."""


class Model(nn.Module):
    """Tower, ConvLSTM and rollout in one forward pass, as distributed training requires."""

    def __init__(self, encoder: nn.Module, policy: Any, steps: int) -> None:
        super().__init__()
        self.encoder, self.policy, self.steps = encoder, policy, steps

    def forward(self, images: Tensor) -> Trajectory:
        return rollout(self.policy, self.encoder(images), greedy, self.steps)


def make(contest: Contest) -> Callable[[], object]:
    """Return a function that runs one step in this process, on its part of the batch."""
    torch.set_num_threads(contest.threads)
    torch.manual_seed(0)
    ours = contest.name == OURS
    encoder = ConvEncoder()
    policy = ConvLSTMPolicy(CLASSES, encoder.memory_shape(SIDE, SIDE), layers=contest.layers)
    model: nn.Module = (
        Model(encoder, policy, contest.steps)
        if ours
        else Model(PlainTower(encoder), PLAIN[contest.name](policy), contest.steps)
    )
    if contest.compiled:
        model.compile()
    if ours and contest.keep_memory:
        keep_freed_memory()
    if contest.processes > 1:
        share_cores(int(os.environ["RANK"]), contest.processes)
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    count = contest.batch // contest.processes
    images = torch.randint(0, 256, (count, 1, SIDE, SIDE), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (count, contest.steps))
    if not contest.train:
        return _predict(model, images, labels, ours=ours)
    target = from_labels(labels, CLASSES)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=ours)
    loss = multiset_loss if ours else loop_over_steps

    def train() -> None:
        trajectory = model(images if ours else images / 255)
        adam.zero_grad()
        loss(trajectory.logits, trajectory.labels, target).backward()  # type: ignore[no-untyped-call]
        adam.step()

    return train


def _predict(model: nn.Module, images: Tensor, labels: Tensor, *, ours: bool) -> Callable[[], object]:
    """Return a function that predicts all images: ours with `evaluate`, the plain ones batch by batch."""
    if ours:
        assert isinstance(model, Model)
        classes = tuple(map(str, range(CLASSES)))
        predictor = Predictor(model.encoder, model.policy, classes, max_size=model.steps, stop="fixed")
        examples = Examples(images.numpy(), labels.numpy(), classes)
        return lambda: evaluate(predictor, examples)

    @torch.inference_mode()
    def predict() -> None:
        for start in range(0, len(images), EVALUATED):
            batch = images[start : start + EVALUATED]
            from_labels(model(batch / 255).labels, CLASSES)

    return predict


def main() -> None:
    contest = Contest(**json.loads(sys.argv[1]))
    step = make(contest)
    for _ in range(3):
        step()
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - start, flush=True)
    os._exit(0)  # skip gloo's shutdown, which waits for the other processes


if __name__ == "__main__":
    main()
