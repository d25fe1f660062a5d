"""What a training run is made of, as frozen dataclasses; the command line is generated from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias

from torchmultiset.encoders.pretrained import BackboneName

__all__ = [
    "FEWEST_EPOCHS",
    "MOST_EPOCHS",
    "STEPS",
    "CountHead",
    "DataConfig",
    "Divergence",
    "EncoderName",
    "ModelConfig",
    "Norm",
    "ObjectiveConfig",
    "ObjectiveName",
    "OptimConfig",
    "PolicyName",
    "PolicyNorm",
    "Precision",
    "Rank",
    "RunConfig",
    "Stop",
    "Strategy",
    "to_dict",
]

STEPS = 1_200
"""About as many as a first model takes, as a rule; epochs follow from it, where they are open."""
FEWEST_EPOCHS, MOST_EPOCHS = 8, 100

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
Precision: TypeAlias = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from."""

    data: str = ""
    """A data set: a folder made by `multiset data build`, a manifest (JSONL or CSV), or a folder of images."""
    mnist_multi: Literal["none", "4", "1-4", "10", "demo"] = "none"
    """If the data folder is not there yet, build this variant of MNIST Multi in it first."""
    mnist: str = ""
    """Where the digits come from: a folder with MNIST's four files, `bundled` or `download`. Empty: as for `multiset
    data build`."""
    backbone: Literal["auto", "none", BackboneName] = "auto"
    """A frozen pretrained network whose features take the place of the images; computed once and cached. auto: one for
    photographs of your own, if it is installed."""
    image_size: int = 0
    """Pixels that the larger side of an image of your own is resized to; 0: by the sizes of the images."""
    grey: bool = False
    """Read images of your own without colour: one channel in place of three."""
    fresh: bool = False
    """For MNIST Multi: new training images in each epoch after the first, made of the same digits."""
    distort: bool = False
    """With fresh: the digits of new images are turned, scaled and moved a little, each by itself."""
    elastic: bool = False
    """With distort: they are bent, too, as if drawn on rubber."""


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


@dataclass(frozen=True)
class OptimConfig:
    """How it is learned."""

    epochs: int = 0
    """How often the training data is seen; 0: the fewer examples, the more often."""
    batch_size: int = 0
    """Examples of a step, over all devices together; 0: fewer if there are few examples."""
    lr: float = 3e-3
    """Learning rate of Adam; its peak with the one-cycle schedule."""
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    """Rise for the first tenth and then fall (one-cycle), or stay (constant, as in the paper)."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: not clipped, as in the paper."""
    augment: Literal["none", "shift", "affine"] = "none"
    """How training images are changed at each step: moved by up to a twelfth of their sides (shift), or also turned by
    up to 10 degrees and scaled by 0.9 to 1.1 (affine). What leaves the picture still counts."""

    precision: Literal["auto", Precision] = "auto"
    """Numerical precision of training, as Lightning Fabric names it. auto: bf16-mixed for images and their features on
    a processor with bfloat16 instructions, else 32-true. Predictions are always computed in single precision."""

    def settled(self, examples: int) -> OptimConfig:
        """The same with a batch size and epochs that suit the data, where they are 0.

        Few examples need small steps, and many of them: batches of 16, of 32 from 500 examples on, of 64 from 4,000 on;
        epochs that come to about 1,200 steps, but 8 at least and 100 at most.

        Args:
            examples: Number of training examples.

        Example:
            >>> OptimConfig().settled(210).epochs, OptimConfig().settled(60_000).epochs
            (91, 8)
        """
        size = self.batch_size or (16 if examples < 500 else 32 if examples < 4_000 else 64)
        epochs = self.epochs or min(max(round(STEPS * size / examples), FEWEST_EPOCHS), MOST_EPOCHS)
        return replace(self, batch_size=size, epochs=epochs)


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 0
    """Of the weights, of the order of the examples and of all sampling."""


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dataclasses as one flat dictionary: every name occurs once."""
    flat: dict[str, Any] = {}
    for part in fields(config):
        value = getattr(config, part.name)
        flat |= asdict(value) if is_dataclass(value) and not isinstance(value, type) else {part.name: value}
    return flat
