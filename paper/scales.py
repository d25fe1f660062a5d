"""The four scales of the experiments, as data.

All have the same cells, from the same presets and recipes as `multiset train`. A scale changes data, epochs and seeds,
and no setting of a single loss, except for the learning rate at the scale `full`: there each loss has the best of the
same three, chosen by short runs on validation data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from paper.beyond import FULL_RATE, rate_method
from paper.tables import DataSetName, TableName
from torchmultiset.data import coco
from torchmultiset.data.mnist_multi import VARIANTS, MnistMulti
from torchmultiset.pipeline.presets import PresetName, RecipeName

__all__ = ["RATES_OF", "SCALES", "DataSet", "Scale", "ScaleName"]

ScaleName: TypeAlias = Literal["smoke", "small", "full", "paper"]

RATES_OF: Mapping[DataSetName, Mapping[str, float]] = {
    "mnist-multi-4": {"multi": 0.006, "rl": 0.003, "dm-l1": 0.006, "dm-kl": 0.006, "seq": 0.006, "one-step": 0.006},
    "mnist-multi-10": {"multi": 0.006},
}
"""The learning rate of each loss at scale `full`: the best of the table `rates`, by exact match on validation data, or
by F1 where no exact match is above a tenth. MNIST Multi (1-4), and (10) where it has no short runs of its own, use
those of (4)."""

# Besides training, a run evaluates validation and test data, forward only, and starts a process.
_FORWARD = 3
_START_SECONDS = 15


@dataclass(frozen=True)
class DataSet:
    """One of the data sets at one scale."""

    path: str
    """Path in the folder of the data."""
    train: int
    validation: int
    test: int
    images_per_second: int
    """Assumed speed of training on two CPU cores, until it is measured; 0 if unknown."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings on top of preset and recipe; the same for all losses."""
    digits: MnistMulti | None = None
    """Parameters of the images, if it is MNIST Multi."""
    tested: MnistMulti | None = None
    """Parameters of the test images, if they differ from the others."""
    rare: tuple[int, ...] = ()
    """Digits that are rare in the training data."""
    preset: PresetName | None = None
    """Preset with its settings, if the name differs."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rate of each loss, where each has its own: the best of its short runs."""
    short: Mapping[str, Any] = field(default_factory=dict)
    """Settings of these short runs that replace those of `values`."""

    def seconds(self, epochs: int) -> float | None:
        """Return the expected duration of a run at the assumed speed; None if that is unknown."""
        if not self.images_per_second:
            return None
        evaluated = self.validation * (epochs + 1) + 2 * self.test
        return (self.train * epochs + evaluated / _FORWARD) / self.images_per_second + _START_SECONDS

    def rule(self, name: DataSetName) -> dict[str, Any]:
        """Return how the data set is made, as its records store it: parameters of digits, or rules of COCO."""
        if self.digits is None:
            made: dict[str, Any] = asdict(coco.VARIANTS[name])
        else:
            made = {**asdict(self.digits), "tested": self.tested and asdict(self.tested), "rare": self.rare}
        plain: dict[str, Any] = json.loads(json.dumps(made))
        return plain


@dataclass(frozen=True)
class Scale:
    """One of the scales."""

    about: str
    recipe: RecipeName
    data: Mapping[DataSetName, DataSet]
    coco: Literal["synthetic", "subset", "2014"]
    """Photographs: drawn ones, the COCO subset of docs/coco.md, or train2014 and val2014."""
    all_digits: bool
    """Whether all 70,000 digits of MNIST are needed, or the 5,000 bundled ones."""
    coco_seeds: Mapping[TableName, int]
    """Number of seeds of a cell of COCO, by table; tables that are not listed are not run on COCO."""
    digit_seeds: Mapping[TableName, Mapping[str, int]] = field(
        default_factory=lambda: {table: {} for table in _ON_DIGITS}
    )
    """Table -> method -> number of seeds on MNIST Multi: one if the method is not listed. Tables that are not
    listed are not run on MNIST Multi."""


def _digits(path: str, images_per_second: int, digits: MnistMulti, values: Mapping[str, Any], **more: Any) -> DataSet:
    sizes = digits.train, digits.validation, digits.test
    return DataSet(path, *sizes, images_per_second, values, digits, **more)


