"""MNIST Multi (section 5.1): digits of several sizes on a canvas with clutter, and the multiset of their classes.

The paper does not specify how digits are placed. As in its authors' first code, the canvas is a grid whose cells are
as large as the largest digit of the image. Each digit has its own cell and a random position in it. Clutter is drawn
first; black pixels of a digit are transparent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, unique
from math import isqrt
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from jaxtyping import Int, Int64, UInt8, UInt64

from torchmultiset._checks import check, check_one_of
from torchmultiset.data._paste import Scene, cut, paste, paste_digits
from torchmultiset.data._random import draw, draw_distinct, example_keys
from torchmultiset.data.digits import DigitPools, Digits, Split, digits_sha256, write_digits
from torchmultiset.data.examples import Batch, Examples, widened
from torchmultiset.data.store import Chunk, Plan, Row, write

__all__ = ["VARIANTS", "Fresh", "MnistMulti", "build", "generate", "stream"]

Fresh: TypeAlias = Literal["none", "plain", "distorted", "elastic"]
"""Training images of each epoch after the first: the stored ones (none); new ones of the same digits (plain); of digits
that are slightly rotated, scaled and translated (distorted), and also deformed elastically (elastic)."""

# Increment after any change that makes the same parameters produce different bytes.
GENERATOR = 1

_DIGIT = 28
_SPLITS: tuple[Split, ...] = get_args(Split)
_CHUNK_PIXELS = 10_000_000  # pixels generated at a time, which fit into memory


@dataclass(frozen=True)
class MnistMulti:
    """All parameters of a data set, except for the digits it is built from.

    Example:
        >>> MnistMulti(sizes=(5, 9), digit_px=(16, 32), train=1000)
        MnistMulti(sizes=(5, 9), digit_px=(16, 32), canvas=100, clutter=8, clutter_px=5,
                   classes=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), repeats=True,
                   train=1000, validation=7000, test=10000, seen=0, seed=0)
    """

    sizes: tuple[int, int] = (4, 4)
    """Minimum and maximum number of digits per image, sampled uniformly."""
    digit_px: tuple[int, int] = (20, 50)
    """Minimum and maximum side length of a digit in pixels, sampled uniformly."""
    canvas: int = 100
    """Width and height of an image in pixels."""
    clutter: int = 8
    """Number of clutter patches, cropped from other digits."""
    clutter_px: int = 5
    """Width and height of a clutter patch, cropped from a 28x28 digit."""
    classes: tuple[int, ...] = tuple(range(10))
    """Digits that are drawn and counted. Labels are indices into this tuple. Clutter is cropped from all digits."""
    repeats: bool = True
    """Whether a class may occur more than once in an image."""
    train: int = 63_000
    """Number of training examples."""
    validation: int = 7_000
    """Number of validation examples."""
    test: int = 10_000
    """Number of test examples."""
    seen: int = 0
    """Number of additional test examples built from the training digits, like the paper's test images."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        (least, most), (small, large) = self.sizes, self.digit_px
        expected = "(minimum, maximum) with 0 <= minimum <= maximum >= 1"
        check(0 <= least <= most and most >= 1, "sizes", expected, self.sizes)
        check(1 <= small <= large, "digit_px", "(minimum, maximum) with 1 <= minimum <= maximum", self.digit_px)
        self._refuse_crowded()
        ten = set(range(10))
        distinct = len(set(self.classes)) == len(self.classes) >= 1
        check(distinct and ten.issuperset(self.classes), "classes", "different digits from 0 to 9", self.classes)
        if not self.repeats:
            expected = f"at most {len(self.classes)}, the number of classes, because repeats is False"
            check(most <= len(self.classes), "sizes", expected, self.sizes)
        widest = min(_DIGIT, self.canvas)
        check(1 <= self.clutter_px <= widest, "clutter_px", f"from 1 to {widest}", self.clutter_px)
        for name in ("clutter", *_SPLITS):
            check(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        check(0 <= self.seed < 1 << 64, "seed", "from 0 to 2^64 - 1", self.seed)

    def _refuse_crowded(self) -> None:
        most, large, side = self.sizes[1], self.digit_px[1], self.canvas // self.digit_px[1]
        if side * side < most:
            # The smallest grid with a cell for each digit.
            enough = isqrt(most - 1) + 1
            raise ValueError(
                f"{most} digits of up to {large} px cannot always fit on a canvas of {self.canvas} px: a grid of "
                f"{large} px has {side} x {side} cells there, and each digit needs its own. It takes at most "
                f"{side * side} digits, or digits of at most {self.canvas // enough} px, or a canvas of at least "
                f"{enough * large} px"
            )


VARIANTS: Mapping[str, MnistMulti] = {
    "4": MnistMulti(),
    "1-4": MnistMulti(sizes=(1, 4)),
    "10": MnistMulti(sizes=(10, 10), digit_px=(20, 20)),
}
"""Parameters of the paper's three variants."""


def generate(
    parameters: MnistMulti,
    digits: Digits,
    split: Split,
    indices: Sequence[int] | Int[np.ndarray, " n"],
    *,
    lazy: bool = False,
) -> Examples:
    """Generate examples. Each one depends only on the parameters, the digits, the split and its index.

    Args:
        parameters: Parameters of the images; the split sizes are ignored.
        digits: Digits to draw, also used for clutter.
        split: Split, which selects an independent random stream.
        indices: Indices of the examples, starting at 0, without an upper limit.
        lazy: Generate images each time a batch is read instead of storing them in memory.

    Returns:
        Examples with uint8 images (N, 1, canvas, canvas); labels (N, M), padded with -1, where M is the maximum number
        of digits per image; boxes (N, M, 4) of the resized digits, including their black margin; and areas (N, M).

    Example:
        >>> from torchmultiset.data.digits import load_digits
        >>> examples = generate(VARIANTS["1-4"], load_digits("bundled").train, "train", range(3))
        >>> examples.labels
        array([[ 8,  2,  5,  2],
               [ 2,  2,  8, -1],
               [ 8, -1, -1, -1]])
        >>> batch = examples.batch([0, 2])
        >>> batch.x.shape, batch.boxes.shape
        (torch.Size([2, 1, 100, 100]), torch.Size([2, 4, 4]))
    """
    check_one_of("split", split, _SPLITS)
    chosen = np.asarray(indices, dtype=np.int64)
    check(chosen.ndim == 1 and bool(np.all(chosen >= 0)), "indices", "one-dimensional and at least 0", indices)
    labels = _labels(parameters, digits)
    keys = example_keys(parameters.seed, _SPLITS.index(split), chosen)
    scene = _scene(parameters, labels, keys)
    images = _Images(parameters, digits, keys, scene)
    boxes = np.stack([scene.x, scene.y, scene.px, scene.px], -1) * scene.present[..., None]
    return Examples(
        inputs=images if lazy else images[np.arange(len(chosen))],
        labels=np.where(scene.present, labels[scene.digit], -1),
        classes=tuple(map(str, parameters.classes)),
        boxes=boxes.astype(np.float32),
        areas=(boxes[..., 2] * boxes[..., 3]).astype(np.float32),
    )


def stream(
    parameters: MnistMulti, digits: Digits, batch_size: int, *, split: Split = "train", start: int = 0
) -> Iterator[Batch]:
    """Yield batches of new examples indefinitely, with indices start, start + 1, and so on.

    Args:
        parameters: Parameters of the images; the split sizes are ignored.
        digits: Digits to draw, also used for clutter.
        batch_size: Number of examples per batch.
        split: Split of the examples; `build` stores its first ones.
        start: Index of the first example.

    Example:
        >>> from torchmultiset.data.digits import load_digits
        >>> batches = stream(VARIANTS["10"], load_digits("bundled").train, batch_size=2, start=63_000)
        >>> next(batches).target.sum(-1), next(batches).target.sum(-1)
        (tensor([10, 10]), tensor([10, 10]))
    """
    check(batch_size >= 1, "batch_size", "at least 1", batch_size)
    check(start >= 0, "start", "at least 0", start)
    # Generate several batches at a time, because a few images take nearly as long as a few hundred.
    ahead = batch_size * max(1, _chunk(parameters) // batch_size)
    while True:
        examples = generate(parameters, digits, split, range(start, start + ahead))
        for first in range(0, ahead, batch_size):
            yield examples.batch(range(first, first + batch_size))
        start += ahead


def build(
    folder: str | os.PathLike[str],
    parameters: MnistMulti,
    pools: DigitPools,
    *,
    tested: MnistMulti | None = None,
    fresh: Fresh = "none",
    workers: int = 1,
    progress: bool = False,
) -> dict[str, Examples]:
    """Build a data set on disk; `store.load` opens it again. The bytes do not depend on `workers`.

    An interrupted build, even a killed one, resumes when it is started again.

    Args:
        folder: A new or empty folder, or one with the same data set, complete or unfinished.
        parameters: Parameters of the images, and the split sizes.
        pools: Digits for each split.
        tested: Parameters of the test images, if different; canvas and classes must be the same.
        fresh: New training images in each epoch after the first: see `data.fresh`. Unless ``"none"``, the training
            digits are stored as well.
        workers: Number of threads that generate images.
        progress: Show a progress bar.

    Returns:
        The splits ``"train"``, ``"validation"``, ``"test"`` and, if requested, ``"seen"``, with memory-mapped images.

    Raises:
        ValueError: The folder contains something else.
        OSError: There is not enough free disk space.

    Example:
        >>> import tempfile
        >>> from torchmultiset.data.digits import load_digits
        >>> parameters = MnistMulti(train=20, validation=10, test=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     splits = build(folder, parameters, load_digits("bundled"))
        ...     {name: len(examples) for name, examples in splits.items()}
        {'train': 20, 'validation': 10, 'test': 10}
    """
    of_test = tested or parameters
    same = (of_test.canvas, of_test.classes) == (parameters.canvas, parameters.classes)
    check(same, "tested", "of the same canvas and classes", tested)
    check_one_of("fresh", fresh, get_args(Fresh))

    def make(chunk: Chunk) -> dict[str, np.ndarray]:
        split = cast(Split, chunk.split)
        examples = generate(like[split], pools.of(split), split, range(chunk.start, chunk.stop))
        return {name: widened(getattr(examples, name), row.shape[0]) for name, row in plan.arrays.items()}

    like: dict[Split, MnistMulti] = {
        "train": parameters,
        "validation": parameters,
        "test": of_test,
        **({"seen": of_test} if of_test.seen else {}),
    }
    most = max(parameters.sizes[1], of_test.sizes[1])
    plan = Plan(
        source={
            "name": "MNIST Multi",
            "parameters": asdict(parameters),
            **({} if tested is None else {"tested": asdict(tested)}),
            "digits": {"name": pools.name, "sha256": pools.sha256},
            "generator": GENERATOR,
            **({} if fresh == "none" else {"fresh": fresh, "training_digits": digits_sha256(pools.train)}),
        },
        classes=tuple(map(str, parameters.classes)),
        splits={split: getattr(those, split) for split, those in like.items()},
        arrays={
            "inputs": Row("|u1", (1, parameters.canvas, parameters.canvas)),
            "labels": Row("<i8", (most,)),
            "boxes": Row("<f4", (most, 4)),
            "areas": Row("<f4", (most,)),
        },
    )
    splits = write(folder, plan, make, chunk=_chunk(parameters), workers=workers, progress=progress)
    if fresh != "none":
        write_digits(folder, pools.train)
    return splits


@unique
class _Purpose(IntEnum):
    """Purposes of random numbers. Each has its own stream, so that changing the clutter, say, moves no digit."""

    SIZE = 0
    PX = 1
    CLASS = 2
    DIGIT = 3
    CELL = 4
    X = 5
    Y = 6
    CLUTTER_DIGIT = 7
    CLUTTER_FROM_X = 8
    CLUTTER_FROM_Y = 9
    CLUTTER_X = 10
    CLUTTER_Y = 11


@dataclass(frozen=True, eq=False)
class _Images:
    """`Inputs` that generate images when they are read."""

    parameters: MnistMulti
    digits: Digits
    keys: UInt64[np.ndarray, " n"]
    scene: Scene

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 1 h h"]:
        canvas = np.zeros((len(indices), self.parameters.canvas, self.parameters.canvas), dtype=np.uint8)
        _add_clutter(canvas, self.parameters, self.digits, self.keys[indices])
        paste_digits(canvas, self.digits.images, Scene(*(part[indices] for part in self.scene)))
        return canvas[:, None]


def _scene(parameters: MnistMulti, labels: Int64[np.ndarray, " k"], keys: UInt64[np.ndarray, " n"]) -> Scene:
    (least, most), (small, large) = parameters.sizes, parameters.digit_px
    size = least + draw(keys, _Purpose.SIZE, 1, most - least + 1)
    present = np.arange(most) < size
    px = small + draw(keys, _Purpose.PX, most, large - small + 1)
    cell = np.where(present, px, small).max(-1, keepdims=True)
    side = parameters.canvas // cell
    place = draw_distinct(keys, _Purpose.CELL, most, (side * side)[:, 0])
    # An absent digit may be larger than the cell; it is not drawn, but its range of positions must not be negative.
    room = np.maximum(cell - px, 0) + 1
    return Scene(
        present=present,
        digit=_choose(parameters, labels, keys),
        px=px,
        x=place % side * cell + draw(keys, _Purpose.X, most, room),
        y=place // side * cell + draw(keys, _Purpose.Y, most, room),
    )


def _choose(
    parameters: MnistMulti, labels: Int64[np.ndarray, " k"], keys: UInt64[np.ndarray, " n"]
) -> Int64[np.ndarray, "n m"]:
    """Choose digits of the pool (N, M): uniformly, or uniformly within classes drawn without replacement."""
    most, num_classes = parameters.sizes[1], len(parameters.classes)
    if parameters.repeats:
        counted = np.flatnonzero(labels >= 0)
        return np.take(counted, draw(keys, _Purpose.DIGIT, most, len(counted)))
    by_class = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[by_class], np.arange(num_classes + 1))
    label = draw_distinct(keys, _Purpose.CLASS, most, np.full(len(keys), num_classes))
    nth = draw(keys, _Purpose.DIGIT, most, np.diff(first)[label])
    chosen: Int64[np.ndarray, "n m"] = by_class[first[label] + nth]
    return chosen


def _add_clutter(
    canvas: UInt8[np.ndarray, "n h h"], parameters: MnistMulti, digits: Digits, keys: UInt64[np.ndarray, " n"]
) -> None:
    pieces, px = parameters.clutter, parameters.clutter_px
    digit = draw(keys, _Purpose.CLUTTER_DIGIT, pieces, len(digits.images))
    from_x = draw(keys, _Purpose.CLUTTER_FROM_X, pieces, _DIGIT - px + 1)
    from_y = draw(keys, _Purpose.CLUTTER_FROM_Y, pieces, _DIGIT - px + 1)
    x = draw(keys, _Purpose.CLUTTER_X, pieces, parameters.canvas - px + 1)
    y = draw(keys, _Purpose.CLUTTER_Y, pieces, parameters.canvas - px + 1)
    # One patch per image at a time, because patches of the same image may overlap.
    for i in range(pieces):
        patches = cut(digits.images, digit[:, i], from_y[:, i], from_x[:, i], px)
        paste(canvas, np.arange(len(canvas)), y[:, i], x[:, i], patches)


def _labels(parameters: MnistMulti, digits: Digits) -> Int64[np.ndarray, " k"]:
    """Return the index of each digit's class in `parameters.classes` (K,), or -1."""
    positions = np.full(10, -1)
    positions[list(parameters.classes)] = np.arange(len(parameters.classes))
    present = np.bincount(digits.labels, minlength=10) > 0
    missing = [digit for digit in parameters.classes if not present[digit]]
    if missing:
        raise ValueError(
            f"digits must include every class, but has none of {', '.join(map(str, missing))}: replace MNIST's files of"
            " labels with fresh copies"
        )
    return np.take(positions, digits.labels)


def _chunk(parameters: MnistMulti) -> int:
    return max(1, _CHUNK_PIXELS // parameters.canvas**2)
