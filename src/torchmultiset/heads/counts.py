"""Count heads: independent counts of the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import dropout2d

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import Memory, MemorySpec, Tokens, drop_channels, places
from torchmultiset._pooling import PoolKind
from torchmultiset.distributions import CellJoint, IndependentCounts, cell_log_probabilities, poisson_binomial
from torchmultiset.heads._base import OneShotHead, PooledHead, without_autocast
from torchmultiset.heads._sizes import SizePotential, as_row, check_built_for, check_range, size_scores_for
from torchmultiset.heads.one_step import nearest_counts, round_counts
from torchmultiset.multiset import cardinality

__all__ = ["CellCounts", "CountTable", "GaussianCounts", "PoissonCounts", "RegressedCounts"]

_NOTHING = 20
"""Initial odds of "nothing" against all classes together."""


@recorded
class CellCounts(OneShotHead):
    r"""Each position of a map predicts a class or "nothing"; a class is counted by the positions that predict it.

    .. math::
        N_c = \sum_{n} \mathbb{1}[\text{position } n \text{ predicts } c], \qquad
        p(\mathcal{Y} \mid x) \propto \prod_c P(N_c = \mu(c))

    :math:`N_c` is Poisson binomial, and its distribution is computed exactly. With a size potential s,
    :math:`e^{s(|\mathcal{Y}|)}` is one more factor. A few convolutions come first, so that
    neighbouring positions can agree on which one predicts a shared object. For `losses.cell_count_loss`.

    Args:
        num_classes: Number of classes, C.
        memory: Number of features D of the memory, a map (B, D, h, w); or `Tokens` (B, N, D), with ``kernel=1``.
        hidden: Channels of each convolution.
        layers: Number of convolutions before the scores.
        kernel: Kernel size of the convolutions.
        norm: ``"batch"`` applies batch normalisation after each convolution; None does not.
        dropout: Dropout probability of the memory's channels.
        sizes: Sizes of the smallest and of the largest multiset that can occur. If given, training normalises the
            likelihood over these sizes, as predictions always do; None: it does not.
        size_potential: Learn a log-weight for each size; requires `sizes`.
        size_head: Learn log-weights that depend on the input, linear in the pooled memory, instead. The positions then
            need not predict the size, which they learn poorly from images of one object.
        joint_states: If above 0, the classes compete for the positions: the likelihood in training
            (`losses.cell_joint_loss`) and predictions (`distributions.CellJoint`) are those of whole multisets, for
            sizes whose multisets all have at most this many sub-multisets. For larger sizes, and with 0, counts of
            different classes are independent.

    Example:
        >>> head = CellCounts(num_classes=10, memory=32)
        >>> scores = head(torch.rand(2, 32, 9, 9))
        >>> scores.shape, head.believe(scores, 0, 4).count_probabilities().shape
        (torch.Size([2, 81, 11]), torch.Size([2, 10, 5]))
    """

    count_loss = "cells"

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        hidden: int = 64,
        layers: int = 2,
        kernel: int = 3,
        norm: Literal["batch"] | None = None,
        dropout: float = 0.0,
        sizes: tuple[int, int] | None = None,
        size_potential: bool = False,
        size_head: bool = False,
        joint_states: int = 0,
    ) -> None:
        super().__init__()
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 0, "layers", "at least 0", layers)
        check(kernel % 2 == 1, "kernel", "an odd number", kernel)
        check_one_of("norm", norm, (None, "batch"))
        check(joint_states >= 0, "joint_states", "at least 0", joint_states)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        self.num_classes = num_classes
        self.memory = memory
        self.kernel = kernel
        self.norm = norm
        self.dropout = dropout
        self.joint_states = joint_states
        widths = [memory, *[hidden] * layers]
        self.convs = nn.Sequential(
            *(part for a, b in pairwise(widths) for part in _convolution(a, b, kernel, norm)),
            nn.Conv2d(widths[-1], num_classes + 1, 1),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.sizes, self.size_scores = sizes, size_scores_for(sizes, size_potential and not size_head)
        check(sizes is not None or not size_head, "sizes", "given with size_head=True, such as (1, 4)", sizes)
        self.size_head = SizePotential(memory, sizes[1]) if sizes is not None and size_head else None
        # Most positions of most images are "nothing"; learning this would take hundreds of steps.
        last = self.convs[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.constant_(last.bias[-1:], math.log(_NOTHING * num_classes))

    @classmethod
    def for_memory(
        cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int, sizes: tuple[int, int]
    ) -> CellCounts:
        """Create a head for a memory from the settings of a model.

        They are `hidden`, `layers`, `norm`, `dropout`, `size_potential`, `size_head` and `joint_states`.
        """
        others, cells = "'table', 'poisson' or 'regression'", memory.positions
        check(cells != 1, "count_head", f"{others} for vectors", "cells")
        few = f"{others} for multisets of up to {sizes[1]} labels: a map of {cells} cells cannot count as many"
        check(memory.tokens or cells >= sizes[1], "count_head", few, "cells")
        # Twice the channels and one more layer compensate for the four gates of a ConvLSTM. Tokens have no
        # neighbourhood, and batch statistics would depend on the padding.
        norm: Literal["batch"] | None = None if settings["norm"] == "none" or memory.tokens else "batch"
        return cls(
            num_classes,
            memory.features,
            hidden=2 * settings["hidden"],
            layers=settings["layers"] + 1,
            kernel=1 if memory.tokens else 3,
            norm=norm,
            sizes=sizes,
            **{name: settings[name] for name in ("dropout", "size_potential", "size_head", "joint_states")},
        )

    def forward(self, memory: Memory) -> Float[Tensor, "b n k"]:
        """Compute scores (B, N, C + 1) of the N positions; the last class is "nothing", which padding predicts.

        With a size head, rows with the scores of the sizes follow; see `split`.
        """
        scores = self._of_tokens(memory) if isinstance(memory, Tokens) else self._of_map(memory)
        return scores if self.size_head is None else self.size_head.append(scores, memory)

    def split(self, scores: Float[Tensor, "b n k"]) -> tuple[Float[Tensor, "b p k"], Float[Tensor, "#b m"] | None]:
        """Separate the scores of the positions from the size potential, (B, M + 1), (1, M + 1) or None."""
        return (scores, as_row(self.size_scores)) if self.size_head is None else self.size_head.split(scores)

    def _of_map(self, memory: Float[Tensor, "b d *places"]) -> Float[Tensor, "b n k"]:
        check(memory.ndim == 4, "memory", f"a map of shape (B, {self.memory}, h, w), not a vector", memory)
        scores: Tensor = self.convs(dropout2d(memory, self.dropout, self.training))
        return scores.flatten(2).transpose(1, 2)

    def _of_tokens(self, memory: Tokens) -> Float[Tensor, "b n k"]:
        pointwise = "1 for tokens (and norm None): larger kernels and batch statistics would mix in padding"
        check(self.kernel == 1 and self.norm is None, "kernel", pointwise, self.kernel)
        tokens = drop_channels(places(memory, self.memory), self.dropout, training=self.training)
        scores: Tensor = self.convs(tokens.values.transpose(1, 2)[..., None]).squeeze(-1).transpose(1, 2)
        if tokens.mask is None:
            return scores
        nothing = torch.full_like(scores[:1, :1], torch.finfo(scores.dtype).min)
        nothing[..., -1] = 0
        return torch.where(tokens.mask[..., None], scores, nothing)

    def counted_places(self, scores: Float[Tensor, "b n k"]) -> Float[Tensor, "b p c"]:
        """Return the probability that each position predicts each class, and not "nothing"."""
        return self.split(scores)[0].softmax(-1)[..., :-1]

    def believe(self, scores: Float[Tensor, "b n k"], least: int, most: int) -> IndependentCounts | CellJoint:
        """Return the distribution of the number of positions that predict each class."""
        check_built_for(self.sizes, least, most)
        scores, size_scores = self.split(scores)
        if self.joint_states:
            return CellJoint(scores, least, most, self.joint_states, size_scores)
        counts = poisson_binomial(*cell_log_probabilities(scores), most)
        return IndependentCounts(counts, least, most, size_scores)


@recorded
class CountTable(PooledHead):
    r"""A softmax over the counts 0 to M of each class, from the pooled memory.

    .. math:: p(\mathcal{Y} \mid x) \propto e^{s(|\mathcal{Y}|)} \prod_c \operatorname{softmax}(x_c)_{\mu(c)}

    The size potential s is 0 unless it is learned. For `losses.count_table_loss`. The other arguments are those of
    `PooledHead`.

    Args:
        most: Largest count, M.
        sizes: Sizes of the smallest and of the largest multiset that can occur. If given, training normalises the
            likelihood over these sizes, as predictions always do; None: it does not.
        size_potential: Learn a log-weight for each size; requires `sizes`.

    Example:
        >>> CountTable(num_classes=10, memory=32, most=4)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 5])
    """

    count_loss = "table"
    reads = ("pool", "dropout", "size_potential", "sizes", "most")

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        most: int,
        pool: PoolKind = "mean",
        hidden: int | None = None,
        dropout: float = 0.0,
        sizes: tuple[int, int] | None = None,
        size_potential: bool = False,
    ) -> None:
        super().__init__(num_classes, memory, pool=pool, hidden=hidden, dropout=dropout)
        check(most >= 1, "most", "at least 1", most)
        check(sizes is None or sizes[1] == most, "sizes", f"None or up to most = {most}", sizes)
        self.most = most
        self.sizes, self.size_scores = sizes, size_scores_for(sizes, size_potential)
        self.classifier = nn.Linear(self.pooled.width, num_classes * (most + 1))

    def forward(self, memory: Memory) -> Float[Tensor, "b c m"]:
        """Compute scores (B, C, M + 1) of each count of each class."""
        scores: Tensor = self.classifier(self.pooled(memory))
        return scores.view(-1, self.num_classes, self.most + 1)

    def believe(self, scores: Float[Tensor, "b c m"], least: int, most: int) -> IndependentCounts:
        """Return the softmax distribution of each class."""
        check(most == self.most, "most", f"{self.most}, the value the head was built with", most)
        check_built_for(self.sizes, least, most)
        return IndependentCounts(scores.double().log_softmax(-1), least, most, as_row(self.size_scores))


class GaussianCounts(CountTable):
    r"""A normal distribution around a real number for each class, restricted to the counts 0 to M.

    .. math:: p(N_c = n \mid x) \propto \exp(-s_c (n - r_c(x))^2)

    The number :math:`r_c` is linear in the pooled memory, and :math:`s_c` is one weight per class. With ``pool="sum"``
    it is a sum of contributions of the positions, which suits inputs whose parts each add some labels, such as the
    syllables of a chemical name. For `losses.count_table_loss`. The arguments are those of `CountTable`.

    Example:
        >>> GaussianCounts(num_classes=10, memory=32, most=4)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 5])
    """

    def __init__(self, num_classes: int, memory: int, **options: Any) -> None:
        super().__init__(num_classes, memory, **options)
        self.classifier = nn.Linear(self.pooled.width, num_classes)
        nn.init.zeros_(self.classifier.bias)  # most counts are 0
        self.log_sharpness = nn.Parameter(torch.ones(num_classes))

    def forward(self, memory: Memory) -> Float[Tensor, "b c m"]:
        """Compute scores (B, C, M + 1) of each count of each class."""
        numbers = without_autocast(self.classifier, self.pooled(memory))
        counts = torch.arange(self.most + 1, dtype=numbers.dtype, device=numbers.device)
        scores: Tensor = -self.log_sharpness.exp()[:, None] * (counts - numbers[..., None]) ** 2
        return scores


class _NumberForEach(PooledHead):
    """Base class of the heads with one number for each class, linear in the pooled memory."""

    def __init__(self, num_classes: int, memory: int, **pooling: Any) -> None:
        super().__init__(num_classes, memory, **pooling)
        self.classifier = nn.Linear(self.pooled.width, num_classes)

    def forward(self, memory: Memory) -> Float[Tensor, "b c 1"]:
        """Compute numbers (B, C, 1), one for each class."""
        return without_autocast(self.classifier, self.pooled(memory))[..., None]


@recorded
class PoissonCounts(_NumberForEach):
    """A Poisson distribution for each class; the scores are logarithms of the rates.

    They are computed from the pooled memory. For `losses.poisson_count_loss`. The other arguments are those of
    `PooledHead`.

    Args:
        sizes: Sizes of the smallest and of the largest multiset that can occur. If given, training normalises the
            likelihood over these sizes, as predictions always do, and the expected counts are those of these sizes;
            None: it does not, and they are the rates.

    Example:
        >>> PoissonCounts(num_classes=10, memory=32)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 1])
    """

    count_loss = "poisson"
    reads = ("pool", "dropout", "sizes")

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        pool: PoolKind = "mean",
        hidden: int | None = None,
        dropout: float = 0.0,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(num_classes, memory, pool=pool, hidden=hidden, dropout=dropout)
        check_range(sizes)
        self.sizes = sizes

    def believe(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> IndependentCounts:
        """Return the Poisson distributions, unnormalised and truncated at `most`."""
        check_built_for(self.sizes, least, most)
        return IndependentCounts(_poisson_weights(scores.double(), 0, most), least, most)

    def counts(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """Return the multiset that is nearest to the expected counts.

        The most probable counts would often be one too low: with 2 expected, 1 is as probable as 2. Without `sizes`,
        the expected counts are those of any size; where they round to one that cannot be predicted, the most probable
        counts are returned.
        """
        if self.sizes is not None:
            return nearest_counts(self._expected_counts(scores), least, most)
        nearest = round_counts(scores.squeeze(-1).exp().clamp(max=most + 1))
        size = cardinality(nearest)[:, None]
        return torch.where((size >= least) & (size <= most), nearest, super().counts(scores, least, most))

    def _expected_counts(self, scores: Float[Tensor, "b c 1"]) -> Float64[Tensor, "b c"]:
        """Compute the expected counts given the sizes: the classes share the expected size by their rates."""
        assert self.sizes is not None
        log_rates = scores.squeeze(-1).double()
        least, most = self.sizes
        log_sizes = _poisson_weights(log_rates.logsumexp(-1, keepdim=True), least, most)
        size = torch.arange(least, most + 1, dtype=torch.float64, device=scores.device)
        return log_rates.softmax(-1) * (log_sizes.softmax(-1) @ size)[:, None]


class RegressedCounts(_NumberForEach):
    """The count of each class as a real number, to be rounded: the paper's un-normalised variant (section 3.2).

    It assigns no probabilities to multisets. For `losses.count_regression_loss`. Arguments as for `PooledHead`.

    Example:
        >>> RegressedCounts(num_classes=10, memory=32)(torch.rand(2, 32)).shape
        torch.Size([2, 10, 1])
    """

    probabilistic = False
    count_loss = "regression"

    def counts(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Int64[Tensor, "b c"]:
        """Return the nearest counts of `least` to `most` labels in total."""
        return nearest_counts(scores.squeeze(-1), least, most)

    def probabilities(self, scores: Float[Tensor, "b c 1"], least: int, most: int) -> Float[Tensor, "b 1 c"]:  # noqa: ARG002
        """Return the frequency of each class among the labels, in place of probabilities."""
        numbers = scores.clamp(min=0).transpose(1, 2)
        return numbers / numbers.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def _poisson_weights(log_rates: Float64[Tensor, "*b 1"], least: int, most: int) -> Float64[Tensor, "*b n"]:
    """Return Poisson log-probabilities of `least` to `most`, without the factor e^-rate, which could underflow."""
    n = torch.arange(least, most + 1, dtype=torch.float64, device=log_rates.device)
    # Constants instead of `torch.lgamma`, which ONNX does not have.
    log_factorials = n.new_tensor([math.lgamma(k + 1) for k in range(least, most + 1)])
    return n * log_rates - log_factorials


def _convolution(inputs: int, outputs: int, kernel: int, norm: str | None) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm is None)
    return [conv, nn.ReLU()] if norm is None else [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