def _mnist(name: str, images_per_second: int, **values: Any) -> DataSet:
    """Return the paper's own data set, with a second test set of training digits."""
    return _digits(f"mnist-multi-{name}", images_per_second, replace(VARIANTS[name], seen=10_000), values)


def _full(name: str, images_per_second: int, *, epochs: int) -> DataSet:
    """Return the paper's own data set, with one layer of ConvLSTM (section 5.2)."""
    plan = _mnist(name, images_per_second, epochs=epochs, layers=1)
    own = RATES_OF["mnist-multi-10"] if name == "10" else {}
    return replace(plan, short={"epochs": 1}, rates={**RATES_OF["mnist-multi-4"], **own})


def _longer(plan: DataSet, preset: PresetName, epochs: int) -> DataSet:
    """Return the same data set with more epochs."""
    return replace(plan, values={**plan.values, "epochs": epochs}, preset=preset)


def _tiny(name: str, **different: Any) -> DataSet:
    digits = MnistMulti(**{"canvas": 60, "clutter": 4, "digit_px": (20, 28), **_TINY_SIZES, **different})
    return _digits(f"smoke/mnist-multi-{name}", 250, digits, _TINY_VALUES)


def _larger(path: str, images_per_second: int, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> DataSet:
    """Return images with one to four digits for training and one to eight for testing, on the same canvas."""
    learned = MnistMulti(sizes=(1, 4), canvas=80, clutter=4, digit_px=(20, 26), **sizes)
    tested, values = replace(learned, sizes=(1, 8)), {**values, "max_size": 8}
    return _digits(path, images_per_second, learned, values, tested=tested, preset="mnist-multi-1-4")


def _on_60(path: str, images_per_second: int, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> DataSet:
    """Return images with one to four digits on the demo's small canvas."""
    digits = MnistMulti(sizes=(1, 4), canvas=60, clutter=4, digit_px=(20, 28), **sizes)
    return _digits(path, images_per_second, digits, values, preset="mnist-multi-1-4")


def _rare(path: str, images_per_second: int, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> DataSet:
    """Return images in which half of the digits are rare in the training data, but not in the test data."""
    return replace(_on_60(path, images_per_second, sizes, values), rare=(5, 6, 7, 8, 9))


# All tables except those that only the scale `full` has: short runs, and the run with the recipe `paper`.
_ON_DIGITS: tuple[TableName, ...] = (
    *("table-1", "table-2", "table-3", "entropy", "beyond", "variations", "policy"),
    *("longer", "larger", "rare", "training"),
)
# Half of the recipe's channels: three times as fast, so that losses that learn slowly get enough steps.
_SMALL_COCO = {"hidden": 64, "units": (64,)}
_SUBSET_EASY = DataSet("coco-subset-easy.jsonl", 780, 138, 310, 600, {"epochs": 30, **_SMALL_COCO})
_SUBSET_MEDIUM = DataSet("coco-subset-medium.jsonl", 3350, 591, 1290, 300, {"epochs": 20, **_SMALL_COCO})
# Settings of the runs at scale small, which are older than these options.
_PLAIN = {"policy_norm": "none", "precision": "32-true"}
_SMALL = {"layers": 1, "lr": 3e-3, **_PLAIN}
_TINY_SIZES = {"train": 128, "validation": 32, "test": 48}
_TINY_VALUES = {"epochs": 3, "batch_size": 16, "layers": 1, "hidden": 16}
_TINY_1_4 = _tiny("1-4", sizes=(1, 4))
_SMALL_SIZES = {"train": 20_000, "validation": 2_000, "test": 8_000}
_TINY_COCO = {"epochs": 3, "batch_size": 8, "image_size": 64, "hidden": 16, "units": (16,)}

SCALES: Mapping[ScaleName, Scale] = {
    "smoke": Scale(
        "seconds for each cell: tiny data sets, to check that everything works",
        "fast",
        {
            "mnist-multi-4": _tiny("4"),
            "mnist-multi-1-4": _TINY_1_4,
            "mnist-multi-10": _tiny("10", sizes=(10, 10), digit_px=(14, 14)),
            "coco-easy": DataSet("smoke/coco-easy.jsonl", 34, 6, 20, 150, _TINY_COCO),
            "coco-medium": DataSet("smoke/coco-medium.jsonl", 68, 12, 40, 150, _TINY_COCO),
            "mnist-multi-1-4-longer": _longer(_TINY_1_4, "mnist-multi-1-4", 4),
            "mnist-multi-larger": _larger("smoke/mnist-multi-larger", 250, _TINY_SIZES, _TINY_VALUES),
            "mnist-multi-rare": _rare("smoke/mnist-multi-rare", 250, _TINY_SIZES, _TINY_VALUES),
            "mnist-multi-60": _on_60("smoke/mnist-multi-60", 250, _TINY_SIZES, _TINY_VALUES),
        },
        coco="synthetic",
        all_digits=False,
        coco_seeds={"table-1": 1, "table-2": 2, "table-3": 1, "beyond": 1, "variations": 1, "training": 1},
    ),
    "small": Scale(
        "six hours on two CPU cores for the paper's tables: its digits for a few epochs, and the COCO subset",
        "fast",
        {
            "mnist-multi-4": _mnist("4", 560, epochs=4, **_SMALL),
            "mnist-multi-1-4": _mnist("1-4", 560, epochs=4, **_SMALL),
            "mnist-multi-10": _mnist("10", 350, epochs=4, **_SMALL),
            "coco-easy": replace(_SUBSET_EASY, values={**_SUBSET_EASY.values, **_PLAIN}),
            "coco-medium": replace(_SUBSET_MEDIUM, values={**_SUBSET_MEDIUM.values, **_PLAIN}),
            "mnist-multi-1-4-longer": _longer(_mnist("1-4", 560, **_SMALL), "mnist-multi-1-4", 10),
            "mnist-multi-larger": _larger("mnist-multi-larger", 600, _SMALL_SIZES, {"epochs": 6, **_SMALL}),
            "mnist-multi-rare": _rare("mnist-multi-rare", 1200, _SMALL_SIZES, {"epochs": 6, **_SMALL}),
            "mnist-multi-60": _on_60("mnist-multi-60", 1200, _SMALL_SIZES, {"epochs": 6, **_SMALL}),
        },
        coco="subset",
        all_digits=True,
        coco_seeds={"table-1": 3, "table-2": 5, "table-3": 3, "beyond": 3, "variations": 3, "training": 3},
    ),
    "full": Scale(
        "a day on two CPU cores: all of the paper's digits for 12 to 18 epochs, and the COCO subset",
        "fast",
        {
            "mnist-multi-4": _full("4", 520, epochs=12),
            "mnist-multi-1-4": _full("1-4", 480, epochs=12),
            "mnist-multi-10": _full("10", 380, epochs=18),
            "coco-easy": replace(_SUBSET_EASY, short={"epochs": 30}),
            "coco-medium": replace(_SUBSET_MEDIUM, short={"epochs": 10}),
        },
        coco="subset",
        all_digits=True,
        coco_seeds={"table-1": 5, "table-2": 5, "table-3": 5, "beyond": 5, "rates": 1},
        digit_seeds={
            "table-1": {},
            "table-3": {"multi": 3},
            "entropy": {"multi": 3},
            "rates": {},
            "trials": {},
            "precision": {rate_method("multi", FULL_RATE): 3, "multi-float32": 3},
            "recipe": {},
        },
    ),
    "paper": Scale(
        "the paper's setting: 200 or 350 epochs, COCO 2014 at 600 px with ResNet-34; for machines with GPUs",
        "paper",
        {
            "mnist-multi-4": _mnist("4", 0),
            "mnist-multi-1-4": _mnist("1-4", 0),
            "mnist-multi-10": _mnist("10", 0),
            "coco-easy": DataSet("coco-easy.jsonl", 8_696, 1_534, 5_107, 0),
            "coco-medium": DataSet("coco-medium.jsonl", 37_503, 6_618, 21_944, 0),
            "mnist-multi-1-4-longer": _longer(_mnist("1-4", 0), "mnist-multi-1-4", 400),
            "mnist-multi-larger": _larger("mnist-multi-larger-paper", 0, {}, {}),
            "mnist-multi-rare": _rare("mnist-multi-rare-paper", 0, {}, {}),
            "mnist-multi-60": _on_60("mnist-multi-60-paper", 0, {}, {"norm": "batch"}),
        },
        coco="2014",
        all_digits=True,
        coco_seeds={"table-1": 1, "table-2": 5, "table-3": 1, "beyond": 1, "variations": 1, "training": 1},
    ),
}
