"""Strategies for property tests: multisets with repeats, empty multisets, one class, many classes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from reference import Multiset, to_counts
from torch import Tensor

NUM_CLASSES = st.sampled_from([1, 2, 3, 5, 40])


class Problem(NamedTuple):
    """A batch of targets and trajectories, once in plain Python and once as tensors."""

    num_classes: int
    multisets: list[Multiset]
    trajectories: list[list[int]]
    target: Tensor
    """Counts (B, C)."""
    labels: Tensor
    """Labels (B, T), each below C, or up to C where END is a class."""
    logits: Tensor
    """Logits (B, T, C), or (B, T, C + 1) where END is a class; float64."""


def labels(num_classes: int) -> list[int]:
    """Labels to draw from: all of them, or a few distant ones if there are many classes, so that labels repeat."""
    return [*range(num_classes)] if num_classes <= 5 else [0, 1, num_classes // 2, num_classes - 1]


def multisets(num_classes: int, *, min_size: int = 0, max_size: int = 6) -> st.SearchStrategy[Multiset]:
    """A multiset of labels."""
    return st.lists(st.sampled_from(labels(num_classes)), min_size=min_size, max_size=max_size).map(Counter)


def logits(*shape: int) -> st.SearchStrategy[Tensor]:
    """Normal float64 logits, from nearly flat to steep."""
    return st.builds(
        lambda seed, scale: (
            scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0.1, 1.0, 10.0]),
    )


def masks(batch: int, steps: int) -> st.SearchStrategy[Tensor]:
    """Any mask (B, T), rows that are all True or all False included."""
    row = st.lists(st.booleans(), min_size=steps, max_size=steps)
    return st.lists(row, min_size=batch, max_size=batch).map(torch.tensor)


@st.composite
def trajectory(draw: st.DrawFn, target: Multiset, num_classes: int, steps: int, end: bool) -> list[int]:
    """Labels that are often free and often not, so that some targets are completed and others are not."""
    anything = [*labels(num_classes), *[num_classes] * end]
    chosen, left = [], Counter(target)
    for _ in range(steps):
        right = sorted(left) or ([num_classes] if end else [])
        chosen.append(draw(st.sampled_from([*right, *right, *anything])))
        left = +(left - Counter(chosen[-1:]))
    return chosen


@st.composite
def problems(
    draw: st.DrawFn, *, end: bool = False, min_size: int = 0, max_steps: int = 6, max_batch: int = 3
) -> Problem:
    """A batch of targets, trajectories and logits."""
    num_classes = draw(NUM_CLASSES)
    batch, steps = draw(st.integers(1, max_batch)), draw(st.integers(1, max_steps))
    targets = [draw(multisets(num_classes, min_size=min_size)) for _ in range(batch)]
    trajectories = [draw(trajectory(target, num_classes, steps, end)) for target in targets]
    return Problem(
        num_classes,
        targets,
        trajectories,
        to_counts(targets, num_classes),
        torch.tensor(trajectories, dtype=torch.int64),
        draw(logits(batch, steps, num_classes + end)),
    )
