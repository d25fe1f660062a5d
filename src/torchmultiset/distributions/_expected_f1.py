"""Multisets with a high expected F1, from the distribution of the count of each class."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from torchmultiset.distributions._multisets import Belief

__all__ = ["best_by_f1"]


def best_by_f1(belief: Belief, least: int, most: int) -> Int64[Tensor, "b c"]:
    r"""Return the multiset of `least` to `most` labels with the highest expected F1, approximately, for each input.

    .. math::
        \hat{\mathcal{Y}} = \arg\max_{y} \frac{2\, \mathbb{E}\, |\mathcal{Y} \cap y|}{\mathbb{E}\, |\mathcal{Y}| + |y|},
        \qquad \mathbb{E}\, |\mathcal{Y} \cap y| = \sum_c \sum_{n=1}^{y(c)} P(\mu(c) \ge n)

    The expectation of the ratio is approximated by the ratio of expectations. The best y of each size has the most
    probable of all events :math:`\mu(c) \ge n`. Compared with the most probable multiset, it has more labels where
    many are uncertain. The empty multiset has its exact expected F1, its probability.

    Example:
        >>> from torchmultiset.distributions import IndependentCounts
        >>> belief = IndependentCounts(torch.tensor([[[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]]]).log(), least=0, most=2)
        >>> belief.best(), best_by_f1(belief, 0, 2)
        (tensor([[0, 1]]), tensor([[1, 1]]))
    """
    exactly = belief.count_probabilities()
    at_least = exactly.flip(-1).cumsum(-1).flip(-1)[..., 1:]
    events = at_least.flatten(1)
    probability, order = events.topk(most, dim=1)
    sizes = torch.arange(1, most + 1, device=events.device)
    score = 2 * probability.cumsum(1) / (events.sum(1, keepdim=True) + sizes)
    score = torch.cat([belief.size_probabilities()[:, :1], score], 1)
    size = score[:, least:].argmax(1, keepdim=True) + least
    chosen = torch.zeros_like(events, dtype=torch.int64).scatter(1, order, (sizes <= size).long())
    return chosen.view(at_least.shape).sum(-1)
