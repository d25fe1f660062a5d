"""Backbones from ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate

from torchmultiset._checks import check
from torchmultiset._files import file_sha256
from torchmultiset._install import pip_install
from torchmultiset.encoders.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone

__all__ = ["OnnxTrunk", "is_onnx", "onnx_backbone", "tokens_to_map"]

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def is_onnx(name: str) -> bool:
    """Return whether the name of a backbone is the path of an ONNX file.

    Example:
        >>> is_onnx("dino.onnx"), is_onnx("resnet34")
        (True, False)
    """
    return name.lower().endswith(".onnx")


def onnx_backbone(
    path: str | Path,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Backbone:
    """Return the network of an ONNX file as a frozen backbone: images (B, 3, H, W) -> maps (B, D, h, w).

    The normalisation is taken from the metadata of the file, if it has entries ``mean`` and ``std`` with three numbers
    each (separated by commas or spaces, brackets allowed) for pixels from 0 to 1; otherwise it is ImageNet's. The
    fingerprint is the SHA-256 of the file, combined with `mean`, `std` and `image_size` if they are given.

    Args:
        path: The file, see `OnnxTrunk`.
        mean: Mean subtracted from red, green and blue values in [0, 1], in place of the file's.
        std: Standard deviation by which they are then divided, in place of the file's.
        image_size: Height and width that images are resized to. None: those fixed in the file, otherwise unchanged.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: onnxruntime is not installed.
        ValueError: The file is damaged, or its input or output has an unsupported shape.
    """
    trunk = OnnxTrunk(path, image_size=image_size)
    metadata = trunk.metadata()
    normalisation = {
        key: _numbers(metadata, key, default, trunk.path) if given is None else tuple(given)
        for key, given, default in (("mean", mean, IMAGENET_MEAN), ("std", std, IMAGENET_STD))
    }
    for key, numbers in normalisation.items():
        check(len(numbers) == 3, key, "three numbers", numbers)
    fingerprint = file_sha256(path)
    given = {"mean": mean, "std": std, "image_size": image_size}
    overrides = {key: [*map(float, value)] for key, value in given.items() if value is not None}
    if overrides:
        fingerprint = hashlib.sha256(f"{fingerprint} {json.dumps(overrides)}".encode()).hexdigest()
    return Backbone(trunk, name=trunk.path.name, channels=trunk.channels(), fingerprint=fingerprint, **normalisation)


class OnnxTrunk(nn.Module):
    """The network of an ONNX file: normalised images (B, 3, H, W) -> a map (B, D, h, w).

    The file has one input, float32 or float16 images, and as its first output a map (B, D, h, w) or tokens (B, N, D).
    Tokens of a square grid become a map, with a leading class token removed, see `tokens_to_map`. If height and width
    of the input are fixed in the file, images of other sizes are resized to them. If the batch size is fixed to 1,
    images are processed one by one.

    Args:
        path: The file.
        image_size: Height and width that images are resized to. None: those fixed in the file, otherwise unchanged.
    """

    def __init__(self, path: str | Path, *, image_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        self._session = _open(self.path)
        inputs = self._session.get_inputs()
        check(len(inputs) == 1, "path", "an ONNX file with one input", f"{self.path.name} with {len(inputs)}")
        entry = inputs[0]
        ok = len(entry.shape) == 4 and (entry.shape[1] == 3 or not isinstance(entry.shape[1], int))
        wanted = "an ONNX file whose input is floating-point images of shape (B, 3, H, W)"
        found = f"{self.path.name}, whose input is {entry.type} of shape {tuple(entry.shape)}"
        check(ok and entry.type in _TYPES, "path", wanted, found)
        self._input, self._dtype, self._single = entry.name, _TYPES[entry.type], entry.shape[0] == 1
        height, width = (side if isinstance(side, int) else None for side in entry.shape[2:])
        if image_size is None and height is not None and width is not None:
            image_size = height, width
        fits = image_size is None or (height in (None, image_size[0]) and width in (None, image_size[1]))
        check(fits, "image_size", f"{(height, width)}, which is fixed in {self.path.name}", image_size)
        self.image_size = image_size
        """Height and width that images are resized to; None if they are used as they are."""

    def metadata(self) -> dict[str, str]:
        """Return the custom metadata of the file."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def channels(self) -> int:
        """Return the number of channels D of the map; if the file does not declare it, run an image of zeros."""
        shape = [*(self._session.get_outputs()[0].shape or [])]
        if len(shape) in (3, 4):
            declared = shape[1] if len(shape) == 4 else shape[2]
            if isinstance(declared, int):
                return declared
        return int(self(torch.zeros(1, 3, *(self.image_size or (224, 224)))).shape[1])

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d i j"]:
        """Compute maps (B, D, h, w), float32, without gradients."""
        if self.image_size is not None and tuple(x.shape[-2:]) != self.image_size:
            x = interpolate(x, self.image_size, mode="bilinear", align_corners=False, antialias=True)
        pixels = np.ascontiguousarray(x.detach().cpu().numpy(), dtype=self._dtype)
        batches = [pixels[i : i + 1] for i in range(len(pixels))] if self._single else [pixels]
        output = np.concatenate([self._run(batch) for batch in batches]).astype(np.float32, copy=False)
        if output.ndim not in (3, 4) or len(output) != len(x):
            raise ValueError(
                f"{self.path.name} must return a map (B, D, h, w) or tokens (B, N, D), but returns an array of shape"
                f" {output.shape} for {len(x)} images. Export it without pooling and classifier"
            )
        features = torch.from_numpy(output).to(x.device)
        return tokens_to_map(features) if features.ndim == 3 else features

    def _run(self, pixels: Float[np.ndarray, "b 3 h w"]) -> Float[np.ndarray, "*shape"]:
        try:
            result: np.ndarray[Any, Any] = self._session.run(None, {self._input: pixels})[0]
        except Exception as error:  # onnxruntime's exceptions have no public base class
            raise ValueError(
                f"{self.path.name} cannot process images of shape {pixels.shape}: {str(error).splitlines()[0]}. Choose"
                " the image size that it was exported for"
            ) from error
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = _open(self.path)


def tokens_to_map(tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d h w"]:
    """Arrange tokens (B, N, D) of a square grid, row by row, as a map (B, D, h, w).

    If N is not a square but N - 1 is, the first token is a class token and is dropped.

    Example:
        >>> tokens_to_map(torch.arange(5.0).view(1, 5, 1))
        tensor([[[[1., 2.],
                  [3., 4.]]]])
    """
    batch, number, features = tokens.shape
    for skipped in (0, 1):
        side = math.isqrt(number - skipped)
        if side >= 1 and side * side == number - skipped:
            return tokens[:, skipped:].transpose(1, 2).reshape(batch, features, side, side)
    raise ValueError(
        f"the backbone returns {number} tokens, which is neither a square number nor one more (a class token): export"
        " it without register tokens, and choose square images"
    )


def _open(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no ONNX file at {path}: a model looks for its backbone at the path that was given in training,"
            " relative to the current folder"
        )
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"an ONNX backbone requires an extra: {pip_install('onnx')}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no public base class
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is damaged or is not an ONNX file ({reason}): export or copy it again") from error


def _numbers(metadata: Mapping[str, str], key: str, default: Sequence[float], path: Path) -> tuple[float, ...]:
    text = metadata.get(key)
    if text is None:
        return tuple(default)
    try:
        return tuple(float(number) for number in text.strip(" []()").replace(",", " ").split())
    except ValueError as error:
        raise ValueError(f"the metadata of {path.name} must have three numbers as {key}, but has {text!r}") from error
