"""A problem that models learn in a second: predict a multiset from the sum of its items' vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.model.build import build_objective, build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig, PolicyName
from torchmultiset.model.objectives import Objective
from torchmultiset.model.outputs import SequentialOutput
from torchmultiset.model.predictor import Predictor

C, MOST = 4, 3
VECTORS = torch.randn(C, 16, generator=torch.Generator().manual_seed(7))
PLACES = torch.tensor([[60.0, 5, 9, 4], [10.0, 70, 20, 8], [5.0, 10, 6, 5], [30.0, 75, 10, 20]])
"""Box of each class (x, y, width, height); the classes in reading order are 2, 0, 1, 3, by area 3, 1, 0, 2."""


def draw(n: int, seed: int | torch.Generator = 0, *, least: int = 0, found: bool = False) -> Batch:
    """A batch of multisets of up to 3 items of 4 classes; `found` adds the boxes of the items."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    size = torch.randint(least, MOST + 1, (n, 1), generator=generator)
    padding = torch.arange(MOST) >= size
    labels = torch.randint(C, (n, MOST), generator=generator).masked_fill(padding, -1)
    target = torch.stack([(labels == c).sum(-1) for c in range(C)], -1)
    boxes = PLACES[labels.clamp(min=0)].masked_fill(padding[..., None], 0) if found else None
    areas = None if boxes is None else boxes[..., 2] * boxes[..., 3]
    return Batch(target.float() @ VECTORS, target, labels, boxes, areas)


def build(
    stop: str, name: str = "multi", *, height: float | None = 100, policy: PolicyName | None = None, **config: object
) -> tuple[Predictor, Objective]:
    torch.manual_seed(0)
    objective = ObjectiveConfig(objective=name, **config)
    model = ModelConfig(units=(64,), hidden=48, policy=policy)
    predictor = build_predictor(model, objective, shape=(16,), classes=list("abcd"), max_size=MOST, stop=stop)
    return predictor, build_objective(objective, predictor, seed=0, height=height)


def compute_loss(
    objective: Objective, predictor: Predictor, batch: Batch, seed: int = 0
) -> tuple[SequentialOutput, Tensor]:
    """The loss, and the model output that it was computed from; the scores of a head are returned as logits."""
    recorded = []

    def recording(method):
        def call(*arguments):
            recorded.append(method(*arguments))
            return recorded[-1]

        return call

    names = ("rollout", "at", "scores")
    for name in names:
        setattr(predictor, name, recording(getattr(predictor, name)))
    try:
        loss = objective.loss(predictor, batch, torch.Generator().manual_seed(seed))
    finally:
        for name in names:
            delattr(predictor, name)
    (output,) = recorded
    if isinstance(output, Tensor):
        empty = output.new_zeros(len(output), 0)
        output = SequentialOutput(output, empty[:, None], empty.long())
    return output, loss


def train(
    stop: str, name: str, *, steps: int = 120, found: bool = False, **config: object
) -> tuple[Predictor, float, Batch]:
    """Train on fresh examples; return the predictor, its loss on 1,000 test examples, and these examples."""
    predictor, objective = build(stop, name, **config)
    generator = torch.Generator().manual_seed(1)
    adam = torch.optim.Adam(predictor.parameters(), lr=1e-2, fused=True)
    # The learning rate falls to 0, so that the final weights hardly depend on how a processor rounds.
    rate = torch.optim.lr_scheduler.LinearLR(adam, 1, 0, total_iters=steps)
    least = MOST if stop == "fixed" else 0
    for _ in range(steps):
        batch = draw(128, generator, least=least, found=found)
        loss = objective.loss(predictor, batch, generator)
        adam.zero_grad()
        loss.backward()
        adam.step()
        rate.step()
    fresh = draw(1000, 12345, least=least, found=found)
    with torch.no_grad():
        return predictor, compute_loss(objective, predictor, fresh)[1].item(), fresh


def exact_match(predictor: Predictor, batch: Batch) -> float:
    return (predictor.predict(batch.x) == batch.target).all(-1).double().mean().item()
