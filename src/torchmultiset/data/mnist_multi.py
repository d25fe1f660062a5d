"""MNIST Multi (section 5.1): digits of several sizes on a canvas with clutter, and the multiset of their classes.

The paper does not say how digits are placed. Here, as in its authors' first code: on a grid whose cell is as large
as the largest digit of the image, one digit in a cell, at a random place in it; clutter first, digits over it where
they are not black.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, unique
from math import isqrt
from typing import NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8, UInt64

from torchmultiset._checks import check, check_one_of
from torchmultiset.data._paste import cut, paste, resize
from torchmultiset.data._random import draw, draw_distinct, example_keys
from torchmultiset.data.digits import DigitPools, Digits, Split
from torchmultiset.data.examples import Batch, Examples
from torchmultiset.data.store import Chunk, Plan, Row, write

__all__ = ["VARIANTS", "MnistMulti", "build", "generate", "stream"]

# To be raised by any change after which the same parameters give other bytes.
GENERATOR = 1

_DIGIT = 28
_SPLITS: tuple[Split, ...] = get_args(Split)
# Pixels that are worked on at a time: small enough for the processor's cache (a block), for memory (a chunk).
_BLOCK_PIXELS = 1 << 18
_CHUNK_PIXELS = 10_000_000


@dataclass(frozen=True)
class MnistMulti:
    """All that a data set depends on, apart from the digits it is made of.

    Example:
        >>> MnistMulti(sizes=(5, 9), digit_px=(16, 32), train=1000)
        MnistMulti(sizes=(5, 9), digit_px=(16, 32), canvas=100, clutter=8, clutter_px=5,
                   classes=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), repeats=True,
                   train=1000, validation=7000, test=10000, seen=0, seed=0)
    """

    sizes: tuple[int, int] = (4, 4)
    """Least and most digits of an image; every number from one to the other is equally likely."""
    digit_px: tuple[int, int] = (20, 50)
    """Least and most pixels of a digit's width and height; each equally likely."""
    canvas: int = 100
    """Width and height of an image in pixels."""
    clutter: int = 8
    """How many pieces of other digits lie about."""
    clutter_px: int = 5
    """Width and height of such a piece, cut from a digit of 28x28."""
    classes: tuple[int, ...] = tuple(range(10))
    """Digits that are counted. Labels are positions in here. Clutter is cut from all digits."""
    repeats: bool = True
    """Whether a class may occur more than once in an image."""
    train: int = 63_000
    """How many examples are stored for training."""
    validation: int = 7_000
    """How many examples are stored for validation."""
    test: int = 10_000
    """How many examples are stored for testing."""
    seen: int = 0
    """How many more are stored for testing that are made of the training digits, as the paper's test images are."""
    seed: int = 0
    """Another seed, other images."""

    def __post_init__(self) -> None:
        (least, most), (small, large) = self.sizes, self.digit_px
        check(0 <= least <= most and most >= 1, "sizes", "(least, most) with 0 <= least <= most >= 1", self.sizes)
        check(1 <= small <= large, "digit_px", "(least, most) with 1 <= least <= most", self.digit_px)
        self._refuse_crowded()
        ten = set(range(10))
        distinct = len(set(self.classes)) == len(self.classes) >= 1
        check(distinct and ten.issuperset(self.classes), "classes", "different digits from 0 to 9", self.classes)
        if not self.repeats:
            expected = f"at most {len(self.classes)}, the number of classes, as repeats is False"
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
"""The three of the paper."""


def generate(
    parameters: MnistMulti,
    digits: Digits,
    split: Split,
    indices: Sequence[int] | Int[np.ndarray, " n"],
    *,
    lazy: bool = False,
) -> Examples:
    """Make examples in memory. Each depends on the parameters, the digits, the split and its index only.

    Args:
        parameters: What the images are like; how many of them are stored does not matter here.
        digits: What they are made of, clutter included.
        split: Example i of one split has nothing in common with example i of another.
        indices: Which examples, from 0 on; there is no last one.
        lazy: Make an image when a batch with it is read, each time anew, and keep none in memory.

    Returns:
        Images (N, 1, canvas, canvas), uint8; labels (N, M), padded with -1, M the most digits of an image; boxes
        (N, M, 4), the squares that the resized digits cover, their black margin included; and their areas.

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
    boxes = np.stack([scene.x, scene.y, scene.px, scene.px], -1) * scene.there[..., None]
    return Examples(
        inputs=images if lazy else images[np.arange(len(chosen))],
        labels=np.where(scene.there, labels[scene.digit], -1),
        classes=tuple(map(str, parameters.classes)),
        boxes=boxes.astype(np.float32),
        areas=(boxes[..., 2] * boxes[..., 3]).astype(np.float32),
    )


def stream(
    parameters: MnistMulti, digits: Digits, batch_size: int, *, split: Split = "train", start: int = 0
) -> Iterator[Batch]:
    """Fresh examples without end: those with indices start, start + 1, and so on.

    Args:
        parameters: What the images are like.
        digits: What they are made of.
        batch_size: How many make a batch.
        split: Whose examples; `build` stores the first of the same ones.
        start: The first index.

    Example:
        >>> from torchmultiset.data.digits import load_digits
        >>> batches = stream(VARIANTS["10"], load_digits("bundled").train, batch_size=2, start=63_000)
        >>> next(batches).target.sum(-1), next(batches).target.sum(-1)
        (tensor([10, 10]), tensor([10, 10]))
    """
    check(batch_size >= 1, "batch_size", "at least 1", batch_size)
    check(start >= 0, "start", "at least 0", start)
    # Several batches at a time, because a few images cost nearly as much as a few hundred.
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
    workers: int = 1,
    progress: bool = False,
) -> dict[str, Examples]:
    """Make a data set on disk; `store.load` opens it again. The bytes do not depend on `workers`.

    A build that was stopped, even killed, goes on where it was when it is started again.

    Args:
        folder: Where to: new, empty, or with the same data set, whole or begun.
        parameters: What the images are like and how many there are.
        pools: The digits that each split is made of.
        tested: What the test images are like, if they are to be unlike the others; canvas and classes are the same.
        workers: How many threads make images.
        progress: Show a progress bar.

    Returns:
        ``"train"``, ``"validation"`` and ``"test"``, and ``"seen"`` if there is to be one; images are memory-mapped.

    Raises:
        ValueError: If the folder holds something else.
        OSError: If the disk is too small.

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

    def make(chunk: Chunk) -> dict[str, np.ndarray]:
        split = cast(Split, chunk.split)
        made = generate(like[split], pools.of(split), split, range(chunk.start, chunk.stop))
        return {name: _widened(getattr(made, name), row) for name, row in plan.arrays.items()}

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
    return write(folder, plan, make, chunk=_chunk(parameters), workers=workers, progress=progress)


