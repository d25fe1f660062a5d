"""Settings of a training run, as frozen dataclasses; the command line is generated from them.

A setting that is None is not set: `pipeline.resolve` chooses its value from the data, with a reason. The result is a
`ResolvedConfig`, in which everything that the run needs is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from torchmultiset._checks import Settings, at_least, bounded, each_at_least
from torchmultiset.encoders.finetuned import Trainable
from torchmultiset.model.config import CHANNELS, ModelConfig, ObjectiveConfig
from torchmultiset.model.predictor import Stop
from torchmultiset.training.config import OptimConfig, ResolvedOptim

__all__ = [
    "DataConfig",
    "ResolvedConfig",
    "ResolvedData",
    "ResolvedModel",
    "RunConfig",
    "changed",
    "config_of",
    "to_dict",
]


@dataclass(frozen=True)
class DataConfig(Settings):
    """Where the examples come from, and how images are read."""

    data: str | None = None
    """Data set: a folder made by `multiset data build`, a manifest (JSONL or CSV), or a folder of images."""
    backbone: str | None = None
    """Pretrained network whose feature maps replace the images: resnet34, efficientnet-lite0, -lite1 or -lite2, the
    path of an ONNX file, or none. Features are computed once and cached. auto: one for photographs, if installed."""
    strides: tuple[int, ...] = each_at_least(1, default=(32,))
    """Strides of the backbone's map: 8, 16 or 32, or several, which are joined. Fine maps show small objects."""
    finetune: Trainable = "none"
    """Stages of the backbone that are trained with the model, from the last one down; none: features are frozen."""
    views: int = 0
    """Number of augmented views of each training image in the feature cache of a frozen backbone; see augment."""
    image_size: int | None = at_least(1, default=None)
    """Side in pixels to which your own images are resized. auto: from the sizes of the images."""
    grey: bool = False
    """Read your own images without colour: one channel instead of three."""
    classes: tuple[str, ...] | None = None
    """Class names of your own file, in the order of their indices; any other label is an error. auto: the labels of the
    file."""
    fractions: tuple[float, ...] | None = bounded(
        lambda shares: len(shares) == 3, "three numbers, for train, validation and test", default=None
    )
    """Fractions of train, validation and test if the lines of a file have no split. auto: 0.7 0.15 0.15."""
    split_seed: int = at_least(0, default=0)
    """Random seed of that split."""
    skip_unreadable: bool = False
    """Skip images and arrays that cannot be read, with a warning that lists them, instead of stopping."""
    conformal: bool = False
    """Set aside a fifth of the training examples to calibrate `multiset predict --coverage`, and use them for nothing
    else."""
    holdout: str = "validation"
    """Examples that choose the epoch: the validation split; "2/3" for part 2 of 3 of the training and validation data
    (cross-validation); or "none", which trains on both and keeps the last epoch."""


@dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of a run, as the user gives them."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = at_least(0, default=0)
    """Random seed of the weights, of the order of the examples and of all sampling."""


@dataclass(frozen=True)
class ResolvedData(DataConfig):
    """Data settings of a run, in which everything is set."""

    data: str = ""
    backbone: str = "none"
    image_size: int = 224


@dataclass(frozen=True)
class ResolvedModel(ModelConfig):
    """Network settings of a run. `policy` is None for a one-shot head, and `encoder` with a backbone."""

    channels: tuple[int, ...] = CHANNELS
    stop: Stop = "policy"
    min_size: int = 0
    max_size: int = 1


@dataclass(frozen=True)
class ResolvedConfig(RunConfig):
    """Settings of a run, in which everything is set."""

    data: ResolvedData = field(default_factory=ResolvedData)
    model: ResolvedModel = field(default_factory=ResolvedModel)
    optim: ResolvedOptim = field(default_factory=ResolvedOptim)


def to_dict(config: Any) -> dict[str, Any]:
    """Return nested settings as one flat dictionary: every name occurs once."""
    flat: dict[str, Any] = {}
    for part in fields(config):
        value = getattr(config, part.name)
        flat |= asdict(value) if is_dataclass(value) and not isinstance(value, type) else {part.name: value}
    return flat


def config_of(values: Mapping[str, Any]) -> RunConfig:
    """Build a config from flat values; the inverse of `to_dict`. Settings that are not given keep their defaults.

    Raises:
        ValueError: There is no such setting.

    Example:
        >>> config_of({"data": "pets.csv", "objective": "counts", "channels": [8, 16], "seed": 3}).model.channels
        (8, 16)
    """
    left = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    parts: dict[str, Any] = {}
    for part in fields(RunConfig):
        default = getattr(RunConfig(), part.name)
        if is_dataclass(default) and not isinstance(default, type):
            own = {each.name: left.pop(each.name) for each in fields(default) if each.name in left}
            parts[part.name] = replace(default, **own)
        elif part.name in left:
            parts[part.name] = left.pop(part.name)
    if left:
        raise ValueError(f"there is no setting {', '.join(left)}: see `multiset train --help-all`")
    return RunConfig(**parts)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the settings with some of them replaced, by flat names.

    Example:
        >>> changed(RunConfig(), {"lr": 0.1, "objective": "multi"}).optim.lr
        0.1
    """
    return config_of({**to_dict(config), **values})
