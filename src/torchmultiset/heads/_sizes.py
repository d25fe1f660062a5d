"""Sizes that can occur, in the likelihood of a head: what the heads with a size potential share."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchmultiset._checks import check

__all__ = ["as_row", "check_built_for", "size_scores_for"]


def size_scores_for(sizes: tuple[int, int] | None, potential: bool) -> nn.Parameter | None:
    """Return a size potential (M + 1,) for up to M labels, 0 at first; or None if there is to be none."""
    check(sizes is None or 0 <= sizes[0] <= sizes[1], "sizes", "None or (smallest, largest), at least 0", sizes)
    if not potential:
        return None
    check(sizes is not None, "sizes", "given with size_potential=True, such as (1, 4)", sizes)
    assert sizes is not None
    return nn.Parameter(torch.zeros(sizes[1] + 1))


def check_built_for(sizes: tuple[int, int] | None, least: int, most: int) -> None:
    """Raise a ValueError if a head was built for other sizes."""
    if sizes is not None:
        check(
            (least, most) == sizes,
            "sizes",
            f"{sizes[0]} to {sizes[1]}, the sizes the head was built with",
            (least, most),
        )


def as_row(size_scores: Tensor | None) -> Float[Tensor, "1 m"] | None:
    """Return a size potential as (1, M + 1), the same for all examples."""
    return None if size_scores is None else size_scores[None]
