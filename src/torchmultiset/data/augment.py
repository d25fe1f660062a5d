"""Images that are changed a little at each step of training, so that no two epochs show the same.

Labels stay. What a change moves out of the picture still counts, so changes are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from torchmultiset.data.examples import Batch

__all__ = ["AUGMENTATIONS", "affine", "shift"]


def shift(batch: Batch, generator: torch.Generator, *, by: int | float = 1 / 12) -> Batch:
    """Move each image, with its boxes, by whole pixels up and down, left and right; what comes in is black.

    Args:
        batch: With images (B, channels, H, W) for inputs.
        generator: Decides how far, each distance equally likely; on the device of the images.
        by: The farthest, as a share of the image's height and width.

    Example:
        >>> x = torch.arange(1, 4).expand(1, 1, 3, 3)
        >>> batch = Batch(x, target=torch.tensor([[1]]), labels=torch.tensor([[0]]))
        >>> shift(batch, torch.Generator().manual_seed(0), by=1 / 3).x
        tensor([[[[0, 0, 0],
                  [2, 3, 0],
                  [2, 3, 0]]]])
    """
    x = _images(batch)
    count, _, height, width = x.shape
    rooms = int(height * by), int(width * by)
    # Every place that the image can be seen from, as a view; one of them is copied.
    views = pad(x, (rooms[1], rooms[1], rooms[0], rooms[0])).unfold(2, height, 1).unfold(3, width, 1)
    down, right = (torch.randint(-room, room + 1, (count,), generator=generator, device=x.device) for room in rooms)
    moved = views[torch.arange(count, device=x.device), :, rooms[0] - down, rooms[1] - right]
    boxes = batch.boxes
    if boxes is not None:
        corner, size = boxes[..., :2], boxes[..., 2:]
        boxes = torch.cat([corner + torch.stack([right, down], -1)[:, None], size], -1)
    return batch._replace(x=moved, boxes=boxes)


def affine(
    batch: Batch,
    generator: torch.Generator,
    *,
    degrees: int | float = 10,
    scale: int | float = 0.1,
    by: int | float = 1 / 12,
    bend: int | float = 0,
) -> Batch:
    """Move, turn and scale each image about its middle, by one bilinear interpolation; what comes in is black.

    A box goes with the middle of its object and is scaled, but stays upright; bending leaves it where it is.

    Args:
        batch: With images (B, channels, H, W) for inputs.
        generator: Decides how much, evenly between the bounds; on the device of the images.
        degrees: The largest angle, either way.
        scale: How much larger or smaller: 0.1 is from 0.9 to 1.1.
        by: The farthest, as a share of the image's height and width.
        bend: How far each point is moved beside, as a share of the image's height and width: the standard deviation of
            a random field that is smooth over a quarter of them.
    """
    x = _images(batch)
    count, _, height, width = x.shape
    turn, grow, right, down = 2 * torch.rand(4, count, generator=generator, device=x.device) - 1
    angle, factor = torch.deg2rad(degrees * turn), (1 + scale * grow)[:, None, None]
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    half = torch.tensor([width, height], device=x.device) / 2
    move = 2 * by * half * torch.stack([right, down], -1)
    # Seen from the middle, what was at p is now at factor * rotation (p + move). `grid_sample` wants the way back, in
    # units of half the width and height. As a sum of rows and columns it takes a tenth of `affine_grid`'s time.
    back = rotation.mT / factor / half[:, None]
    rows, columns = (torch.arange(n, device=x.device) + (0.5 - n / 2) for n in (height, width))
    of_rows = back[:, None, :, 1] * rows[:, None] - (move / half)[:, None]  # (B, H, 2)
    of_columns = back[:, None, :, 0] * columns[:, None]  # (B, W, 2)
    grid = of_rows[:, :, None] + of_columns[:, None]
    if bend:
        knots = torch.randn(count, 2, 5, 5, generator=generator, device=x.device)
        field = interpolate(knots, (height, width), mode="bicubic", align_corners=True)
        grid = grid + 2 * bend * field.permute(0, 2, 3, 1)
    changed = grid_sample(x.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    changed = (changed if x.is_floating_point() else changed.round()).to(x.dtype)
    boxes, areas = batch.boxes, batch.areas
    if boxes is not None:
        corner, size = boxes[..., :2], boxes[..., 2:]
        centre = (corner + size / 2 - half + move[:, None]) @ rotation.mT * factor + half
        boxes = torch.cat([centre - factor * size / 2, factor * size], -1)
    if areas is not None:
        areas = areas * factor[..., 0] ** 2
    return batch._replace(x=changed, boxes=boxes, areas=areas)


def _images(batch: Batch) -> Shaped[Tensor, "b c h w"]:
    if batch.x.ndim != 4:
        raise ValueError(f"augment needs images, (B, channels, H, W), but inputs have shape {tuple(batch.x.shape)}")
    return batch.x


AUGMENTATIONS: Mapping[str, Callable[[Batch, torch.Generator], Batch]] = {
    "none": lambda batch, _: batch,
    "shift": shift,
    "affine": affine,
}
"""By the names in `OptimConfig.augment`."""
