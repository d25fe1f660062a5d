"""Speedup of an epoch that reads cached features, and agreement of its losses.

The images are random, because the cost of a backbone does not depend on their content.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from torchmultiset.data.examples import Examples
from torchmultiset.data.features import cache_features
from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.efficientnet import efficientnet_lite0
from torchmultiset.encoders.resnet import resnet34
from torchmultiset.oracle import oracle


def measure(backbone: Backbone, *, images: int, size: int, batch_size: int = 4) -> dict[str, float | str]:
    """Time one training epoch of a small head without and with the cache, and compare the losses."""
    plain = _images(images, size)
    # Warm-up: the first call of a network allocates memory and selects kernels.
    backbone(torch.from_numpy(plain.inputs[np.arange(min(batch_size, images))]))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        keys = [str(i) for i in range(images)]
        cache = cache_features(backbone, plain.inputs, folder, keys=keys, batch_size=batch_size)
        build = time.perf_counter() - start
        without, expected = _epoch(plain, backbone, backbone.channels, batch_size)
        cached, losses = _epoch(replace(plain, inputs=cache), Tensor.float, backbone.channels, batch_size)
    return {
        "backbone": backbone.name,
        "images": images,
        "size": size,
        "megabytes": images * int(np.prod(cache.shape)) * 2 / 1e6,
        "build_seconds": build,
        "epoch_seconds_without": without,
        "epoch_seconds_cached": cached,
        "speedup": without / cached,
        "largest_loss_difference": float(np.abs(losses - expected).max()),
        "mean_loss": float(expected.mean()),
    }


def _images(images: int, size: int) -> Examples:
    """Generate smooth random images with multisets of four labels."""
    random = np.random.default_rng(0)
    coarse = torch.from_numpy(random.random((images, 3, 8, 8), dtype=np.float32))
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    pixels = (smooth * 255).to(torch.uint8).numpy()
    return Examples(pixels, random.integers(20, size=(images, 4)), tuple(map(str, range(20))))


def _epoch(
    examples: Examples, encode: Callable[[Tensor], Tensor], channels: int, batch_size: int
) -> tuple[float, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    torch.manual_seed(0)
    head = nn.Sequential(
        nn.Conv2d(channels, 128, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 20)
    )
    optimiser = torch.optim.Adam(head.parameters())
    order = np.random.default_rng(0).permutation(len(examples))
    losses = []
    start = time.perf_counter()
    for indices in np.array_split(order, -(-len(order) // batch_size)):
        batch = examples.batch(indices)
        logits = head(encode(batch.x))
        loss = -(oracle(batch.target) * logits.log_softmax(-1)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return time.perf_counter() - start, np.array(losses)


def measure_all() -> list[dict[str, float | str]]:
    """Measure both backbones."""
    return [
        measure(resnet34(weights=None), images=8, size=600),
        measure(efficientnet_lite0(), images=64, size=256),
    ]
