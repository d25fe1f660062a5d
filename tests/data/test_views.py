"""Augmented views in feature caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchmultiset.data import views
from torchmultiset.data.examples import Examples, concatenate
from torchmultiset.data.features import cache_features
from torchmultiset.data.views import AugmentedImages, cache_views


class Shrink(torch.nn.Module):
    """A backbone that averages 4 x 4 pixels and counts its input images."""

    name = "shrink"

    def __init__(self) -> None:
        super().__init__()
        self.images = 0

    def fingerprint(self) -> str:
        return "shrink"

    def forward(self, images):
        self.images += len(images)
        return torch.nn.functional.avg_pool2d(images.float() / 255, 4)


def pixels(count: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, size=(count, 3, 16, 16), dtype=np.uint8)


KEYS = [f"image {i}" for i in range(6)]
FAMILIES = ("flip", "colour")


def test_a_view_depends_on_key_and_number_but_not_on_its_batch():
    images = pixels()
    view = AugmentedImages(images, KEYS, FAMILIES, view=1)
    together = view[np.arange(6)]
    assert together.dtype == np.uint8
    for i in range(6):
        np.testing.assert_array_equal(view[np.array([i])][0], together[i])
    for other in (
        AugmentedImages(images, KEYS, FAMILIES, view=2),
        AugmentedImages(images, KEYS[::-1], FAMILIES, view=1),
    ):
        assert not np.array_equal(other[np.arange(6)], together)


def test_features_of_views_equal_those_of_augmented_images(tmp_path):
    images, backbone = pixels(), Shrink()
    cache = cache_views(backbone, images, tmp_path, keys=KEYS, families=FAMILIES, views=3)
    assert (cache.views, len(cache), backbone.images) == (4, 6, 24 + 1)  # one image to determine the shape
    all_images = np.arange(6)
    np.testing.assert_array_equal(cache[all_images], cache_features(backbone, images, tmp_path, keys=KEYS)[all_images])
    expected = [images, *(AugmentedImages(images, KEYS, FAMILIES, view=v)[all_images] for v in range(3))]
    of_views = [backbone(torch.from_numpy(each)).half().numpy() for each in expected]
    drawn = set()
    for epoch in range(12):
        rows = cache.epoch(epoch, seed=5)[all_images]
        for i in range(6):
            matches = [v for v in range(4) if np.array_equal(rows[i], of_views[v][i])]
            assert len(matches) == 1
            drawn.add((i, matches[0]))
    assert len(drawn) > 20  # of 24


def test_epochs_are_functions_of_seed_and_epoch(tmp_path):
    cache = cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=FAMILIES, views=4)
    rows = {(seed, epoch): cache.epoch(epoch, seed=seed).rows.tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert rows[0, 1] == cache.epoch(1, seed=0).rows.tolist()
    assert len({tuple(each) for each in rows.values()}) == 4


def test_views_are_computed_once_and_resumed(tmp_path):
    images = pixels()
    cache_views(Shrink(), images, tmp_path, keys=KEYS, families=FAMILIES, views=1)
    backbone = Shrink()
    cache_views(backbone, images, tmp_path, keys=KEYS, families=FAMILIES, views=3)
    assert backbone.images == 12  # the two new views
    again = Shrink()
    cache_views(again, images, tmp_path, keys=KEYS, families=FAMILIES, views=3)
    assert again.images == 0
    cache_views(again, images, tmp_path, keys=KEYS, families=("flip",), views=1)
    assert again.images == 6


def test_space_is_bounded(tmp_path, monkeypatch):
    row = 2 * 3 * 4 * 4
    monkeypatch.setattr(views, "_MOST_BYTES", 3 * 6 * row + row)
    cache = cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=FAMILIES, views=5)
    assert cache.views == 3
    assert (tmp_path / "features.f16").stat().st_size == 3 * 6 * row
    monkeypatch.setattr(views, "_MOST_BYTES", 0)
    assert cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=FAMILIES, views=5).views == 1


def test_views_need_families(tmp_path):
    with pytest.raises(ValueError, match="families must be at least one family if views > 0"):
        cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=(), views=1)
    assert cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=(), views=0).views == 1


LABELS = np.array([[0, -1, -1], [1, 1, -1], [2, -1, -1], [0, 2, 2], [1, -1, -1], [0, -1, -1]])


def test_examples_of_two_splits_are_read_in_order(tmp_path):
    images = np.broadcast_to(np.arange(40, 280, 40, dtype=np.uint8)[:, None, None, None], (6, 3, 16, 16)).copy()
    areas = np.where(LABELS < 0, 0, np.arange(1, 19).reshape(6, 3)).astype(np.float32)
    boxes = areas[..., None] * np.ones(4, np.float32)
    first = Examples(images[:4], LABELS[:4], ("a", "b", "c"), boxes[:4], areas[:4], KEYS[:4])
    second = Examples(images[4:], LABELS[4:, :1], ("a", "b", "c"), boxes[4:, :1], areas[4:, :1], KEYS[4:])
    both, whole = concatenate(first, second), Examples(images, LABELS, ("a", "b", "c"), ids=KEYS)
    chosen = [5, 0, 3, 4]
    assert torch.equal(both.batch(chosen).x, whole.batch(chosen).x)
    assert torch.equal(both.batch(chosen).target, whole.batch(chosen).target)
    assert [*both.ids] == [*KEYS]
    np.testing.assert_array_equal(both.counts, whole.counts)
    np.testing.assert_array_equal(both.boxes, boxes)
    np.testing.assert_array_equal(both.areas, areas)
    assert concatenate(first, replace(second, boxes=None)).boxes is None


def test_other_classes_cannot_be_concatenated():
    examples = Examples(pixels(1), np.array([[0]]), ("a", "b", "c"))
    with pytest.raises(ValueError, match="second must be examples of the classes"):
        concatenate(examples, Examples(pixels(1), np.array([[0]]), ("x", "b", "c")))
