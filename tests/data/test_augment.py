"""Augmentations, compared with plain loops and with the boxes that they return."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmultiset.data import Batch
from torchmultiset.data.augment import AUGMENTATIONS, affine, shift, smooth_labels
from torchmultiset.data.photos import PHOTO_FAMILIES
from torchmultiset.training.config import ResolvedOptim


def batch_of(x: Tensor, points: list[tuple[float, float]] | None = None) -> Batch:
    """A batch with a box of size zero at each point (x, y), whose new position shows where the point moved."""
    count, slots = len(x), len(points or [()])
    labels = torch.zeros(count, slots, dtype=torch.int64)
    boxes = None
    if points:
        boxes = torch.tensor([[*point, 0, 0] for point in points], dtype=torch.float32).expand(count, -1, -1)
    return Batch(x, torch.full((count, 1), slots), labels, boxes)


def noise(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    x = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return x if dtype == torch.uint8 else x.to(dtype) / 255


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- shift


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_shift_equals_a_plain_loop(dtype: torch.dtype, channels: int) -> None:
    x = noise(40, channels, 24, 36, dtype=dtype)
    moved = shift(batch_of(x, [(10.0, 7.0)]), seeded())
    assert moved.x.dtype == dtype
    for before, after, (right, down) in zip(
        x.numpy(), moved.x.numpy(), (moved.boxes[:, 0, :2] - torch.tensor([10, 7])).int().tolist(), strict=True
    ):
        expected = np.zeros_like(before)
        for i in range(24):
            for j in range(36):
                if 0 <= i - down < 24 and 0 <= j - right < 36:
                    expected[:, i, j] = before[:, i - down, j - right]
        np.testing.assert_array_equal(after, expected)


def test_all_shifts_up_to_a_twelfth_are_equally_likely() -> None:
    moved = shift(batch_of(torch.zeros(7000, 1, 24, 36), [(0.0, 0.0)]), seeded()).boxes[:, 0].int()
    counts = np.zeros((5, 7))
    for right, down, *_ in moved.tolist():
        counts[down + 2, right + 3] += 1
    # 200 expected of each; chi-squared with 34 degrees of freedom is below 65 in 999 of 1,000 cases.
    assert ((counts - 200) ** 2 / 200).sum() < 65


def test_small_images_are_not_shifted() -> None:
    x = noise(5, 1, 11, 11)
    assert torch.equal(shift(batch_of(x), seeded()).x, x)


# --- affine


@pytest.mark.parametrize("shape", [(8, 1, 20, 20), (8, 3, 12, 30)])
def test_an_affine_map_without_changes_is_the_identity(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    assert torch.equal(affine(batch_of(x), seeded(), degrees=0, scale=0, by=0).x, x)
    x = noise(*shape, dtype=torch.float32)
    torch.testing.assert_close(affine(batch_of(x), seeded(), degrees=0, scale=0, by=0).x, x, rtol=0, atol=1e-4)


def test_bending_moves_points_smoothly_with_the_given_standard_deviation() -> None:
    """The pixels of the images are their own coordinates, so that the result shows where each pixel came from."""
    down, across = torch.meshgrid(torch.arange(40.0), torch.arange(60.0), indexing="ij")
    x = torch.stack([across, down]).expand(200, -1, -1, -1)
    bent = affine(batch_of(x), seeded(), degrees=0, scale=0, by=0, bend=1 / 20).x
    moved = (bent - x)[..., 8:-8, 12:-12]  # pixels from outside the image are black
    for distance, side in zip(moved.unbind(1), (60, 40), strict=True):
        assert 0.6 < distance.std() / (side / 20) < 1  # a little less between the knots of the field
        assert distance.mean().abs() < 0.1
        assert distance.mean((1, 2)).std() > 0.1 * side / 20, "all images are bent alike"
    assert moved.diff(dim=3).abs().mean() < 0.2 * moved.abs().mean()


def bilinear(image: np.ndarray, x: float, y: float) -> float:
    """Interpolate at (x, y), where the centre of the first pixel is (0.5, 0.5); black outside."""
    left, top = math.floor(x - 0.5), math.floor(y - 0.5)
    value = 0.0
    for i, j in [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)]:
        if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
            value += (1 - abs(x - 0.5 - j)) * (1 - abs(y - 0.5 - i)) * float(image[i, j])
    return value


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_affine_map_moves_pixels_like_points(dtype: torch.dtype) -> None:
    """Three points determine the map; a plain loop applies its inverse to each pixel."""
    x = noise(6, 1, 14, 22, dtype=dtype)
    corners = np.array([(0, 0), (22, 0), (0, 14)])
    changed = affine(batch_of(x, corners.tolist()), seeded(), degrees=25, scale=0.3, by=0.2)
    assert changed.x.dtype == dtype
    known = np.hstack([corners, np.ones((3, 1))])
    for before, after, boxes in zip(x[:, 0].numpy(), changed.x[:, 0].numpy(), changed.boxes.numpy(), strict=True):
        forward = np.linalg.solve(known, boxes[:, :2].astype(float))  # (x, y, 1) @ forward = (x', y')
        expected = np.zeros((14, 22))
        for i in range(14):
            for j in range(22):
                source = np.linalg.solve(forward[:2].T, np.array([j + 0.5, i + 0.5]) - forward[2])
                expected[i, j] = bilinear(before, *source)
        tolerance = 0.51 if dtype == torch.uint8 else 1e-3  # rounded to whole numbers
        np.testing.assert_allclose(after, expected, atol=tolerance)


def test_an_affine_map_rotates_scales_and_moves_within_its_bounds() -> None:
    height, width = 12, 18
    corners = [(9.0, 6.0), (29.0, 6.0), (9.0, 26.0)]  # the centre, and two points 20 pixels from it
    boxes = affine(batch_of(torch.zeros(3000, 1, height, width), corners), seeded()).boxes[..., :2].double()
    across, down = boxes[:, 1] - boxes[:, 0], boxes[:, 2] - boxes[:, 0]
    torch.testing.assert_close((across * down).sum(-1), torch.zeros(3000).double(), rtol=0, atol=1e-3)  # no shear
    assert ((across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]) > 0).all()  # no reflection
    factors = across.norm(dim=-1) / 20
    torch.testing.assert_close(down.norm(dim=-1) / 20, factors, rtol=1e-4, atol=0)
    degrees = torch.rad2deg(torch.atan2(across[:, 1], across[:, 0]))
    # The translation is the displacement of the centre, rotated and scaled back.
    moved = torch.einsum("bij,bj->bi", torch.stack([across, down], 1), boxes[:, 0] - torch.tensor([9, 6]))
    moved = moved / (20 * factors[:, None] ** 2)
    for values, bound in ((degrees, 10), (factors - 1, 0.1), (moved[:, 0], width / 12), (moved[:, 1], height / 12)):
        assert values.abs().max() <= bound * 1.001
        assert values.abs().max() > 0.99 * bound
        assert values.mean() == pytest.approx(0, abs=0.05 * bound)
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)  # uniform


def test_boxes_and_areas_match_the_pixels() -> None:
    x = torch.zeros(50, 1, 60, 60)
    x[:, :, 20:40, 24:36] = 1
    batch = batch_of(x)._replace(
        boxes=torch.tensor([[24.0, 20, 12, 20]]).expand(50, 1, 4), areas=torch.full((50, 1), 240.0)
    )
    changed = affine(batch, seeded())
    mass = changed.x[:, 0]
    torch.testing.assert_close(mass.sum((1, 2)), changed.areas[:, 0], rtol=0.02, atol=0)
    pixels = torch.arange(60) + 0.5
    centres = (
        torch.stack([(mass.sum(1) * pixels).sum(-1), (mass.sum(2) * pixels).sum(-1)], -1) / mass.sum((1, 2))[:, None]
    )
    boxes = changed.boxes[:, 0]
    torch.testing.assert_close(boxes[:, :2] + boxes[:, 2:] / 2, centres, rtol=0, atol=0.05)
    torch.testing.assert_close(boxes[:, 2] * boxes[:, 3], changed.areas[:, 0])


# --- all


@pytest.mark.parametrize("name", ["shift", "affine"])
def test_augmentations_are_determined_by_the_generator(name: str) -> None:
    batch = batch_of(noise(16, 1, 24, 24), [(3.0, 4.0)])
    first, same, other = (AUGMENTATIONS[name](batch, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.x, same.x)
    assert torch.equal(first.boxes, same.boxes)
    assert not torch.equal(first.x, other.x)
    assert len({image.tobytes() for image in first.x.numpy()}) == 16  # every image differs
    assert torch.equal(first.labels, batch.labels)
    assert torch.equal(first.target, batch.target)
    assert torch.equal(batch.x, noise(16, 1, 24, 24))  # the batch is unchanged


@pytest.mark.parametrize("name", ["shift", "affine"])
def test_vectors_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"augment requires images .*, but inputs have shape \(4, 3\)"):
        AUGMENTATIONS[name](batch_of(torch.zeros(4, 3)), seeded())


def test_none_changes_neither_the_batch_nor_the_generator() -> None:
    batch, generator = batch_of(noise(4, 1, 24, 24)), seeded()
    assert AUGMENTATIONS["none"](batch, generator) is batch
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_the_config_has_all_augmentations() -> None:
    assert get_args(get_type_hints(ResolvedOptim)["augment"]) == (*AUGMENTATIONS, *PHOTO_FAMILIES)


# --- labels


def labelled(count: int) -> Batch:
    """A batch whose example i has i + 1 labels of class i, with boxes of size i + 1."""
    numbers = torch.arange(count)
    labels = torch.where(numbers <= numbers[:, None], numbers[:, None], -1)
    sizes = (numbers + 1.0)[:, None].expand(count, count)
    return Batch(noise(count, 1, 4, 4), torch.diag(numbers + 1), labels, sizes[..., None].expand(-1, -1, 4), sizes)


def test_smoothing_replaces_labels_with_their_boxes_and_areas_but_not_images():
    batch = labelled(40)
    smoothed = smooth_labels(batch, seeded(), probability=0.5)
    assert smoothed.x is batch.x
    source = smoothed.target.argmax(1)  # example i has labels of class i only
    for name in ("target", "labels", "boxes", "areas"):
        assert torch.equal(getattr(smoothed, name), getattr(batch, name)[source])
    assert 10 < (source != torch.arange(40)).sum() < 30
    assert torch.equal(smooth_labels(batch, seeded(), probability=0.5).target, smoothed.target)


def test_the_fraction_of_replaced_labels_is_the_probability():
    batch = labelled(100)
    generator = seeded(3)
    changed = [
        float((smooth_labels(batch, generator, probability=0.1).target != batch.target).any(1).float().mean())
        for _ in range(200)
    ]
    # One replacement in a hundred is by the example's own labels. The bound is four standard errors.
    assert abs(np.mean(changed) - 0.099) < 4 * math.sqrt(0.1 * 0.9 / 20_000)
    assert torch.equal(smooth_labels(batch, generator, probability=0.0).target, batch.target)


def test_smoothing_keeps_missing_boxes_missing():
    batch = labelled(5)._replace(boxes=None, areas=None)
    smoothed = smooth_labels(batch, seeded(), probability=0.9)
    assert smoothed.boxes is None
    assert smoothed.areas is None
