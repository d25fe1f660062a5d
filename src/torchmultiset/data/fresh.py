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
from torchmultiset.data.digits import Digits, load_digits
from torchmultiset.data.examples import Batch, Examples
from torchmultiset.data.load import is_store
from torchmultiset.data.mnist_multi import GENERATOR, MnistMulti, generate

__all__ = ["distort", "fresh_epochs"]

_AT_A_TIME = 4096
"""Number of digits distorted per batch."""
_BEND = 1 / 40
"""Strength of the elastic deformation, as a fraction of a digit's side length."""


def fresh_epochs(
    folder: str | Path, *, seed: int, mnist: str | Path | None = None, distorted: bool = False, elastic: bool = False
) -> Callable[[int], Examples]:
    """Return a function that gives the training examples of an epoch: the stored ones first, then new ones.

    Every epoch has the same number of examples. Images are generated when a batch is read, so an epoch takes no memory
    and each of several processes generates its own part. All processes, and resumed runs, see the same examples.

    Args:
        folder: Data set written by `mnist_multi.build`.
        seed: Random seed of the new images.
        mnist: Source of the digits that the data set was built from, as for `load_digits`. Only the training pool is
            used.
        distorted: Whether to distort the digits of new images slightly, differently in each epoch.
        elastic: Whether distorted digits are also deformed elastically.

    Returns:
        A function that maps an epoch, starting at 0, to its examples.

    Raises:
        ValueError: The folder is not MNIST Multi, was built from other digits or by another version, or is too small
            to contain images of the smallest and the largest size.

    Example:
        >>> import tempfile
        >>> from torchmultiset.data.mnist_multi import build
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = build(folder, MnistMulti(train=2, validation=1, test=1), load_digits("bundled"))
        ...     epochs = fresh_epochs(folder, seed=0, mnist="bundled")
        ...     [epochs(epoch).labels.tolist() for epoch in (0, 1)]
        [[[8, 2, 5, 2], [2, 2, 8, 3]], [[8, 6, 9, 9], [8, 0, 3, 5]]]
    """
    source = store.read_manifest(folder)["source"] if is_store(folder) else {}
    if source.get("name") != "MNIST Multi":
        raise ValueError(f"fresh requires MNIST Multi, but {folder} is a different data set: do not use fresh")
    if source["generator"] != GENERATOR:
        raise ValueError(f"{folder} was built by another version of torchmultiset: to use fresh, build it again")
    pools = load_digits(mnist)
    if source["digits"]["sha256"] != pools.sha256:
        raise ValueError(
            f"fresh requires the digits that {folder} was built from ({source['digits']['name']}), but mnist gives"
            f" different ones ({pools.name}): set mnist to their source; if digits were removed, do not use fresh"
        )
    items = source["parameters"].items()
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in items}
    parameters = MnistMulti(**values)
    stored = store.load(folder)["train"]
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
        digits = distort(pools.train, seed=int(drawn), elastic=elastic) if distorted else pools.train
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
