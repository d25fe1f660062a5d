"""Augmentation of photographs: families of random changes, and mosaics.

A family is a kind of change that leaves the labels of most photographs valid. Which families are safe depends on the
data: a mirrored digit is no longer the same digit, and the sky is rarely at the bottom. Choose on validation data.

| family     | change                                                                            |
| ---------- | --------------------------------------------------------------------------------- |
| `flip`     | mirrored, in half of the cases                                                    |
| `rotation` | rotated by up to 20 degrees in either direction                                   |
| `turn`     | rotated by any angle, for objects seen from above                                 |
| `scale`    | scaled by 0.8 to 1.25                                                             |
| `shift`    | moved at random within the room between the image and the frame                   |
| `colour`   | brightness, contrast, saturation and the gain of each channel changed by up to 25% |

Labels are unchanged. A rotated image is first scaled down to fit into the frame, so that rotation removes no object.
Only a `scale` above 1 can remove objects: it crops up to a tenth of the image on each side.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import grid_sample

from torchmultiset._checks import check, check_one_of
from torchmultiset.data.examples import Batch
from torchmultiset.multiset import from_labels

__all__ = ["FAMILIES", "PHOTO_FAMILIES", "Family", "PhotoAugmentation", "augment_photos", "join_photos"]

Family: TypeAlias = Literal["flip", "rotation", "turn", "scale", "shift", "colour"]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""All families, in the order of the table above."""
PHOTO_FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "photo": ("rotation", "scale", "shift", "colour"),
    "photo-flip": ("flip", "rotation", "scale", "shift", "colour"),
    "photo-turn": ("turn", "scale", "shift", "colour"),
}
"""Sets of families by the name of the setting `augment`."""

_DEGREES = 20
_SCALE = 1.25
_COLOUR = 0.25
_TRIES = 8  # number of attempts to find partners for a mosaic before the image is left unchanged
LAYOUTS = ((1, 2), (2, 1), (2, 2))
"""Rows and columns of a mosaic."""


class _Geometry(NamedTuple):
    """Mapping of the pixels of images: p -> factor * rotation * (p - centre) + middle."""

    centre: Float[Tensor, "b 2"]
    rotation: Float[Tensor, "b 2 2"]
    """Includes the reflection, if the image is mirrored."""
    factor: Float[Tensor, " b"]
    middle: Float[Tensor, "b 2"]


