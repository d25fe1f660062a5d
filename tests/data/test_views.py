"""Views and mosaics in feature caches: which rows are read, what is computed, what is resumed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmultiset.data.examples import Examples
from torchmultiset.data.features import cache_features
from torchmultiset.data.views import AugmentedImages, cache_views, concatenate, mosaic_examples


class Shrink(torch.nn.Module):
    """A backbone that averages 4 x 4 pixels and counts the images it has seen."""

    name = "shrink"

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def fingerprint(self) -> str:
        return "shrink"

    def forward(self, images):
        self.seen += len(images)
        return torch.nn.functional.avg_pool2d(images.float() / 255, 4)


def pixels(count: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, size=(count, 3, 16, 16), dtype=np.uint8)


KEYS = [f"image {i}" for i in range(6)]
FAMILIES = ("flip", "colour")


def test_a_view_depends_on_key_number_and_seed_but_not_on_its_batch():
    images = pixels()
    view = AugmentedImages(images, KEYS, FAMILIES, view=1)
    together = view[np.arange(6)]
    assert together.dtype == np.uint8
    for i in range(6):
        np.testing.assert_array_equal(view[np.array([i])][0], together[i])
    for other in (
        AugmentedImages(images, KEYS, FAMILIES, view=2),
        AugmentedImages(images, KEYS, FAMILIES, view=1, seed=1),
        AugmentedImages(images, KEYS[::-1], FAMILIES, view=1),
    ):
        assert not np.array_equal(other[np.arange(6)], together)


def test_features_of_views_are_those_of_augmented_images(tmp_path):
    images, backbone = pixels(), Shrink()
    cache = cache_views(backbone, images, tmp_path, keys=KEYS, families=FAMILIES, views=3)
    assert (cache.views, len(cache), backbone.seen) == (4, 6, 24 + 1)  # one image to learn the shape
    everything = np.arange(6)
    np.testing.assert_array_equal(cache[everything], cache_features(backbone, images, tmp_path, keys=KEYS)[everything])
    expected = [images, *(AugmentedImages(images, KEYS, FAMILIES, view=v)[everything] for v in range(3))]
    of_views = [backbone(torch.from_numpy(each)).half().numpy() for each in expected]
    drawn = set()
    for epoch in range(12):
        rows = cache.epoch(epoch, seed=5)[everything]
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
    assert backbone.seen == 12  # the two new views
    again = Shrink()
    cache_views(again, images, tmp_path, keys=KEYS, families=FAMILIES, views=3)
    assert again.seen == 0
    cache_views(again, images, tmp_path, keys=KEYS, families=("flip",), views=1)
    cache_views(again, images, tmp_path, keys=KEYS, families=("flip",), views=1, seed=1)
    assert again.seen == 12


def test_space_is_bounded(tmp_path):
    row = 2 * 3 * 4 * 4
    cache = cache_views(
        Shrink(), pixels(), tmp_path, keys=KEYS, families=FAMILIES, views=5, most_bytes=3 * 6 * row + row
    )
    assert cache.views == 3
    assert (tmp_path / "features.f16").stat().st_size == 3 * 6 * row
    assert cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=FAMILIES, views=5, most_bytes=0).views == 1


def test_views_need_families(tmp_path):
    with pytest.raises(ValueError, match="families must be at least one family if views > 0"):
        cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=(), views=1)
    assert cache_views(Shrink(), pixels(), tmp_path, keys=KEYS, families=(), views=0).views == 1


LABELS = np.array([[0, -1, -1], [1, 1, -1], [2, -1, -1], [0, 2, 2], [1, -1, -1], [0, -1, -1]])


def made(**options) -> tuple[Examples, Examples]:
    """Examples of one colour each, and mosaics of them."""
    images = np.broadcast_to(np.arange(40, 280, 40, dtype=np.uint8)[:, None, None, None], (6, 3, 16, 16)).copy()
    examples = Examples(images, LABELS, ("a", "b", "c"), ids=KEYS)
    return examples, mosaic_examples(examples, 40, **{"max_size": 4, **options})


def test_mosaics_contain_the_images_whose_labels_they_have():
    examples, mosaics = made()
    assert len(mosaics) == 40
    x = mosaics.batch(range(40)).x
    for image, counts, name in zip(x, mosaics.counts, mosaics.ids, strict=True):
        parts = [KEYS.index(key) for key in name.split("[")[1].split("]")[0].split(", ")]
        colours = {int(value) for value in image[0, 5:11:5, 5:11:5].flatten()}
        assert colours == {40 * (part + 1) for part in parts}
        np.testing.assert_array_equal(counts, examples.counts[parts].sum(0))
        assert counts.sum() <= 4
    assert {len(name.split(", ")) for name in mosaics.ids} == {2, 4}


def test_mosaics_are_a_function_of_the_seed():
    assert made()[1].ids == made()[1].ids
    assert made()[1].ids != made(seed=1)[1].ids
    first, again = (made(families=("turn", "colour"))[1].batch(range(9)).x for _ in range(2))
    assert torch.equal(first, again)
    one_by_one = torch.cat([made(families=("turn", "colour"))[1].batch([i]).x for i in range(9)])
    assert torch.equal(one_by_one, first)


def test_too_large_multisets_are_not_joined():
    assert len(made(max_size=1)[1]) == 0
    assert made(max_size=2)[1].counts.sum(1).tolist() == [2] * 40


def test_mosaics_are_cached_beside_their_images(tmp_path):
    examples, mosaics = made()
    backbone = Shrink()
    plain = cache_features(backbone, examples.inputs, tmp_path, keys=examples.ids)
    joined = cache_features(backbone, mosaics.inputs, tmp_path, keys=mosaics.ids)
    both = concatenate(
        Examples(plain, examples.labels, examples.classes, ids=examples.ids),
        Examples(joined, mosaics.labels, mosaics.classes, ids=mosaics.ids),
    )
    assert len(both) == 46
    batch = both.batch([7, 0, 45, 3])
    pixel_batch = concatenate(examples, mosaics).batch([7, 0, 45, 3])
    torch.testing.assert_close(batch.x, backbone(pixel_batch.x).half())
    assert torch.equal(batch.target, pixel_batch.target)
    assert both.ids[7] == mosaics.ids[1]
    np.testing.assert_array_equal(both.counts, np.concatenate([examples.counts, mosaics.counts]))


def test_other_classes_cannot_be_concatenated():
    examples = made()[0]
    with pytest.raises(ValueError, match="second must be examples of the classes"):
        concatenate(examples, Examples(pixels(1), np.array([[0]]), ("x", "b", "c")))
