"""Settings of a training run, as frozen dataclasses; the command line is generated from them.

A setting that is None is not set: `pipeline.resolve` chooses its value from the data, with a reason, or a candidate of
the portfolio does; values that the user has set are kept. The result is a `ResolvedConfig`, in which everything that
the run needs is set; its defaults are the values of settings that nothing else has chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torchmultiset._checks import Settings, at_least, bounded, check, each_at_least
from torchmultiset.encoders.finetuned import Trainable
from torchmultiset.model.config import ModelConfig, ObjectiveConfig, ResolvedModel
from torchmultiset.training.config import OptimConfig, ResolvedOptim

__all__ = [
    "DataConfig",
    "ResolvedConfig",
    "ResolvedData",
    "RunConfig",
    "changed",
    "completed",
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
    strides: tuple[int, ...] | None = each_at_least(1, default=None)
    """Strides of the backbone's map: 8, 16 or 32, or several, which are joined. Smaller strides resolve smaller
    objects. auto: 32."""
    finetune: Trainable | None = None
    """Stages of the backbone that are trained with the model, from the last one down; none: features are frozen. auto:
    none; if several models are compared, one of them may have a trained backbone."""
    views: int | None = None
    """Number of augmented views of each training image in the feature cache of a frozen backbone; see augment. auto:
    0."""
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
    """Examples used to select the epoch: the validation split; "2/3" for part 2 of 3 of the training and validation
    data (cross-validation); or "none", which trains on both and keeps the last epoch."""


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
    strides: tuple[int, ...] = (32,)
    finetune: Trainable = "none"
    views: int = 0
    image_size: int = 224


@dataclass(frozen=True)
class ResolvedConfig(RunConfig):
    """Settings of a run, in which everything is set."""

    data: ResolvedData = field(default_factory=ResolvedData)
    model: ResolvedModel = field(default_factory=ResolvedModel)
    optim: ResolvedOptim = field(default_factory=ResolvedOptim)


_PARTS: Mapping[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "objective": ObjectiveConfig,
    "optim": OptimConfig,
}


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Return nested settings as one flat dictionary: every name occurs once."""
    parts = asdict(config)
    return {name: value for part in _PARTS for name, value in parts[part].items()} | {"seed": config.seed}


def config_of(values: Mapping[str, Any]) -> RunConfig:
    """Build a config from flat values; the inverse of `to_dict`. Settings that are not given keep their defaults.

    Raises:
        ValueError: There is no such setting.

    Example:
        >>> config_of({"data": "pets.csv", "objective": "counts", "channels": [8, 16], "seed": 3}).model.channels
        (8, 16)
    """
    left: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    parts = {
        name: part(**{each.name: left.pop(each.name) for each in fields(part) if each.name in left})
        for name, part in _PARTS.items()
    }
    seed = left.pop("seed", 0)
    if left:
        raise ValueError(f"there is no setting {', '.join(left)}: see `multiset train --help-all`")
    return RunConfig(**parts, seed=seed)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the settings with some of them replaced, by flat names.

    Example:
        >>> changed(RunConfig(), {"lr": 0.1, "objective": "multi"}).optim.lr
        0.1
    """
    return config_of({**to_dict(config), **values})


_NEEDS = {"views": "augment", "mosaic": "augment", "augment": "views"}
"""Settings of candidates that have no effect, or are refused, if the user has turned another one of them off."""


def completed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the settings with those of `values` that are not set yet, by flat names.

    Args:
        config: Settings, which are kept.
        values: Values of settings that may be None.

    Example:
        >>> both = completed(RunConfig(optim=OptimConfig(lr=3e-3)), {"lr": 0.1, "objective": "multi"})
        >>> both.optim.lr, both.objective.objective
        (0.003, 'multi')
    """
    given, defaults = to_dict(config), to_dict(RunConfig())
    off = {name for name in values if given[name] in (0, "none")}
    added = {name: value for name, value in values.items() if given[name] is None and _NEEDS.get(name) not in off}
    for name, value in values.items():
        check(defaults[name] is None, "values", f"without {name}, which is never unset", value)
    return config_of(given | added)
