"""Likelihood of a multiset under a policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import at_least
from torchmultiset.data import Batch
from torchmultiset.losses import marginal_estimate_loss, marginal_loss, parts_of
from torchmultiset.model.objectives._base import Objective
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import cardinality
from torchmultiset.rollout import sample_order

__all__ = ["MarginalObjective"]


@dataclass(frozen=True)
class MarginalObjective(Objective):
    """Negative log-likelihood of the multiset, summed over all orders of its labels.

    It is exact for multisets of up to `marginal_bound` labels, and estimated for larger ones from `marginal_orders`
    orders sampled from the policy.
    """

    counts_only = True

    marginal_bound: int = at_least(1, default=8)
    """Maximum size of a multiset for the exact likelihood; each additional label doubles the cost."""
    marginal_orders: int = at_least(1, default=16)
    """Number of sampled orders from which the likelihood of a larger multiset is estimated."""

    def loss(self, predictor: Predictor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Evaluate the policy after every sub-multiset of a small target, and along sampled orders of a large one."""
        small = cardinality(batch.target) <= self.marginal_bound
        if bool(small.all()):
            return self._exact(predictor, batch.x, batch.target)
        if not bool(small.any()):
            return self._estimate(predictor, batch.x, batch.target, generator)
        exact = self._exact(predictor, batch.x[small], batch.target[small])
        estimate = self._estimate(predictor, batch.x[~small], batch.target[~small], generator)
        share = small.to(exact.dtype).mean()
        return share * exact + (1 - share) * estimate

    def _exact(self, predictor: Predictor, x: Tensor, target: Tensor) -> Tensor:
        parts = parts_of(target)
        output = predictor.at(x, pad(parts, (0, 1)) if predictor.end else parts)
        return marginal_loss(output.logits, target, output.stop, end=predictor.end, max_size=predictor.max_size)

    def _estimate(self, predictor: Predictor, x: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        n = self.marginal_orders
        choose = sample_order(target.repeat_interleave(n, 0), generator)
        output = predictor.rollout(x, choose, repeats=n)
        logits, labels = (part.view(len(target), n, *part.shape[1:]) for part in (output.logits, output.labels))
        stop = None if output.stop is None else output.stop.view(len(target), n, -1)
        return marginal_estimate_loss(logits, labels, target, stop, end=predictor.end, max_size=predictor.max_size)
