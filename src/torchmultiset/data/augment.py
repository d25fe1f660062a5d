"""Data augmentation and label smoothing of a training batch.

Image augmentation leaves the labels unchanged, even those of objects that are moved out of the image, so
transformations are small. Label smoothing changes only the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from torchmultiset.data.examples import Batch

__all__ = ["AUGMENTATIONS", "affine", "shift", "smooth_labels"]

_LABELS = ("target", "labels", "boxes", "areas")
"""Fields of a batch that describe its labels."""


def shift(batch: Batch, generator: torch.Generator, *, by: int | float = 1 / 12) -> Batch:
    """Translate each image and its boxes by a random number of pixels along both axes; fill with black.

    Args:
        batch: Batch with images (B, channels, H, W) as inputs.
        generator: Random generator on the device of the images; all offsets are equally likely.
        by: Maximum offset, as a fraction of the image's height and width.

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
    # A view of all possible offsets, of which one per image is copied.
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
    """Translate, rotate and scale each image about its centre, with one bilinear interpolation; fill with black.

    A box follows the centre of its object and is scaled, but stays axis-aligned; `bend` does not affect boxes.

    Args:
        batch: Batch with images (B, channels, H, W) as inputs.
        generator: Random generator on the device of the images; parameters are uniform between their bounds.
        degrees: Maximum rotation angle in either direction.
        scale: Maximum relative change in size: 0.1 scales by 0.9 to 1.1.
        by: Maximum translation, as a fraction of the image's height and width.
        bend: Strength of the elastic deformation, as a fraction of the image's height and width: the standard deviation
            of a random displacement field that is smooth over a quarter of them.
    """
    x = _images(batch)
    count, _, height, width = x.shape
    turn, grow, right, down = 2 * torch.rand(4, count, generator=generator, device=x.device) - 1
    angle, factor = torch.deg2rad(degrees * turn), (1 + scale * grow)[:, None, None]
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    half = torch.tensor([width, height], device=x.device) / 2
    move = 2 * by * half * torch.stack([right, down], -1)
    # Relative to the centre, p is mapped to factor * rotation (p + move). `grid_sample` needs the inverse map, in units
    # of half the width and height. Computed as a sum of rows and columns, it takes a tenth of `affine_grid`'s time.
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


def smooth_labels(batch: Batch, generator: torch.Generator, *, probability: float) -> Batch:
    r"""Replace the labels of some examples by those of a random example of the batch.

    In expectation this is label smoothing for any objective: the target is a mixture of the true multiset, with weight
    :math:`1 - \epsilon`, and the distribution of multisets in the batch, with weight :math:`\epsilon`.

    Args:
        batch: Batch of examples; inputs are unchanged.
        generator: Random generator on the device of the batch.
        probability: Probability :math:`\epsilon` of replacing the labels of an example.

    Example:
        >>> batch = Batch(torch.zeros(3, 1), target=torch.eye(3).long(), labels=torch.tensor([[0], [1], [2]]))
        >>> smooth_labels(batch, torch.Generator().manual_seed(0), probability=0.5).labels.T
        tensor([[2, 0, 2]])

    Reference:
        Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016; sampled as here:
        Xie et al., "DisturbLabel: Regularizing CNN on the Loss Layer", CVPR 2016.
    """
    index = torch.arange(len(batch.target), device=batch.target.device)
    other = torch.randint(len(index), index.shape, generator=generator, device=index.device)
    chance = torch.rand(index.shape, generator=generator, device=index.device)
    source = torch.where(chance < probability, other, index)
    changed = {name: each[source] for name in _LABELS if (each := getattr(batch, name)) is not None}
    return batch._replace(**changed)


def _images(batch: Batch) -> Shaped[Tensor, "b c h w"]:
    if batch.x.ndim != 4:
        raise ValueError(f"augment requires images (B, channels, H, W), but inputs have shape {tuple(batch.x.shape)}")
    return batch.x


AUGMENTATIONS: Mapping[str, Callable[[Batch, torch.Generator], Batch]] = {
    "none": lambda batch, _: batch,
    "shift": shift,
    "affine": affine,
}
"""Augmentations by their names in `OptimConfig.augment`."""
