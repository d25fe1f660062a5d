"""New MNIST Multi training images for each epoch, with the parameters and digits of a stored data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmultiset.data import store
from torchmultiset.data.augment import affine
from torchmultiset.data.digits import Digits, read_digits
from torchmultiset.data.examples import Batch, Examples
from torchmultiset.data.load import is_store
from torchmultiset.data.mnist_multi import GENERATOR, Fresh, MnistMulti, generate

__all__ = ["distort", "fresh_epochs", "with_copies"]

_AT_A_TIME = 4096
"""Number of digits distorted per batch."""
_BEND = 1 / 40
"""Strength of the elastic deformation, as a fraction of a digit's side length."""


def fresh_epochs(folder: str | Path, *, seed: int, train: Examples | None = None) -> Callable[[int], Examples] | None:
    """Return a function that returns the training examples of an epoch: the stored ones in epoch 0, then new ones.

    Every epoch has the same number of examples. Images are generated when a batch is read, so an epoch takes no memory
    and each of several processes generates its own part. All processes, and resumed runs, see the same examples.

    Args:
        folder: A data set.
        seed: Random seed of the new images.
        train: Examples of epoch 0, if some of the stored ones are held out; None: all of them.

    Returns:
        A function that maps an epoch, starting at 0, to its examples; None unless the data set was built with
        `mnist_multi.build(..., fresh=...)`.

    Raises:
        FileNotFoundError: The training digits are missing from the folder.
        ValueError: The folder was built by another version, its digits are damaged, or it is too small to contain
            images of the smallest and the largest size.

    Example:
        >>> import tempfile
        >>> from torchmultiset.data.digits import load_digits
        >>> from torchmultiset.data.mnist_multi import build
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = build(folder, MnistMulti(train=2, validation=1, test=1), load_digits("bundled"), fresh="plain")
        ...     epochs = fresh_epochs(folder, seed=0)
        ...     [epochs(epoch).labels.tolist() for epoch in (0, 1)]
        [[[8, 2, 5, 2], [2, 2, 8, 3]], [[8, 6, 9, 9], [8, 0, 3, 5]]]
    """
    source = store.read_header(folder)["source"] if is_store(folder) else {}
    fresh: Fresh = source.get("fresh", "none")
    if fresh == "none":
        return None
    if source["generator"] != GENERATOR:
        raise ValueError(f"{folder} was built by another version of torchmultiset: build it again")
    training = read_digits(folder, source["training_digits"])
    items = source["parameters"].items()
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in items}
    parameters = MnistMulti(**values)
    stored = store.load(folder)["train"] if train is None else train
    sizes, (least, most) = (stored.labels >= 0).sum(1), parameters.sizes
    if not {least, most} <= {*sizes.tolist()}:
        raise ValueError(
            f"fresh images would have {least} to {most} digits, but the {len(stored)} training images in {folder} do"
            f" not cover this range: build it with more"
        )

    def examples(epoch: int) -> Examples:
        if epoch == 0:
            return stored
        (drawn,) = np.random.SeedSequence([parameters.seed, seed, epoch]).generate_state(1, np.uint64)
        others = replace(parameters, seed=int(drawn))
        digits = training if fresh == "plain" else distort(training, seed=int(drawn), elastic=fresh == "elastic")
        return generate(others, digits, "train", range(len(stored)), lazy=True)

    return examples


def distort(digits: Digits, *, seed: int, elastic: bool = False) -> Digits:
    """Rotate each digit by up to 10 degrees, scale it by 0.9 to 1.1 and translate it by up to one pixel.

    Args:
        digits: MNIST digits, whose black margin leaves room for the changes.
        seed: Random seed.
        elastic: Whether to deform digits elastically as well, usually by less than a pixel (Simard et al., "Best
            Practices for Convolutional Neural Networks Applied to Visual Document Analysis", ICDAR 2003).

    Example:
        >>> from torchmultiset.data.digits import load_digits
        >>> digits = load_digits("bundled").train
        >>> other = distort(digits, seed=0)
        >>> bool((other.images != digits.images).any((1, 2)).all()), other.labels is digits.labels
        (True, True)
    """
    generator = torch.Generator().manual_seed(seed % 2**63)
    bend = _BEND if elastic else 0
    nothing = torch.empty(0, 0, dtype=torch.int64)
    changed = np.empty_like(digits.images)
    for start in range(0, len(changed), _AT_A_TIME):
        some = slice(start, start + _AT_A_TIME)
        batch = Batch(torch.from_numpy(digits.images[some].copy())[:, None], target=nothing, labels=nothing)
        changed[some] = affine(batch, generator, by=1 / changed.shape[1], bend=bend).x[:, 0].numpy()
    return Digits(changed, digits.labels)


def with_copies(digits: Digits, copies: int) -> Digits:
    """Add elastically distorted copies of each digit, which give small sets of digits more variety at no cost later.

    Args:
        digits: MNIST digits.
        copies: Number of copies of each digit, including itself.

    Example:
        >>> from torchmultiset.data.digits import load_digits
        >>> with_copies(load_digits("bundled").validation, 3).images.shape
        (1500, 28, 28)
    """
    parts = [digits, *(distort(digits, seed=copy, elastic=True) for copy in range(1, copies))]
    images, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    return Digits(images, labels)
