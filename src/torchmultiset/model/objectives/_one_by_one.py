"""Objectives for policies, which name one label after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check_one_of
from torchmultiset.data import Batch
from torchmultiset.data.ranks import area_rank, class_permutation, random_rank, spatial_rank
from torchmultiset.losses import (
    distribution_matching_loss,
    marginal_loss,
    multiset_loss,
    parts_of,
    reinforce_loss,
    sequence_loss,
    stop_loss,
)
from torchmultiset.model.config import Divergence, Rank, Strategy
from torchmultiset.model.objectives._plan import Plan
from torchmultiset.model.predictor import Output
from torchmultiset.multiset import cardinality
from torchmultiset.rollout import Choose, append_end, follow_oracle, forced, greedy, sample

__all__ = [
    "DistributionMatchingObjective",
    "MarginalObjective",
    "MultisetObjective",
    "ReinforceObjective",
    "SequenceObjective",
]


@dataclass(frozen=True)
class MultisetObjective:
    """The multiset loss, along the policy's own labels, sampled ones, or the oracle's.

    Args:
        strategy: Who names the labels.
        divergence: From the oracle to the policy.
        end: Whether the policy has an END class.
        stop_weight: Of the stop loss, if the predictor has a stop head.
    """

    strategy: Strategy = "greedy"
    divergence: Divergence = "kl"
    end: bool = False
    stop_weight: float = 1.0

    def __post_init__(self) -> None:
        check_one_of("strategy", self.strategy, get_args(Strategy))

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:
        """What to do with this batch."""
        target = batch.target
        choose = _strategy(self.strategy, target, generator, end=self.end)

        def loss(output: Output) -> Tensor:
            return multiset_loss(output.logits, output.labels, target, divergence=self.divergence, end=self.end)

        return _with_stop(choose, loss, target, self.stop_weight)


@dataclass(frozen=True)
class ReinforceObjective:
    """REINFORCE along sampled labels, with a learned baseline if the predictor has one."""

    entropy_weight: float = 0.01
    value_weight: float = 0.5
    end: bool = False
    stop_weight: float = 1.0

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:
        """What to do with this batch."""
        target = batch.target

        def loss(output: Output) -> Tensor:
            return reinforce_loss(
                output.logits,
                output.labels,
                target,
                output.value,
                entropy_weight=self.entropy_weight,
                value_weight=self.value_weight,
                end=self.end,
            )

        return _with_stop(sample(generator), loss, target, self.stop_weight)


@dataclass(frozen=True)
class DistributionMatchingObjective:
    """Aggregated distribution matching along sampled labels."""

    divergence: Literal["kl", "l1"] | float = "kl"
    stop_weight: float = 1.0

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:
        """What to do with this batch."""
        target = batch.target

        def loss(output: Output) -> Tensor:
            return distribution_matching_loss(output.logits, target, divergence=self.divergence)

        return _with_stop(sample(generator), loss, target, self.stop_weight)


class SequenceObjective:
    """The sequence loss along the target in the order of a rank function.

    Args:
        num_classes: C.
        rank: ``"random"`` is one permutation of the classes, drawn from `seed` and kept.
        seed: For ``"random"``.
        bands: For ``"spatial"``: in how many bands a picture is read.
        height: For ``"spatial"``: height of the pictures in pixels; None if the inputs are those pictures. A
            backbone's features are not: their boxes are still those of the pictures.
        end: Whether END comes after the last label.
        stop_weight: Of the stop loss, if the predictor has a stop head.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rank: Rank = "random",
        seed: int = 0,
        bands: int = 4,
        height: int | float | None = None,
        end: bool = False,
        stop_weight: float = 1.0,
    ) -> None:
        check_one_of("rank", rank, get_args(Rank))
        self.num_classes = num_classes
        self.rank = rank
        self.bands = bands
        self.height = height
        self.end = end
        self.stop_weight = stop_weight
        self.permutation = class_permutation(num_classes, torch.Generator().manual_seed(seed))

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:
        """What to do with this batch."""
        labels = self.order(batch, generator)
        sequence = append_end(labels, self.num_classes) if self.end else labels

        def loss(output: Output) -> Tensor:
            steps = output.logits.shape[1]
            _check_sizes(labels, max_size=steps - (self.end or output.stop is not None))
            padding = (0, max(steps - sequence.shape[1], 0))
            return sequence_loss(output.logits, pad(sequence[:, :steps], padding, value=-1))

        teacher = forced(sequence)

        def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:
            # After the last label any will do: no loss counts it.
            return teacher(t, logits, named) if t < sequence.shape[1] else torch.zeros_like(named[:, 0])

        return _with_stop(choose, loss, batch.target, self.stop_weight)

    def order(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """The target's labels (B, M) in the order of the rank function, padded with -1."""
        if self.rank in ("random", "random-per-batch"):
            once = self.rank == "random"
            permutation = self.permutation if once else class_permutation(self.num_classes, generator)
            return random_rank(batch.labels, permutation.to(batch.labels.device))
        if self.rank == "area":
            if batch.areas is None:
                raise ValueError("rank 'area' needs areas, which this data has not; use 'random'")
            return area_rank(batch.labels, batch.areas)
        if batch.boxes is None:
            raise ValueError("rank 'spatial' needs boxes, which this data has not; use 'random'")
        if self.height is None and batch.x.ndim != 4:
            raise ValueError("rank 'spatial' needs the height of the pictures if the inputs are none: give `height`")
        height = batch.x.shape[-2] if self.height is None else self.height
        return spatial_rank(batch.labels, batch.boxes, bands=self.bands, height=float(height))


@dataclass(frozen=True)
class MarginalObjective:
    """The exact likelihood of the multiset, over all orders: for policies that see only counts.

    Args:
        bound: The most labels of a multiset. Each doubles the states that the policy is asked in.
        end: Whether the policy has an END class.
        max_size: Size of the largest multiset that the predictor names, after which it always stops.
    """

    bound: int = 8
    end: bool = False
    max_size: int | None = None

    def __call__(self, batch: Batch, generator: torch.Generator) -> Plan:  # noqa: ARG002
        """What to do with this batch."""
        target = batch.target
        self.check_size(int(cardinality(target).max()))

        def loss(output: Output) -> Tensor:
            return marginal_loss(output.logits, target, output.stop, end=self.end, max_size=self.max_size)

        parts = parts_of(target)
        return Plan(greedy, loss, at=pad(parts, (0, 1)) if self.end else parts)

    def check_size(self, largest: int) -> None:
        """Raise a ValueError if a multiset of so many labels is too large."""
        if largest > self.bound:
            raise ValueError(
                f"objective 'marginal' goes through all {2**largest:,} parts of a multiset of {largest} labels, and the"
                f" most are {self.bound} labels (marginal_bound): raise the bound, or take objective 'multi'"
            )


def _strategy(name: Strategy, target: Tensor, generator: torch.Generator, *, end: bool = False) -> Choose:
    if name == "oracle":
        return follow_oracle(target, generator, end=end)
    return sample(generator) if name == "stochastic" else greedy


def _with_stop(choose: Choose, loss: Callable[[Output], Tensor], target: Tensor, weight: float) -> Plan:
    """A plan that adds the loss of stopping where there is a stop head."""

    def both(output: Output) -> Tensor:
        named = loss(output)
        return named if output.stop is None else named + weight * stop_loss(output.stop, target)

    return Plan(choose, both)


def _check_sizes(labels: Tensor, max_size: int) -> None:
    beyond = labels[:, max_size:] >= 0
    if beyond.numel() and beyond.any():
        largest = max_size + int(beyond.sum(-1).max())
        raise ValueError(
            f"a multiset of this batch has {largest} labels, but the predictor is made for {max_size} at most: give it"
            " a larger max_size"
        )
