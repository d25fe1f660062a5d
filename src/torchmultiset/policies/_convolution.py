"""Convolutions of small maps that a recurrent layer repeats at every step: directly, or by Winograd's algorithm.

What is read of a map is prepared once, however many layers and steps read it, and so are the weights.

Winograd's F(3x3, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016) cuts a map into
tiles of 3x3 results, each of which depends on 5x5 numbers. Both are taken to another basis, in which the convolution is
one product of numbers in each of 25 places: 25 multiplications for 9 results in place of 81. Change of basis and
products are matrix products, and so are their gradients, which autograd finds by itself. What comes out is what
`conv2d` computes, with twice its rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import conv2d

__all__ = ["Convolution", "Direct", "Winograd", "choose_convolution"]

FEW_EXAMPLES = 8
"""With fewer, preparing the weights costs more than it saves."""


@runtime_checkable
class Convolution(Protocol):
    """A convolution that keeps the size of its maps."""

    def read(self, maps: Tensor) -> Tensor:
        """What is needed of maps (B, channels, h, w) wherever they enter."""
        ...

    def weights(self, weight: Tensor) -> Tensor:
        """What is needed of the weights (results, channels, k, k)."""
        ...

    def results(self, read: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Maps (B, results, h, w) of all that was read, side by side, with the weights of as many channels."""
        ...

    def select(self, read: Tensor, index: Tensor) -> Tensor:
        """What was read of the examples at these positions."""
        ...


def choose_convolution(memory: Tensor, kernel: int) -> Convolution:
    """The quicker one for maps like these.

    Args:
        memory: (B, channels, h, w).
        kernel: Size of the convolutions.
    """
    height, width = memory.shape[2:]
    multiplications = 25 * _tiles(height) * _tiles(width)
    # On other devices the vendor's library chooses; with half the digits, the basis has too few left.
    plain = memory.device.type != "cpu" or memory.dtype.itemsize < 4 or torch.is_autocast_enabled("cpu")
    plain = plain or torch.compiler.is_exporting()  # other runtimes have convolutions of their own
    if plain or len(memory) < FEW_EXAMPLES or kernel != 3 or 2 * multiplications > 9 * height * width:
        return Direct(kernel // 2)
    return Winograd(height, width)


class Direct:
    """`conv2d`."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def read(self, maps: Tensor) -> Tensor:
        return maps

    def weights(self, weight: Tensor) -> Tensor:
        return weight

    def results(self, read: Sequence[Tensor], weights: Tensor) -> Tensor:
        maps = _join(read, 1)
        return conv2d(maps, weights[:, : maps.shape[1]], padding=self.padding)

    def select(self, read: Tensor, index: Tensor) -> Tensor:
        return read[index]


# For tiles of 3 results, in one dimension: results = _RESULTS ((_WEIGHTS weights) * (_INPUTS inputs)).
_INPUTS = [[2, -1, -2, 1, 0], [0, -2, -1, 1, 0], [0, 2, -3, 1, 0], [0, -1, 0, 1, 0], [0, 2, -1, -2, 1]]
_WEIGHTS = [[1 / 2, 0, 0], [-1 / 2, -1 / 2, -1 / 2], [-1 / 6, 1 / 6, -1 / 6], [1 / 6, 1 / 3, 2 / 3], [0, 0, 1]]
_RESULTS = [[1, 1, 1, 1, 0], [0, 1, -1, 2, 0], [0, 1, 1, 4, 1]]


class Winograd:
    """3x3, on a CPU.

    In memory the positions of a map come first, then examples, then channels: a change of basis along height or width
    is then a product with one small matrix.
    """

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width

    def read(self, maps: Tensor) -> Tensor:
        """(5 places down x tiles down x 5 places across, tiles across x B, channels)."""
        b, channels, height, width = maps.shape
        down, across = _to_places(height, maps.dtype), _to_places(width, maps.dtype)
        by_position = maps.permute(2, 3, 0, 1).reshape(height, -1)
        places = torch.bmm(across.expand(len(down), -1, -1), (down @ by_position).view(len(down), width, -1))
        return places.view(-1, _tiles(width) * b, channels)

    def weights(self, weight: Tensor) -> Tensor:
        """(5 places down x tiles down x 5 places across, channels, results)."""
        to_places = weight.new_tensor(_WEIGHTS)
        places = torch.einsum("ik,jl,ockl->ijco", to_places, to_places, weight)
        return places.unsqueeze(1).expand(-1, _tiles(self.height), -1, -1, -1).reshape(-1, *places.shape[2:])

    def results(self, read: Sequence[Tensor], weights: Tensor) -> Tensor:
        joint = _join(read, 2)
        places = torch.bmm(joint, weights[:, : joint.shape[2]])
        down, across = _from_places(self.height, places.dtype), _from_places(self.width, places.dtype)
        rows = places.view(down.shape[1], across.shape[1], -1)
        by_position = down @ torch.bmm(across.expand(len(rows), -1, -1), rows).view(len(rows), -1)
        return by_position.view(self.height, self.width, -1, places.shape[2]).permute(2, 3, 0, 1)

    def select(self, read: Tensor, index: Tensor) -> Tensor:
        places, _, channels = read.shape
        by_example = read.view(places, _tiles(self.width), -1, channels)
        return by_example.index_select(2, index).view(places, -1, channels)


def _join(read: Sequence[Tensor], dim: int) -> Tensor:
    """All channels, which lie in this dimension."""
    return torch.cat([*read], dim) if len(read) > 1 else read[0]


def _tiles(side: int) -> int:
    return -(-side // 3)


@cache
@torch.inference_mode(mode=False)  # to be kept for a backward pass, whoever asked first
def _to_places(side: int, dtype: torch.dtype) -> Tensor:
    """(5 x tiles, side): of a row of the map, with zeros beyond its ends."""
    tiles = _tiles(side)
    matrix = torch.zeros(5, tiles, 3 * tiles + 2, dtype=dtype)
    for tile in range(tiles):
        matrix[:, tile, 3 * tile : 3 * tile + 5] = torch.tensor(_INPUTS, dtype=dtype)
    return matrix[..., 1 : side + 1].flatten(0, 1).contiguous()


@cache
@torch.inference_mode(mode=False)
def _from_places(side: int, dtype: torch.dtype) -> Tensor:
    """(side, 5 x tiles)."""
    tiles = _tiles(side)
    matrix = torch.zeros(tiles, 3, 5, tiles, dtype=dtype)
    for tile in range(tiles):
        matrix[tile, :, :, tile] = torch.tensor(_RESULTS, dtype=dtype)
    return matrix.flatten(0, 1).flatten(1)[:side].contiguous()
