"""Settings of a whole training run, as frozen dataclasses; the command line is generated from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

from torchmultiset.encoders.pretrained import BackboneName
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.training.config import OptimConfig

__all__ = ["DataConfig", "RunConfig", "to_dict"]


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
