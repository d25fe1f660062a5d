"""Augmented photographs and mosaics: pixels are compared with plain loops, labels exactly."""

from __future__ import annotations

import math

import pytest
import torch

from torchmultiset.data import photos
from torchmultiset.data.examples import Batch
from torchmultiset.data.photos import FAMILIES, PhotoAugmentation, augment_photos, join_photos
from torchmultiset.multiset import from_labels


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=seeded(seed))


def make_batch(labels: list[list[int]], *, size=(16, 16), classes: int = 3) -> Batch:
    padded = torch.tensor(labels)
    return Batch(noise(len(labels), 3, *size), from_labels(padded, classes), padded)


def multiset(labels: torch.Tensor) -> list[int]:
    return sorted(int(label) for label in labels if label >= 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_changes_images_reproducibly(family):
    images = noise(6, 3, 24, 24)
    views = augment_photos(images, seeded(3), (family,))
    assert views.dtype == torch.uint8
    assert views.shape == images.shape
    assert torch.equal(views, augment_photos(images, seeded(3), (family,)))
    assert not torch.equal(views, augment_photos(images, seeded(4), (family,))) or family == "shift"
    assert not torch.equal(views, images) or family == "shift"  # an image that fills the frame cannot be shifted


def test_float_images_stay_floats_from_0_to_1():
    views = augment_photos(torch.rand(4, 3, 9, 9), seeded(), FAMILIES)
    assert views.dtype == torch.float32
    assert 0 <= float(views.min()) <= float(views.max()) <= 1


def test_flip_mirrors_about_half_of_the_images():
    images = noise(64, 3, 8, 8)
    views = augment_photos(images, seeded(), ("flip",))
    flipped = [torch.equal(view, image.flip(2)) for view, image in zip(views, images, strict=True)]
    same = [torch.equal(view, image) for view, image in zip(views, images, strict=True)]
    assert all(a != b for a, b in zip(flipped, same, strict=True))
    assert 16 < sum(flipped) < 48


def test_a_rotated_image_keeps_its_four_corners():
    """Marks in the corners of a wide image with black borders stay visible at any angle."""
    images = torch.zeros(40, 3, 64, 64, dtype=torch.uint8)
    images[:, :, 12:52] = 60
    for row, column in [(12, 0), (12, 56), (44, 0), (44, 56)]:
        images[:, :, row : row + 8, column : column + 8] = 255
    views = augment_photos(images, seeded(), ("turn",)).float().mean(1)
    bright = (views - 60).clamp(min=0).sum((1, 2)) / 195
    area = (views > 20).sum((1, 2)) / (64 * 40)  # share of the area that is left
    assert (area > 0.4).all()
    torch.testing.assert_close(bright / area, torch.full((40,), 4 * 64.0), rtol=0.15, atol=0)


def test_pixels_equal_a_plain_loop():
    """Bilinear interpolation of rotation and scale, pixel by pixel."""
    image = noise(1, 1, 7, 9).float() / 255
    view, geometry = photos._draw_tile(image, (7, 9), ("rotation", "scale", "flip", "shift"), seeded(1))
    inverse = (geometry.rotation[0] * geometry.factor[0]).double().inverse()
    for i in range(7):
        for j in range(9):
            p = torch.tensor([j + 0.5, i + 0.5], dtype=torch.float64)
            x, y = (inverse @ (p - geometry.middle[0]) + geometry.centre[0] - 0.5).tolist()
            expected = 0.0
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    weight = (1 - abs(y - row)) * (1 - abs(x - column))
                    inside = 0 <= row < 7 and 0 <= column < 9
                    expected += weight * float(image[0, 0, row, column]) if inside else 0.0
            assert float(view[0, 0, i, j]) == pytest.approx(expected, abs=1e-4)


def test_scale_and_shift_stay_within_their_bounds():
    images = torch.zeros(200, 1, 32, 32)
    images[:, :, 8:24] = 1.0
    _, geometry = photos._draw_tile(images, (32, 32), ("scale", "shift"), seeded())
    assert 0.8 <= float(geometry.factor.min()) < 0.85
    assert 1.2 < float(geometry.factor.max()) <= 1.25
    reach = (geometry.middle - 16).abs()
    room = (32 - geometry.factor[:, None] * torch.tensor([32.0, 16.0])).abs() / 2
    assert (reach <= room + 1e-4).all()
    assert float(reach[:, 1].max()) > 6


def test_colour_keeps_the_geometry():
    images = torch.full((8, 3, 6, 6), 100, dtype=torch.uint8)
    views = augment_photos(images, seeded(), ("colour",)).float()
    assert (views.amax((2, 3)) == views.amin((2, 3))).all()
    assert float((views - 100).abs().max()) > 5
    assert float((views - 100).abs().max()) < 60


@pytest.mark.parametrize("layout", [(1, 2), (2, 1), (2, 2)])
def test_mosaics_without_families_are_the_images_scaled_to_their_cells(layout):
    rows, columns = layout
    colours = torch.tensor([40, 90, 140, 190][: rows * columns], dtype=torch.uint8)
    images = colours[None, :, None, None, None].expand(2, -1, 3, 12, 12)
    joined = join_photos(images, seeded(), (), layout=layout)
    assert joined.shape == (2, 3, 12, 12)
    for cell, colour in enumerate(colours):
        middle = (int((cell // columns + 0.5) * 12 / rows), int((cell % columns + 0.5) * 12 / columns))
        assert (joined[:, :, middle[0], middle[1]] == colour).all()


def test_labels_of_mosaics_are_sums_of_multisets():
    """Each image has one colour, so that the pixels show which images were joined."""
    labels = [[0, -1, -1, -1], [1, 1, -1, -1], [2, -1, -1, -1], [0, 2, -1, -1], [1, -1, -1, -1], [0, 1, 2, 2]]
    batch = make_batch(labels)
    x = (40 * torch.arange(1, 7, dtype=torch.uint8)).view(6, 1, 1, 1).expand(6, 3, 16, 16).contiguous()
    batch = batch._replace(x=x)
    numbers_of_parts = set()
    for seed in range(30):
        joined = PhotoAugmentation((), mosaic=0.7)(batch, seeded(seed))
        assert joined.labels.shape == (6, 4)
        for i in range(6):
            quarters = [int(joined.x[i, 0, r, c]) // 40 - 1 for r, c in [(5, 5), (5, 10), (10, 5), (10, 10)]]
            if quarters[0] == quarters[1] == quarters[2] == quarters[3]:
                parts = quarters[:1]
            elif quarters[0] == quarters[1] and quarters[2] == quarters[3]:
                parts = quarters[::2]
            elif quarters[0] == quarters[2] and quarters[1] == quarters[3]:
                parts = quarters[:2]
            else:
                parts = quarters
            expected = sorted(label for part in parts for label in labels[part] if label >= 0)
            if len(expected) == len(multiset(joined.labels[i])):  # equal neighbours can hide an image
                assert multiset(joined.labels[i]) == expected
                numbers_of_parts.add(len(parts))
            assert len(multiset(joined.labels[i])) <= 4
        assert torch.equal(joined.target, from_labels(joined.labels, 3))
    assert numbers_of_parts == {1, 2, 4}


@pytest.mark.slow
@pytest.mark.parametrize("max_size", [2, 3, 6])
def test_sizes_of_mosaics_are_bounded(max_size):
    batch = make_batch([[0, -1], [1, -1], [2, -1], [0, 1]] * 4)
    sizes = torch.cat([PhotoAugmentation((), 1.0, max_size)(batch, seeded(s)).target.sum(1) for s in range(20)])
    assert int(sizes.max()) == max_size if max_size < 6 else int(sizes.max()) > 3
    assert int(sizes.min()) >= 1


def test_without_room_no_images_are_joined():
    batch = make_batch([[0, 1], [1, 2], [2, 2]])
    same = PhotoAugmentation((), mosaic=1.0)(batch, seeded())
    assert torch.equal(same.x, batch.x)
    assert torch.equal(same.labels, batch.labels)
    alone = make_batch([[0, -1]])
    assert torch.equal(PhotoAugmentation((), mosaic=1.0)(alone, seeded()).x, alone.x)


def test_boxes_follow_their_objects():
    """The box of a bright object on grey stays centred on the bright pixels."""
    x = torch.full((8, 3, 64, 64), 60, dtype=torch.uint8)
    boxes, areas = torch.zeros(8, 2, 4), torch.zeros(8, 2)
    for i in range(8):
        top, left = 12 + 4 * i, 40 - 3 * i
        x[i, :, top : top + 8, left : left + 8] = 255
        boxes[i, 0], areas[i, 0] = torch.tensor([left, top, 8.0, 8.0]), 64.0
    labels = torch.tensor([[0, -1]] * 8)
    batch = Batch(x, from_labels(labels, 1), labels, boxes, areas)
    out = PhotoAugmentation(("flip", "turn", "shift"), mosaic=0.5)(batch, seeded())
    assert {1, 2} == set(out.target[:, 0].tolist())
    for i in range(8):
        bright = (out.x[i, 0].float() - 60).clamp(min=0)
        ys, xs = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
        centre = torch.stack([(bright * xs).sum(), (bright * ys).sum()]) / bright.sum()
        real = out.boxes[i, : int(out.target[i, 0])]
        weights = out.areas[i, : len(real)]
        expected = ((real[:, :2] + real[:, 2:] / 2) * weights[:, None]).sum(0) / weights.sum()
        torch.testing.assert_close(centre, expected, rtol=0, atol=1.5)


@pytest.mark.usefixtures("without_shape_hook")
def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match=r"families must be one of 'flip', .* but is 'blur'"):
        PhotoAugmentation(("blur",))
    with pytest.raises(ValueError, match=r"mosaic must be a probability, but is 1\.5"):
        PhotoAugmentation((), mosaic=1.5)
    with pytest.raises(ValueError, match="layout must be rows and columns of 2 images"):
        join_photos(noise(1, 2, 3, 8, 8), seeded(), (), layout=(2, 2))
    batch = make_batch([[0]])._replace(x=torch.zeros(1, 5))
    with pytest.raises(ValueError, match=r"batch.x must be images of shape"):
        PhotoAugmentation()(batch, seeded())
