"""Augmented views of images for feature caches, computed once and resampled in each epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Int64, Shaped

from torchmultiset._checks import check
from torchmultiset.data.examples import Inputs
from torchmultiset.data.features import FeatureCache, FrozenBackbone, cache_features
from torchmultiset.data.photos import Family, augment_photos

__all__ = ["AugmentedImages", "FeatureViews", "cache_views"]

_SEED = 0
"""Seed of the views; their keys in the cache contain it."""
_MOST_BYTES = 4_000_000_000
"""Maximum size of the features of a data set and its views on disk."""


@dataclass(frozen=True, eq=False)
class AugmentedImages:
    """`Inputs` that read one augmented view of each image, the same one each time.

    A view depends on the key of its image and its number, not on the batch.
    """

    inputs: Inputs
    """Images (channels, H, W) of one size."""
    keys: Sequence[str]
    """Key of each image."""
    families: tuple[Family, ...]
    """Families of changes, see `torchmultiset.data.photos`."""
    view: int
    """Number of the view."""

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b c h w"]:
        images = torch.from_numpy(np.ascontiguousarray(self.inputs[indices]))
        views = [
            augment_photos(image[None], _generator("view", _SEED, self.view, self.keys[i]), self.families)
            for i, image in zip(indices, images, strict=True)
        ]
        return torch.cat(views).numpy() if views else images.numpy()


@dataclass(frozen=True, eq=False)
class FeatureViews:
    """`Inputs` that read the cached features of the unchanged images, and of augmented views in `epoch`.

    It stores only a path and row numbers, so it is cheap to send to another process.
    """

    plain: FeatureCache
    """Features of the unchanged images."""
    rows: Int64[np.ndarray, "v n"]
    """Row number of each view of each image (V, N), the unchanged images first."""

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> Shaped[np.ndarray, "b d h w"]:
        return self.plain[indices]

    @property
    def views(self) -> int:
        """Number of views of each image, including the unchanged image."""
        return len(self.rows)

    def epoch(self, epoch: int, *, seed: int) -> FeatureCache:
        """Draw one view of each image uniformly, as a function of only the training run's seed and the epoch."""
        drawn = np.random.default_rng([seed, epoch]).integers(self.views, size=len(self))
        return FeatureCache(
            self.plain.path, self.plain.shape, self.rows[drawn, np.arange(len(self))], self.plain.digests
        )


def cache_views(
    backbone: FrozenBackbone,
    inputs: Inputs,
    folder: str | Path,
    *,
    keys: Sequence[str],
    families: Sequence[Family],
    views: int,
    batch_size: int = 32,
    progress: bool = False,
) -> FeatureViews:
    """Compute the features of images and of their augmented views that are missing from the folder.

    The rows are in the same files as those of `cache_features`, so that other data sets and families share the features
    of the unchanged images, and an interrupted run is resumed.

    Args:
        backbone: Backbone that computes the features.
        inputs: Images of one size, (channels, H, W) each.
        folder: Folder for the features; created if it does not exist.
        keys: Unique key of each image.
        families: Families of changes, see `torchmultiset.data.photos`.
        views: Number of augmented views of each image, in addition to the unchanged image. Fewer are computed if the
            features of these images and views would take more than 4 GB.
        batch_size: Number of images per batch.
        progress: Show a progress bar.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> class Pool(torch.nn.AvgPool2d):
        ...     name = "pool"
        ...     def fingerprint(self) -> str:
        ...         return "pool"
        ...     def forward(self, x):
        ...         return super().forward(x.float())
        >>> pixels = np.random.default_rng(0).integers(256, size=(3, 3, 8, 8), dtype=np.uint8)
        >>> with TemporaryDirectory() as folder:
        ...     cache = cache_views(Pool(4), pixels, folder, keys="abc", families=("flip", "colour"), views=2)
        ...     features = cache.epoch(0, seed=1)[np.array([2, 0])]
        >>> cache.views, features.shape
        (3, (2, 3, 2, 2))
    """
    check(views >= 0, "views", "at least 0", views)
    check(views == 0 or len(families) > 0, "families", "at least one family if views > 0", families)

    def cached(images: Inputs, names: Sequence[str]) -> FeatureCache:
        return cache_features(backbone, images, folder, keys=names, batch_size=batch_size, progress=progress)

    plain = cached(inputs, keys)
    row_bytes = 2 * int(np.prod(plain.shape))
    views = min(views, max(_MOST_BYTES // (row_bytes * len(keys)) - 1, 0))
    rows, digests = [plain.rows], dict(plain.digests)
    for view in range(views):
        images = AugmentedImages(inputs, keys, tuple(families), view)
        tag = f"{'+'.join(families)} {_SEED}.{view}"
        cache = cached(images, [f"{key} [{tag}]" for key in keys])
        rows.append(cache.rows)
        digests |= cache.digests
    return FeatureViews(replace(plain, digests=digests), np.stack(rows))


def _generator(*seed: object) -> torch.Generator:
    digest = hashlib.blake2b(repr(seed).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
