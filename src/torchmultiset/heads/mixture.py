"""A mixture of count tables: counts of different classes depend on each other through the component."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._arguments import recorded
from torchmultiset._checks import check
from torchmultiset._memory import Memory
from torchmultiset._pooling import PoolKind
from torchmultiset.distributions import IndependentCounts, MixtureBelief
from torchmultiset.heads._base import PooledHead
from torchmultiset.heads._sizes import as_row, check_built_for, size_scores_for

__all__ = ["CountMixture"]


@recorded
class CountMixture(PooledHead):
    r"""K tables of counts with a gate, from the pooled memory: counts of different classes are dependent.

    .. math::
        p(\mathcal{Y} \mid x) = \sum_{k=1}^{K} g_k(x)\, p_k(\mathcal{Y} \mid x), \qquad
        p_k(\mathcal{Y} \mid x) \propto e^{s(|\mathcal{Y}|)} \prod_c \operatorname{softmax}(x_{kc})_{\mu(c)}

    Each component is a `CountTable`, normalised over the sizes that can occur; the size potential s is shared. For
    `losses.count_mixture_loss`. It has K times the weights of a table and needs more training examples. The other
    arguments are those of `PooledHead`.

    Args:
        sizes: Sizes of the smallest and of the largest multiset that can occur; M is the latter.
        components: Number of components, K.
        size_potential: Learn a log-weight for each size.

    Example:
        >>> import torch
        >>> head = CountMixture(num_classes=10, memory=32, sizes=(1, 4), components=3)
        >>> scores = head(torch.rand(2, 32))
        >>> scores.shape, head.believe(scores, 1, 4).count_probabilities().shape
        (torch.Size([2, 3, 51]), torch.Size([2, 10, 5]))

    Reference:
        Li, Wang, Pavlu and Aslam, "Conditional Bernoulli Mixtures for Multi-label Classification", ICML 2016; here with
        counts in place of presence.
    """

    count_loss = "mixture"
    reads = ("pool", "dropout", "size_potential", "sizes")

    def __init__(
        self,
        num_classes: int,
        memory: int,
        *,
        sizes: tuple[int, int],
        components: int = 4,
        size_potential: bool = False,
        pool: PoolKind = "mean",
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_classes, memory, pool=pool, hidden=hidden, dropout=dropout)
        check(components >= 1, "components", "at least 1", components)
        check(sizes[1] >= 1, "sizes", "up to at least 1 label", sizes)
        self.components = components
        self.most = sizes[1]
        self.sizes, self.size_scores = sizes, size_scores_for(sizes, size_potential)
        self.classifier = nn.Linear(self.pooled.width, components * (num_classes * (self.most + 1) + 1))

    def forward(self, memory: Memory) -> Float[Tensor, "b k s"]:
        """Compute scores (B, K, C (M + 1) + 1): the table of each component, and the score of its gate."""
        scores: Tensor = self.classifier(self.pooled(memory))
        return scores.view(-1, self.components, self.num_classes * (self.most + 1) + 1)

    def split(self, scores: Float[Tensor, "b k s"]) -> tuple[Float[Tensor, "b k c m"], Float[Tensor, "b k"]]:
        """Split scores into tables (B, K, C, M + 1) and scores of the gate (B, K)."""
        tables = scores[..., :-1].reshape(-1, self.components, self.num_classes, self.most + 1)
        return tables, scores[..., -1]

    def believe(self, scores: Float[Tensor, "b k s"], least: int, most: int) -> MixtureBelief:
        """Return the mixture of the distributions of its components."""
        check_built_for(self.sizes, least, most)
        tables, gates = self.split(scores)
        of_size = as_row(self.size_scores)
        return MixtureBelief(
            gates,
            [IndependentCounts(each, least, most, of_size) for each in tables.double().log_softmax(-1).unbind(1)],
        )
