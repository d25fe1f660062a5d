"""Latency of the prediction of a single image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contestant import CLASSES, OURS, PLAIN, SIDE
from benchmarks.textbook import PlainTower
from benchmarks.timing import interleaved
from torchmultiset.encoders import ConvEncoder
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import greedy, rollout


def measure(steps: int, layers: int) -> dict[str, float]:
    """Return the milliseconds that each implementation takes for one image."""
    torch.manual_seed(0)
    encoder = ConvEncoder()
    policy = ConvLSTMPolicy(CLASSES, encoder.memory_shape(SIDE, SIDE), layers=layers)
    image = torch.rand(1, 1, SIDE, SIDE)

    def predict(tower: nn.Module, policy: Any) -> Callable[[], Tensor]:
        def act() -> Tensor:
            with torch.inference_mode():
                return rollout(policy, tower(image), greedy, steps).labels

        return act

    plain = {name: predict(PlainTower(encoder), kind(policy)) for name, kind in PLAIN.items()}
    seconds = interleaved({OURS: predict(encoder, policy), **plain}, repeats=30, warmup=5)
    return {name: 1e3 * value for name, value in seconds.items()}


def measure_all() -> list[dict[str, Any]]:
    """Measure short and long rollouts."""
    return [{"steps": steps, "layers": layers, "ms": measure(steps, layers)} for steps, layers in ((4, 1), (10, 2))]
