"""Concatenation of training inputs of varying length: two texts, sets or sequences with the labels of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int, Int64

from torchmultiset._checks import check
from torchmultiset.data.examples import Examples, Inputs
from torchmultiset.data.tokens import LONGEST

__all__ = ["joined_epochs"]


def joined_epochs(
    examples: Examples, probability: float, *, max_size: int, seed: int, epochs: int | None = None
) -> Callable[[int], Examples]:
    """Return a function that returns the training examples of an epoch, some of them concatenated with another one.

    The counts of a joined input are the sum of both, so a model sees each label in more contexts. This suits inputs
    whose parts contribute independently to the counts. The partner is drawn from the examples with which the total is
    at most `max_size` labels; an example without such a partner is unchanged, and so is one that would be longer than
    `data.tokens.LONGEST`. A joined text keeps the start symbols of both texts. Every epoch has the same number of
    examples, and resumed runs see the same ones.

    Args:
        examples: Training examples, inputs of varying length; texts without other columns.
        probability: Probability that an example is joined with another one.
        max_size: Maximum number of labels of a joined example.
        seed: Random seed.
        epochs: Number of epochs with joined examples; later epochs have the original examples, because joined ones
            have more labels than the inputs at prediction time. None: all.

    Example:
        >>> from torchmultiset.data.tokens import TokenText
        >>> examples = Examples(TokenText(["a", "bb"]), np.array([[0, -1], [1, 1]]), ("a", "b"), tokens="text")
        >>> epochs = joined_epochs(examples, 1.0, max_size=3, seed=0)
        >>> epochs(0).counts.sum(1), epochs(0).lengths
        (array([3, 3]), array([5, 5]))
    """
    check(0 <= probability <= 1, "probability", "a probability", probability)
    lengths = examples.lengths
    check(lengths is not None, "examples", "inputs of varying length", examples.tokens)
    assert lengths is not None
    sizes = (examples.labels >= 0).sum(1)
    by_size = sizes.argsort(kind="stable")
    fitting = np.searchsorted(sizes[by_size], max_size - sizes, side="right")  # number of possible partners

    def epoch_examples(epoch: int) -> Examples:
        if epochs is not None and epoch >= epochs:
            return examples
        rng = np.random.default_rng([seed, epoch, len(examples)])
        partner = by_size[(rng.random(len(sizes)) * fitting).astype(np.int64)]
        joined = (rng.random(len(sizes)) < probability) & (fitting > 0) & (lengths + lengths[partner] <= LONGEST + 1)
        here, swapped = np.arange(len(sizes)), joined & (rng.random(len(sizes)) < 0.5)
        first = np.where(swapped, partner, here)
        second = np.where(joined, np.where(swapped, here, partner), -1)
        both = np.concatenate([examples.labels[first], np.where(joined[:, None], examples.labels[second], -1)], 1)
        labels = np.take_along_axis(both, (both < 0).argsort(1, kind="stable"), 1)  # padding comes last
        inputs = _Joined(examples.inputs, lengths, first, second)
        return replace(examples, inputs=inputs, labels=labels[:, : max(max_size, 1)], ids=None, boxes=None, areas=None)

    return epoch_examples


@dataclass(frozen=True, eq=False)
class _Joined:
    """`Inputs`, each of which is one input or two concatenated inputs."""

    inputs: Inputs
    each: Int64[np.ndarray, " k"]
    """Lengths of the inputs."""
    first: Int64[np.ndarray, " n"]
    second: Int64[np.ndarray, " n"]
    """Index of the input that follows the first; -1: none."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Number of positions (N,) of each input."""
        after = np.where(self.second >= 0, self.each[self.second], 0)
        return np.asarray(self.each[self.first] + after, dtype=np.int64)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Float32[np.ndarray, "b n k"]:
        first, second = self.first[indices], self.second[indices]
        begin = np.asarray(self.inputs[first])
        rows = np.flatnonzero(second >= 0)
        if not len(rows):
            return begin
        end = np.asarray(self.inputs[second[rows]])
        starts, numbers = self.each[first[rows]], self.each[second[rows]]
        longest = max(begin.shape[1], int((starts + numbers).max()))
        batch = np.zeros((len(begin), longest, begin.shape[2]), dtype=np.float32)
        batch[:, : begin.shape[1]] = begin
        for row, start, number, values in zip(rows, starts, numbers, end, strict=True):
            batch[row, start : start + number] = values[:number]
        return batch