def _widened(array: np.ndarray, row: Row) -> np.ndarray:
    """With room for as many digits as the images of any split have; labels are padded with -1, the rest with 0."""
    missing = row.shape[0] - array.shape[1]
    if not missing:
        return array
    fill = -1 if array.dtype == np.int64 else 0
    return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)], constant_values=fill)


@unique
class _Purpose(IntEnum):
    """What random numbers are for. Another purpose, another number: so no clutter, say, moves no digit."""

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


class _Scene(NamedTuple):
    """The digits of each image: which of the pool, and where."""

    there: Bool[np.ndarray, "n m"]
    """Whether the image has so many; the rest of a row means nothing where it has not."""
    digit: Int64[np.ndarray, "n m"]
    px: Int64[np.ndarray, "n m"]
    x: Int64[np.ndarray, "n m"]
    y: Int64[np.ndarray, "n m"]


@dataclass(frozen=True, eq=False)
class _Images:
    """Images that are drawn when they are read."""

    parameters: MnistMulti
    digits: Digits
    keys: UInt64[np.ndarray, " n"]
    scene: _Scene

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 1 h h"]:
        canvas = np.zeros((len(indices), self.parameters.canvas, self.parameters.canvas), dtype=np.uint8)
        _add_clutter(canvas, self.parameters, self.digits, self.keys[indices])
        _add_digits(canvas, self.digits, _Scene(*(part[indices] for part in self.scene)))
        return canvas[:, None]


def _scene(parameters: MnistMulti, labels: Int64[np.ndarray, " k"], keys: UInt64[np.ndarray, " n"]) -> _Scene:
    (least, most), (small, large) = parameters.sizes, parameters.digit_px
    size = least + draw(keys, _Purpose.SIZE, 1, most - least + 1)
    there = np.arange(most) < size
    px = small + draw(keys, _Purpose.PX, most, large - small + 1)
    cell = np.where(there, px, small).max(-1, keepdims=True)
    side = parameters.canvas // cell
    place = draw_distinct(keys, _Purpose.CELL, most, (side * side)[:, 0])
    # An absent digit may be larger than the cell: it has no room to move, and is not drawn.
    room = np.maximum(cell - px, 0) + 1
    return _Scene(
        there=there,
        digit=_choose(parameters, labels, keys),
        px=px,
        x=place % side * cell + draw(keys, _Purpose.X, most, room),
        y=place // side * cell + draw(keys, _Purpose.Y, most, room),
    )


def _choose(
    parameters: MnistMulti, labels: Int64[np.ndarray, " k"], keys: UInt64[np.ndarray, " n"]
) -> Int64[np.ndarray, "n m"]:
    """Which digits of the pool: uniform over all that count, or over those of classes drawn without repeats."""
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
    # One piece of every image at a time: those of one image may overlap.
    for i in range(pieces):
        patches = cut(digits.images, digit[:, i], from_y[:, i], from_x[:, i], px)
        paste(canvas, np.arange(len(canvas)), y[:, i], x[:, i], patches)


def _add_digits(canvas: UInt8[np.ndarray, "n h h"], digits: Digits, scene: _Scene) -> None:
    image, slot = np.nonzero(scene.there)
    # Digits of one size at a time, from whichever images: one matrix resizes them all, and each has its own cell.
    order = np.argsort(scene.px[image, slot], kind="stable")
    image, slot = image[order], slot[order]
    px, starts = np.unique(scene.px[image, slot], return_index=True)
    for size, start, stop in zip(px.tolist(), starts, np.append(starts, len(order))[1:], strict=True):
        block = max(1, _BLOCK_PIXELS // size**2)
        for first in range(start, stop, block):
            which = image[first : min(first + block, stop)], slot[first : min(first + block, stop)]
            resized = resize(digits.images[scene.digit[which]], size)
            paste(canvas, which[0], scene.y[which], scene.x[which], resized)


def _labels(parameters: MnistMulti, digits: Digits) -> Int64[np.ndarray, " k"]:
    """The position of each digit's class among those that count, or -1."""
    positions = np.full(10, -1)
    positions[list(parameters.classes)] = np.arange(len(parameters.classes))
    there = np.bincount(digits.labels, minlength=10) > 0
    missing = [digit for digit in parameters.classes if not there[digit]]
    if missing:
        raise ValueError(f"digits must hold some of every class, but has none of {', '.join(map(str, missing))}")
    return np.take(positions, digits.labels)


def _chunk(parameters: MnistMulti) -> int:
    return max(1, _CHUNK_PIXELS // parameters.canvas**2)
