"""The paper's losses are functions of plain tensors. Run it: python examples/losses.py"""

import torch

from torchmultiset import multiset
from torchmultiset.losses import distribution_matching_loss, multiset_loss, reinforce_loss, sequence_loss, stop_loss


def main() -> dict[str, float]:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5)  # (B, T, C): scores of five classes, before each of three labels is named
    named = logits.argmax(-1)  # (B, T): the labels that were named
    wanted = torch.tensor([[4, 4, 2], [0, 1, 2]])
    target = multiset.from_labels(wanted, num_classes=5)  # (B, C): how often each class is wanted
    values = {
        "multiset": multiset_loss(logits, named, target),
        "sequence": sequence_loss(logits, wanted),
        "distribution matching": distribution_matching_loss(logits, target),
        "reinforce": reinforce_loss(logits, named, target),
        "stop": stop_loss(torch.randn(2, 4), target),
    }
    for name, value in values.items():
        print(f"{name:<22} {value.item():7.3f}")
    return {name: value.item() for name, value in values.items()}


if __name__ == "__main__":
    main()
