"""The paper's convolutional tower for MNIST Multi (Appendix E, network architectures)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import relu

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import MemorySpec
from torchmultiset.encoders._pool import conv_max_pool

__all__ = ["ConvEncoder"]


@recorded
class ConvEncoder(nn.Module):
    """Convolutions for images, each followed by 2x2 max-pooling and ReLU: 100x100 pixels become a 9x9 map.

    Args:
        in_channels: Number of channels of the images.
        channels: Number of output channels of each convolution.
        kernel: Kernel size of the convolutions.
        norm: ``"batch"`` applies batch normalisation after pooling; None, as in the paper, does not.

    Pooling comes before ReLU: the result is the same, since ReLU is monotonic, at a quarter of the ReLU's cost.

    Example:
        >>> encoder = ConvEncoder()
        >>> encoder(torch.zeros(2, 1, 100, 100, dtype=torch.uint8)).shape
        torch.Size([2, 32, 9, 9])
        >>> encoder.memory_shape(60, 60)
        (32, 4, 4)
    """

    def __init__(
        self,
        in_channels: int = 1,
        channels: Sequence[int] = (10, 10, 32),
        *,
        kernel: int = 5,
        norm: Literal["batch"] | None = None,
    ) -> None:
        super().__init__()
        check(len(channels) >= 1, "channels", "at least one number", channels)
        check_one_of("norm", norm, (None, "batch"))
        self.in_channels = in_channels
        self.kernel = kernel
        # Batch normalisation would cancel a bias.
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, kernel, bias=norm is None) for a, b in pairwise([in_channels, *channels])
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) if norm else nn.Identity() for b in channels)
        # The channels-last layout is twice as fast here, and later layers keep it. It is set on the weights because
        # the layout of single-channel images is ambiguous.
        for conv in self.convs:
            conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[ConvEncoder, MemorySpec]:
        """Return an encoder for inputs of this shape, from `channels` and `norm`, and the shape of its memory."""
        check(len(shape) == 3, "encoder", f"'mlp' for inputs of shape {shape}", "conv")
        norm: Literal["batch"] | None = None if settings["norm"] == "none" else "batch"
        encoder = cls(shape[0], settings["channels"], norm=norm)
        features, *grid = encoder.memory_shape(shape[1], shape[2])
        one = f"'none', or fewer `channels`: images of {shape[1]}x{shape[2]} pixels result in a map of one position"
        check(norm is None or max(grid) > 1, "norm", one, settings["norm"])
        return encoder, MemorySpec(features, grid=(grid[0], grid[1]))

    def forward(self, x: Shaped[Tensor, "b channels height width"]) -> Float[Tensor, "b d h w"]:
        """Compute a map (B, D, h, w) from images (B, channels, H, W), uint8 or float in [0, 1]."""
        check(
            x.ndim == 4 and x.shape[1] == self.in_channels and (x.dtype == torch.uint8 or x.is_floating_point()),
            "x",
            f"uint8 or floating-point images of shape (B, {self.in_channels}, H, W)",
            x,
        )
        self.memory_shape(x.shape[2], x.shape[3])
        if x.dtype == torch.uint8:
            x = x.to(torch.get_default_dtype()) / 255
        for conv, norm in zip(self.convs, self.norms, strict=True):
            assert isinstance(conv, nn.Conv2d)
            x = relu(norm(conv_max_pool(x, conv.weight, conv.bias)))
        return x

    def memory_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the channels, height and width of the map for images of this size."""
        # Batch normalisation cannot train on one position of one example.
        shape, least = [height, width], 2 if isinstance(self.norms[0], nn.BatchNorm2d) else 1
        for _ in self.convs:
            shape = [(side - self.kernel + 1) // 2 for side in shape]
            least = 2 * least + self.kernel - 1
        enough = f"images of at least {least}x{least} pixels (use fewer convolutions, `channels`, for smaller ones)"
        check(min(shape) >= 1, "x", enough, (height, width))
        last = self.convs[-1]
        assert isinstance(last, nn.Conv2d)
        return last.out_channels, shape[0], shape[1]

    def missing_cells(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return how many cells the map lacks at the left, right, top and bottom of images of this size.

        The convolutions have no padding, so the map covers only the middle of an image. With these cells around it, the
        map covers the image.

        Example:
            >>> ConvEncoder().missing_cells(100, 100)  # 9 cells of 8 pixels in the middle of 100
            (2, 2, 2, 2)
        """
        cell = 2 ** len(self.convs)
        before = ((self.kernel - 1) * (cell - 1)) / 2  # half of the pixels by which the receptive field exceeds a cell
        _, h, w = self.memory_shape(height, width)
        left = round(before / cell)
        right, bottom = (max(round((side - before) / cell) - n, 0) for side, n in ((width, w), (height, h)))
        return left, right, left, bottom