@dataclass(frozen=True)
class PhotoAugmentation:
    """Random augmentation of a batch of photographs: a pure function of the batch and the state of the generator.

    Args:
        families: Families of changes, see the module.
        mosaic: Probability that an image becomes a mosaic: two or four images of the batch, with all their labels.
        max_size: Maximum number of labels of a mosaic. None: that of the data set. An image for which no partners are
            found within this limit is not joined.

    Boxes follow the centre of their objects and are scaled, but stay axis-aligned.

    Example:
        >>> x = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> labels = torch.tensor([[0, -1], [1, -1], [0, 1], [1, -1]])
        >>> batch = Batch(x, from_labels(labels, 2), labels)
        >>> augment = PhotoAugmentation(("turn", "colour"), mosaic=1.0)
        >>> joined = augment(batch, torch.Generator().manual_seed(0))
        >>> joined.x.shape, joined.target.sum(1)
        (torch.Size([4, 3, 32, 32]), tensor([2, 2, 2, 2]))
    """

    families: Sequence[Family] = ("rotation", "scale", "shift", "colour")
    mosaic: float = 0.0
    max_size: int | None = None

    def __post_init__(self) -> None:
        _check_families(self.families)
        check(0 <= self.mosaic <= 1, "mosaic", "a probability", self.mosaic)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Augment the images of a batch, on the device of the generator."""
        x = batch.x
        images = x.ndim == 4 and x.shape[1] in (1, 3)
        check(images, "batch.x", "images of shape (B, 3, H, W) or (B, 1, H, W)", x)
        count, _, height, width = x.shape
        sources, cells = _draw_mosaics(batch, self.mosaic, self.max_size, generator)
        most = batch.labels.shape[1] if self.max_size is None else max(self.max_size, batch.labels.shape[1])
        out = torch.empty_like(x, dtype=torch.float32)
        boxes = None if batch.boxes is None else batch.boxes.new_zeros(count, 4, batch.labels.shape[1], 4)
        areas = None if batch.areas is None else batch.areas.new_zeros(count, 4, batch.labels.shape[1])
        for rows, columns in ((1, 1), *LAYOUTS):
            mine = ((cells == torch.tensor([rows, columns], device=x.device)).all(1)).nonzero().squeeze(1)
            size, corners = _cells(height, width, rows, columns)
            for cell, (top, left) in enumerate(corners if len(mine) else []):
                source = sources[mine, cell]
                tile, geometry = _draw_tile(x[source], size, self.families, generator)
                out[mine, :, top : top + size[0], left : left + size[1]] = tile
                if boxes is not None:
                    assert batch.boxes is not None
                    corner = torch.tensor([left, top], device=x.device)
                    boxes[mine, cell] = _move_boxes(batch.boxes[source], geometry, corner)
                if areas is not None:
                    assert batch.areas is not None
                    areas[mine, cell] = batch.areas[source] * geometry.factor[:, None] ** 2
        if "colour" in self.families:
            out = _recolour(out, x.is_floating_point(), generator)
        labels = torch.where(sources[..., None] < 0, -1, batch.labels[sources])  # (B, 4, M)
        order = (labels < 0).flatten(1).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        labels = labels.flatten(1).gather(1, order)
        if boxes is not None:
            boxes = boxes.flatten(1, 2).gather(1, order[..., None].expand(-1, -1, 4))
        if areas is not None:
            areas = areas.flatten(1).gather(1, order)
        target = from_labels(labels, batch.target.shape[1])
        return Batch(_as_dtype(out, x), target, labels, boxes, areas)


def augment_photos(
    images: Shaped[Tensor, "b c h w"], generator: torch.Generator, families: Collection[Family]
) -> Shaped[Tensor, "b c h w"]:
    """Augment images, one random view of each; without families, return them unchanged.

    Args:
        images: Images (B, channels, H, W), uint8 or floating-point in [0, 1]. Black borders, which `read_image` adds to
            images that are not square, do not count as part of an image.
        generator: Random generator.
        families: Families of changes, see the module.

    Example:
        >>> images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
        >>> torch.equal(augment_photos(images, torch.Generator(), ()), images)
        True
    """
    return join_photos(images[:, None], generator, families, layout=(1, 1))


def join_photos(
    images: Shaped[Tensor, "b n c h w"],
    generator: torch.Generator,
    families: Collection[Family],
    *,
    layout: tuple[int, int],
) -> Shaped[Tensor, "b c h w"]:
    """Augment the images of each row of the batch and join them into one mosaic of the same size.

    Args:
        images: Images (B, N, channels, H, W).
        generator: Random generator.
        families: Families of changes, see the module.
        layout: Number of rows and columns of the mosaic, whose product is N.
    """
    _check_families(families)
    rows, columns = layout
    check(rows * columns == images.shape[1], "layout", f"rows and columns of {images.shape[1]} images", layout)
    height, width = images.shape[-2:]
    size, corners = _cells(height, width, rows, columns)
    out = torch.empty(images.shape[0], *images.shape[2:], device=images.device)
    for cell, (top, left) in enumerate(corners):
        tile, _ = _draw_tile(images[:, cell], size, families, generator)
        out[:, :, top : top + size[0], left : left + size[1]] = tile
    if "colour" in families:
        out = _recolour(out, images.is_floating_point(), generator)
    return _as_dtype(out, images)


def _cells(height: int, width: int, rows: int, columns: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Return the height and width of a mosaic's cells, and the top and left of each; cells overlap if a side is odd."""
    size = -(-height // rows), -(-width // columns)
    corners = [(top, left) for top in (0, height - size[0])[:rows] for left in (0, width - size[1])[:columns]]
    return size, corners


def _draw_mosaics(
    batch: Batch, probability: float, max_size: int | None, generator: torch.Generator
) -> tuple[Int64[Tensor, "b 4"], Int64[Tensor, "b 2"]]:
    """Draw the images of each mosaic, padded with -1, and its rows and columns."""
    x, sizes = batch.x, batch.target.sum(1)
    count, device = len(x), x.device
    alone = torch.arange(count, device=device)
    sources = torch.full((count, 4), -1, device=device)
    sources[:, 0] = alone
    layouts = torch.tensor([(1, 1), *LAYOUTS], device=device)
    if not probability or count < 2:
        return sources, layouts[:1].expand(count, 2)
    most = batch.labels.shape[1] if max_size is None else max_size
    chosen = torch.rand(count, generator=generator, device=device) < probability
    kind = torch.randint(1, len(layouts), (count,), generator=generator, device=device)
    number = layouts[kind].prod(1)  # 2 or 4 images
    # Partners other than the image itself: offsets from 1 to B - 1.
    offsets = torch.randint(1, count, (count, _TRIES, 3), generator=generator, device=device)
    partners = (alone[:, None, None] + offsets) % count
    needed = torch.arange(3, device=device) < number[:, None, None] - 1
    total = sizes[:, None] + (sizes[partners] * needed).sum(-1)
    fits = total <= most  # (B, tries)
    first = fits.to(torch.int8).argmax(1)
    joined = chosen & fits.any(1)
    picked = partners[alone, first].masked_fill(~needed[:, 0], -1)
    sources[:, 1:] = torch.where(joined[:, None], picked, -1)
    return sources, layouts[torch.where(joined, kind, 0)]


def _draw_tile(
    images: Shaped[Tensor, "b c h w"], size: tuple[int, int], families: Collection[Family], generator: torch.Generator
) -> tuple[Float[Tensor, "b c i j"], _Geometry]:
    """Draw random views of the images for cells of this height and width."""
    count, device = len(images), images.device

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=generator, device=device) - 1

    centre, extent = _content(images)
    degrees = 180 if "turn" in families else _DEGREES if "rotation" in families else 0
    angle = torch.deg2rad(degrees * uniform(count)) if degrees else torch.zeros(count, device=device)
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    frame = torch.tensor([size[1], size[0]], device=device, dtype=torch.float32)
    rotated = (rotation.abs() @ extent[..., None]).squeeze(-1)  # width and height of the rotated image's box
    factor = (frame / rotated).amin(1)
    if "scale" in families:
        factor = factor * torch.exp(math.log(_SCALE) * uniform(count))
    if "flip" in families:
        sign = uniform(count).sign()
        rotation = rotation * torch.stack([sign, torch.ones_like(sign)], -1)[:, None]
    middle = (frame / 2).expand(count, 2)
    if "shift" in families:
        middle = middle + uniform(count, 2) * (frame - factor[:, None] * rotated).abs() / 2
    geometry = _Geometry(centre, rotation, factor, middle)
    return _sample(images, geometry, size), geometry


