"""Scores of generated lists as multisets of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchmultiset._checks import check
from torchmultiset.metrics import exact_match, f1, precision, recall
from torchmultiset.multiset import from_labels

__all__ = ["ListScores", "list_scores", "split_list"]


class ListScores(NamedTuple):
    """Scores of each list."""

    exact_match: Float[Tensor, " b"]
    precision: Float[Tensor, " b"]
    recall: Float[Tensor, " b"]
    f1: Float[Tensor, " b"]


def list_scores(
    predicted: Sequence[Sequence[str]],
    target: Sequence[Sequence[str]],
    *,
    ignore_case: bool = False,
    ignore_spaces: bool = False,
) -> ListScores:
    """Score lists of strings as multisets: the order is ignored, repetitions count.

    Args:
        predicted: Generated labels of each example.
        target: True labels of each example.
        ignore_case: Treat "Rye" and "rye" as equal.
        ignore_spaces: Treat " rye  bread" and "rye bread" as equal: strip labels and collapse spaces within them.

    Returns:
        Exact match, precision, recall and F1 of each example (B,), as `torchmultiset.metrics` defines them.

    Example:
        >>> scores = list_scores([["rye", "Milk ", "rye"]], [["milk", "rye"]], ignore_case=True, ignore_spaces=True)
        >>> scores.precision, scores.recall
        (tensor([0.6667]), tensor([1.]))
    """
    check(len(predicted) == len(target), "predicted", f"{len(target)} lists, one for each target", len(predicted))
    for name, lists in (("predicted", predicted), ("target", target)):
        check(not any(isinstance(x, str) for x in lists), name, "lists of labels; see split_list for texts", lists)

    def tidy(label: str) -> str:
        label = label.casefold() if ignore_case else label
        return " ".join(label.split()) if ignore_spaces else label

    numbers: dict[str, int] = {}
    rows = [[[numbers.setdefault(tidy(label), len(numbers)) for label in x] for x in y] for y in (predicted, target)]
    counts = [from_labels(lists, max(len(numbers), 1)) for lists in rows]
    return ListScores(*(score(*counts) for score in (exact_match, precision, recall, f1)))


def split_list(text: str, separator: str = "\n") -> list[str]:
    r"""Split a generated text into labels; empty ones are left out.

    Example:
        >>> split_list("rye\nmilk\nrye\n")
        ['rye', 'milk', 'rye']
    """
    return [label for label in text.split(separator) if label.strip()]
