"""Compute the paper's losses, which are functions of plain tensors: python examples/losses.py"""

import torch

from torchmultiset import multiset
from torchmultiset.losses import distribution_matching_loss, multiset_loss, reinforce_loss, sequence_loss, stop_loss


def main() -> dict[str, float]:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5)  # (B, T, C): scores of five classes at each of three steps
    emitted = logits.argmax(-1)  # (B, T): the emitted labels
    labels = torch.tensor([[4, 4, 2], [0, 1, 2]])  # (B, T): the true labels
    target = multiset.from_labels(labels, num_classes=5)  # (B, C): the true count of each class
    values = {
        "multiset": multiset_loss(logits, emitted, target),
        "sequence": sequence_loss(logits, labels),
        "distribution matching": distribution_matching_loss(logits, target),
        "reinforce": reinforce_loss(logits, emitted, target),
        "stop": stop_loss(torch.randn(2, 4), target),
    }
    for name, value in values.items():
        print(f"{name:<22} {value.item():7.3f}")
    return {name: value.item() for name, value in values.items()}


if __name__ == "__main__":
    main()
