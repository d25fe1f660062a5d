"""Count heads: how often each class occurs, each with a distribution of its own.

| head              | for                 | the count of a class is                              |
| ----------------- | ------------------- | ---------------------------------------------------- |
| `CellCounts`      | maps (B, D, h, w)   | Poisson-binomial: how many places of the map say so  |
| `CountTable`      | vectors, maps       | any distribution over 0 to M                         |
| `PoissonCounts`   | vectors, maps       | Poisson                                              |
| `RegressedCounts` | vectors, maps       | a real number, to be rounded (section 3.2)           |
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import places
from torchmultiset.distributions import IndependentCounts, cell_log_probabilities, poisson_binomial
from torchmultiset.heads._base import OneShotHead
from torchmultiset.heads.one_step import round_counts
from torchmultiset.multiset import cardinality

__all__ = ["CellCounts", "CountTable", "PoissonCounts", "RegressedCounts"]

_NOTHING = 20
"""How much more probable "nothing" is than all classes together, to begin with."""


@recorded
class CellCounts(OneShotHead):
    r"""Each place of a map says "class c" or "nothing"; the count of a class is how many places say it.

    .. math::
        N_c = \sum_{n} \mathbb{1}[\text{place } n \text{ says } c], \qquad
        p(\mathcal{Y} \mid x) \propto \prod_c P(N_c = \mu(c))

    :math:`N_c` is Poisson-binomial, and its distribution is computed exactly. A few convolutions come first, so that
    neighbours can agree on who speaks for an object that they all see. For `losses.cell_count_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D, a map (B, D, h, w).
        hidden: Channels of each convolution.
        layers: Number of convolutions before the scores.
        kernel: Size of the convolutions.
        norm: ``"batch"`` normalises what they give over the batch; None does not.

    Example:
        >>> head = CellCounts(num_classes=10, memory=32)
        >>> scores = head(torch.rand(2, 32, 9, 9))
        >>> scores.shape, head.believe(scores, 0, 4).count_probabilities().shape
        (torch.Size([2, 81, 11]), torch.Size([2, 10, 5]))
    """

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        hidden: int = 64,
        layers: int = 2,
        kernel: int = 3,
        norm: Literal["batch"] | None = None,
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 0, "layers", "at least 0", layers)
        check(kernel % 2 == 1, "kernel", "an odd number", kernel)
        check_one_of("norm", norm, (None, "batch"))
        self.num_classes = num_classes
        self.memory = memory
        widths = [memory, *[hidden] * layers]
        self.convs = nn.Sequential(
            *(part for a, b in pairwise(widths) for part in _convolution(a, b, kernel, norm)),
            nn.Conv2d(widths[-1], num_classes + 1, 1),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Most places of most pictures have nothing to say, and learning that first takes hundreds of steps.
        last = self.convs[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.constant_(last.bias[-1:], math.log(_NOTHING * num_classes))

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b n k"]:
        """Scores (B, N, C + 1) of each of the N places; the last class is "nothing"."""
        check(memory.ndim == 4, "memory", f"a map (B, {self.memory}, h, w): a vector has no places", memory)
        scores: Tensor = self.convs(memory)
        return scores.flatten(2).transpose(1, 2)

    def believe(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> IndependentCounts:
        """How many places say each class."""
        return IndependentCounts(poisson_binomial(*cell_log_probabilities(scores), most), least, most)


@recorded
class CountTable(OneShotHead):
    """For each class a softmax over the counts 0 to M, from the memory's mean over its places.

    For `losses.count_table_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).
        most: M, the largest count.

    Example:
        >>> CountTable(num_classes=10, memory=32, most=4)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 5])
    """

    def __init__(self, num_classes: int, memory: int, *, most: int) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(most >= 1, "most", "at least 1", most)
        self.num_classes = num_classes
        self.memory = memory
        self.most = most
        self.classifier = nn.Linear(memory, num_classes * (most + 1))

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b c m"]:
        """Scores (B, C, M + 1) of each count of each class."""
        scores: Tensor = self.classifier(places(memory, self.memory).mean(1))
        return scores.view(-1, self.num_classes, self.most + 1)

    def believe(self, scores: Float[Tensor, "b c m"], least: int, most: int) -> IndependentCounts:
        """The softmax of each class."""
        check(most == self.most, "most", f"{self.most}, as the head was made for", most)
        return IndependentCounts(scores.double().log_softmax(-1), least, most)


class _NumberForEach(OneShotHead):
    """One number for each class, from the memory's mean over its places."""

    def __init__(self, num_classes: int, memory: int) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        self.num_classes = num_classes
        self.memory = memory
        self.classifier = nn.Linear(memory, num_classes)

    def forward(self, memory: Float[Tensor, "b d *hw"]) -> Float[Tensor, "b c 1"]:
        """Numbers (B, C, 1), one for each class."""
        rates: Tensor = self.classifier(places(memory, self.memory).mean(1))
        return rates[..., None]


@recorded
class PoissonCounts(_NumberForEach):
    """For each class a Poisson distribution; the scores are logarithms of the expected counts.

    From the memory's mean over its places. For `losses.poisson_count_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).

    Example:
        >>> PoissonCounts(num_classes=10, memory=32)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 1])
    """

    def believe(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> IndependentCounts:
        """Poisson distributions, up to `most`."""
        log_rate = scores.double()
        n = torch.arange(most + 1, dtype=torch.float64, device=scores.device)
        return IndependentCounts(n * log_rate - log_rate.exp() - torch.lgamma(n + 1), least, most)

    def counts(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """The counts nearest to the expected ones; where they make a size that cannot be, the most probable ones.

        The most probable count alone would be one too few half of the time: with 2 expected, 1 is as probable as 2.
        """
        nearest = round_counts(scores.squeeze(-1).exp().clamp(max=most + 1))
        size = cardinality(nearest)[:, None]
        return torch.where((size >= least) & (size <= most), nearest, super().counts(scores, least, most))


@recorded
class RegressedCounts(_NumberForEach):
    """The count of each class as a real number, to be rounded: the paper's un-normalised variant (section 3.2).

    It gives no probabilities. For `losses.count_regression_loss`.

    Args:
        num_classes: C.
        memory: Features of the memory, D: of a vector (B, D) or of a map (B, D, h, w).

    Example:
        >>> RegressedCounts(num_classes=10, memory=32)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 1])
    """

    probabilistic = False

    def counts(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Int64[Tensor, "b c"]:  # noqa: ARG002
        """The nearest counts."""
        return round_counts(scores.squeeze(-1))

    def probabilities(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Float[Tensor, "b 1 c"]:  # noqa: ARG002
        """There are none: the share of each class among the labels."""
        numbers = scores.clamp(min=0).transpose(1, 2)
        return numbers / numbers.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def _convolution(inputs: int, outputs: int, kernel: int, norm: str | None) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm is None)
    return [conv, *[nn.BatchNorm2d(outputs)] * (norm is not None), nn.ReLU()]
