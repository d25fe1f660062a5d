"""Use the multiset loss in a custom training loop, on a toy problem.

The input is a noisy sum of one vector per item; the target is the multiset of items.

    python examples/training_loop.py
"""

import torch
from torch import Tensor, nn

from torchmultiset import multiset
from torchmultiset.encoders import MLPEncoder
from torchmultiset.losses import multiset_loss
from torchmultiset.metrics import exact_match, f1
from torchmultiset.policies import LSTMPolicy
from torchmultiset.rollout import greedy, rollout

CLASSES, ITEMS, FEATURES = 6, 3, 16


def make_batch(size: int, generator: torch.Generator, items_as_vectors: Tensor) -> tuple[Tensor, Tensor]:
    items = torch.randint(0, CLASSES, (size, ITEMS), generator=generator)
    noise = 0.05 * torch.randn(size, FEATURES, generator=generator)
    return items_as_vectors[items].sum(1) + noise, multiset.from_labels(items, CLASSES)


def main(steps: int = 400) -> float:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    items_as_vectors = torch.randn(CLASSES, FEATURES, generator=generator)
    encoder, policy = MLPEncoder(FEATURES), LSTMPolicy(CLASSES, memory=128)
    adam = torch.optim.Adam(nn.ModuleList([encoder, policy]).parameters(), lr=2e-3)

    for step in range(steps):
        x, target = make_batch(64, generator, items_as_vectors)
        trajectory = rollout(policy, encoder(x), greedy, steps=ITEMS)
        loss = multiset_loss(trajectory.logits, trajectory.labels, target)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        if step % 100 == 99:
            print(f"step {step + 1:4d}  loss {loss.item():.3f}")

    x, target = make_batch(1000, generator, items_as_vectors)
    with torch.inference_mode():
        counts = multiset.from_labels(rollout(policy, encoder(x), greedy, steps=ITEMS).labels, CLASSES)
    em = exact_match(counts, target).mean().item()
    print(f"exact match {em:.3f}, F1 {f1(counts, target).mean().item():.3f} on 1000 new examples")
    return em


if __name__ == "__main__":
    main()
