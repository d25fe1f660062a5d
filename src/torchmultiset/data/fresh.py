"""New training images for each epoch: like those of an MNIST Multi that was built, and from the same digits."""

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
"""Digits that are distorted together."""
_BEND = 1 / 40
"""How far elastic digits are bent, as a share of their side."""


def fresh_epochs(
    folder: str | Path, *, seed: int, mnist: str | Path | None = None, distorted: bool = False, elastic: bool = False
) -> Callable[[int], Examples]:
    """Training examples for each epoch: first those that are stored, then as many new ones each time.

    An image is made when a batch with it is read. So an epoch takes no memory, and of several processes each makes its
    own part; all see the same examples, and so does a run that is resumed.

    Args:
        folder: A data set that `mnist_multi.build` made.
        seed: Another seed, other images.
        mnist: Where the digits are that it was made of, as for `load_digits`. Only those for training are used.
        distorted: Whether the digits of new images are distorted, each a little, and in each epoch otherwise.
        elastic: Whether distorted digits are bent, too.

    Returns:
        A function of the epoch, from 0 on.

    Raises:
        ValueError: The data set is of another kind, was made of other digits or by another version, or is too small to
            show what its images can be like.

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
        raise ValueError(f"fresh images can be made for MNIST Multi only, but {folder} is other data: leave out fresh")
    if source["generator"] != GENERATOR:
        raise ValueError(f"{folder} was made by another version of torchmultiset: for fresh images, build it again")
    pools = load_digits(mnist)
    if source["digits"]["sha256"] != pools.sha256:
        raise ValueError(
            f"fresh images need the digits that {folder} was made of ({source['digits']['name']}), but those given"
            f" ({pools.name}) are others: say where they are (mnist); if some were left out, leave out fresh"
        )
    told = source["parameters"].items()
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told}
    parameters = MnistMulti(**values)
    stored = store.load(folder)["train"]
    sizes, (least, most) = (stored.labels >= 0).sum(1), parameters.sizes
    if not {least, most} <= {*sizes.tolist()}:
        raise ValueError(
            f"fresh images would have {least} to {most} digits, but not all of that occurs in the {len(stored)} stored"
            f" for training in {folder}: build it with more"
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
    """Each digit turned by up to 10 degrees, scaled by 0.9 to 1.1 and moved by up to a pixel.

    Args:
        digits: Of MNIST, which leaves room around them.
        seed: Another seed, other changes.
        elastic: Whether they are bent, too, each point by less than a pixel as a rule (Simard et al., "Best Practices
            for Convolutional Neural Networks Applied to Visual Document Analysis", ICDAR 2003).

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
