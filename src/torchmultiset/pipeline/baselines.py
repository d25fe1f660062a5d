"""Scores of the baselines on the data of a run: majority multiset, nearest neighbour, ridge regression."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from torchmultiset._pooling import PooledFeatures
from torchmultiset.data import Examples
from torchmultiset.encoders import NgramEncoder, SetEncoder
from torchmultiset.heads.baselines import fit_baselines

__all__ = ["pooled_inputs", "predict_baselines", "token_features"]

_GRID = 8
"""Side of the grid of mean colours that stands for an image."""
_COLOURS = 4
"""Largest number of channels of an image; maps with more are features of a backbone."""
_NEIGHBOURS = 20_000
"""Largest number of training examples that baselines are fitted to."""


def pooled_inputs(examples: Examples) -> Float32[Tensor, "n d"]:
    """Return a vector for each input: columns of a table, means of feature maps, or an 8x8 grid of mean colours.

    Example:
        >>> pixels = np.zeros((3, 1, 16, 16), dtype=np.uint8)
        >>> pooled_inputs(Examples(pixels, np.array([[0], [0], [1]]), ("a", "b"))).shape
        torch.Size([3, 64])
    """
    if examples.tokens is not None:
        raise ValueError("inputs of varying length are pooled by `token_features`, which is fitted to training data")
    rows = []
    for batch in examples.batches():
        x = batch.x.float()
        if x.ndim == 4:
            side = min(_GRID, *x.shape[2:]) if x.shape[1] <= _COLOURS else 1
            x = adaptive_avg_pool2d(x, side)
        rows.append(x.flatten(1))
    return torch.cat(rows)


def token_features(train: Examples, tested: Examples) -> tuple[Float32[Tensor, "n d"], Float32[Tensor, "m d"]]:
    """Return a vector for each input of varying length: counts of n-grams of a text, or sums over vectors.

    Args:
        train: Training examples, which determine the n-grams or the scale of the vectors.
        tested: Other examples.
    """
    settings = {"units": (), "attention": 0}
    kind = NgramEncoder if train.tokens == "text" else SetEncoder
    encoder, memory = kind.for_inputs((0, train.inputs[np.array([0])].shape[2]), settings)
    pool = PooledFeatures(memory.features, "sum" if memory.tokens else "mean")
    encoder.fit_inputs(batch.x for batch in train.batches())
    with torch.no_grad():
        known, features = (torch.cat([pool(encoder(batch.x)) for batch in each.batches()]) for each in (train, tested))
    return known, features


def predict_baselines(train: Examples, tested: Examples) -> Mapping[str, Int64[Tensor, "n c"]]:
    """Fit the baselines to training examples, and predict others.

    Args:
        train: Training examples; only the first 20,000 are used.
        tested: Examples to predict, with the same classes.

    Returns:
        Predicted counts (N, C) by the name of the baseline: ``"majority"``, ``"neighbour"`` and ``"ridge"``.
    """
    some = train.subset(np.arange(min(len(train), _NEIGHBOURS)))
    if train.tokens is None:
        known, features = pooled_inputs(some), pooled_inputs(tested)
    else:
        known, features = token_features(some, tested)
    fitted = fit_baselines(known, torch.from_numpy(some.counts))
    return {name: baseline.predict(features) for name, baseline in fitted.items()}
