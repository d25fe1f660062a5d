"""New training images for each epoch: like those of an MNIST Multi that was built, and from the same digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchmultiset.data import store
from torchmultiset.data.digits import load_digits
from torchmultiset.data.examples import Examples
from torchmultiset.data.load import is_store
from torchmultiset.data.mnist_multi import GENERATOR, MnistMulti, generate

__all__ = ["fresh_epochs"]


def fresh_epochs(folder: str | Path, *, seed: int, mnist: str | Path | None = None) -> Callable[[int], Examples]:
    """Training examples for each epoch: first those that are stored, then as many new ones each time.

    An image is made when a batch with it is read. So an epoch takes no memory, and of several processes each makes its
    own part; all see the same examples, and so does a run that is resumed.

    Args:
        folder: A data set that `mnist_multi.build` made.
        seed: Another seed, other images.
        mnist: Where the digits are that it was made of, as for `load_digits`. Only those for training are used.

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
        return generate(others, pools.train, "train", range(len(stored)), lazy=True)

    return examples
