"""Settings of a model and of its objective, as frozen dataclasses; the command line is generated from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "CountHead",
    "Divergence",
    "EncoderName",
    "ModelConfig",
    "Norm",
    "ObjectiveConfig",
    "ObjectiveName",
    "PolicyName",
    "PolicyNorm",
    "Rank",
    "Stop",
    "Strategy",
]

EncoderName: TypeAlias = Literal["auto", "conv", "mlp"]
Norm: TypeAlias = Literal["none", "batch"]
PolicyNorm: TypeAlias = Literal["none", "layer"]
PolicyName: TypeAlias = Literal["auto", "conv-lstm", "lstm", "feed-forward", "transformer"]
Stop: TypeAlias = Literal["fixed", "policy", "end"]
ObjectiveName: TypeAlias = Literal[
    "multi", "rl", "dm-l1", "dm-kl", "seq", "one-step", "counts", "hungarian", "power", "marginal"
]
CountHead: TypeAlias = Literal["cells", "table", "poisson", "regression"]
Strategy: TypeAlias = Literal["greedy", "stochastic", "oracle"]
Rank: TypeAlias = Literal["random", "random-per-batch", "area", "spatial"]
Divergence: TypeAlias = Literal["kl", "js", "tv"]


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    encoder: EncoderName = "auto"
    """What reads the input: the paper's tower for images, linear layers for vectors; auto picks by the input."""
    channels: tuple[int, ...] = (10, 10, 32)
    """Features of each convolution of the tower."""
    norm: Norm = "batch"
    """Normalisation in the tower; the paper has none."""
    units: tuple[int, ...] = (128, 128)
    """Units of the linear layers for vectors; the last also of the projection of a backbone's features."""
    policy: PolicyName = "auto"
    """What names the labels: ConvLSTM for images and LSTM for vectors, unless said otherwise."""
    hidden: int = 32
    """Channels or units of the policy's layers. Count heads on maps, slots and the power multiset have twice as many,
    in place of its four gates; other models that answer at once have none."""
    layers: int = 1
    """Number of the policy's layers; count heads on maps and slots have one more."""
    policy_norm: PolicyNorm = "layer"
    """Normalisation of a ConvLSTM's pooled features, before classifier, stop and value head; the paper has none."""
    stop: Literal["auto", Stop] = "auto"
    """How a multiset ends: at a fixed size, where a stop head says so, or with an END class. auto: fixed if all
    multisets of the training data have the same size, else policy."""
    max_size: int = 0
    """The most labels of a multiset; 0: as many as the largest of the training data has."""
    start_from: str = ""
    """A model whose weights to begin with, in place of random ones: its folder, that of its run, or the name of one
    that comes with the package. If the classes are others, only what reads the input begins with them."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is learned from."""

    objective: Literal["auto", ObjectiveName] = "auto"
    """The loss: the paper's six, and what came after it. auto: the one that suits the data."""
    strategy: Strategy = "greedy"
    """For multi: how labels are named in training."""
    rank: Rank = "random"
    """For seq: the order in which the labels of a multiset are taught."""
    divergence: Divergence = "kl"
    """For multi: from the oracle to the policy."""
    entropy_weight: float = 0.01
    """For rl: weight of the entropy bonus."""
    value_weight: float = 0.5
    """For rl: weight of the baseline's regression."""
    size_weight: float = 1.0
    """For one-step: weight of the size's regression."""
    count_head: Literal["auto", CountHead] = "auto"
    """For counts: what counts. auto: the cells of a map, or a table of counts for vectors."""
    nothing_weight: float = 0.1
    """For hungarian: weight of slots that should say nothing."""
    marginal_bound: int = 8
    """For marginal: the most labels of a multiset; each doubles the work."""
    stop_weight: float = 1.0
    """Weight of the stop loss."""