def _sample(images: Tensor, geometry: _Geometry, size: tuple[int, int]) -> Tensor:
    """Sample the images: each pixel of the frame reads the position that is mapped to it; black outside."""
    height, width = images.shape[-2:]
    device = images.device
    half = torch.tensor([width, height], device=device) / 2
    # The inverse map, in units of half the width and height, as a sum of rows and columns.
    back = geometry.rotation.mT / geometry.factor[:, None, None] / half[:, None]
    start = (geometry.centre - half) / half - (back @ geometry.middle[..., None]).squeeze(-1)
    rows, columns = (torch.arange(side, device=device) + 0.5 for side in size)
    of_rows = back[:, None, :, 1] * rows[:, None] + start[:, None]
    grid = of_rows[:, :, None] + (back[:, None, :, 0] * columns[:, None])[:, None]
    return grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _content(images: Tensor) -> tuple[Float[Tensor, "b 2"], Float[Tensor, "b 2"]]:
    """Return the centre (x, y) and extent (width, height) of the images without their black borders."""
    brightest = images.amax(1)
    ends = []
    for lines in (brightest.amax(1), brightest.amax(2)):  # columns, rows
        used = (lines > 0).to(torch.int8)
        length = used.shape[1]
        first, last = used.argmax(1), length - used.flip(1).argmax(1)
        empty = used.amax(1) == 0
        ends.append((first.masked_fill(empty, 0), last.masked_fill(empty, length)))
    first, last = (torch.stack([x, y], -1).float() for x, y in zip(*ends, strict=True))
    return (first + last) / 2, last - first


def _recolour(images: Tensor, unit: bool, generator: torch.Generator) -> Tensor:
    count = len(images)

    def gain(*shape: int) -> Tensor:
        return 1 + _COLOUR * (2 * torch.rand(*shape, generator=generator, device=images.device) - 1)

    brightness, contrast, saturation = gain(3, count, 1, 1, 1)
    images = images * (brightness * (1 + (gain(count, images.shape[1], 1, 1) - 1) / 2))
    mean = images.mean((1, 2, 3), keepdim=True)
    grey = images.mean(1, keepdim=True)
    images = ((images - grey) * saturation + grey - mean) * contrast + mean
    return images.clamp_(0, 1 if unit else 255)


def _as_dtype(images: Tensor, like: Tensor) -> Tensor:
    return images.to(like.dtype) if like.is_floating_point() else images.round_().clamp_(0, 255).to(like.dtype)


def _move_boxes(boxes: Tensor, geometry: _Geometry, corner: Tensor) -> Tensor:
    size = boxes[..., 2:] * geometry.factor[:, None, None]
    centre = boxes[..., :2] + boxes[..., 2:] / 2 - geometry.centre[:, None]
    moved = centre @ geometry.rotation.mT * geometry.factor[:, None, None] + geometry.middle[:, None] + corner
    return torch.cat([moved - size / 2, size], -1)


def _check_families(families: Collection[str]) -> None:
    for family in families:
        check_one_of("families", family, FAMILIES)
