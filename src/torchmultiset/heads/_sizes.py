"""Size potentials of heads: learned log-weights of the sizes that can occur."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from torchmultiset._checks import check
from torchmultiset._memory import Memory
from torchmultiset._pooling import PooledFeatures

__all__ = ["SizePotential", "as_row", "check_built_for", "check_range", "size_scores_for"]

_COSINES = 8


def size_scores_for(sizes: tuple[int, int] | None, potential: bool) -> nn.Parameter | None:
    """Return a size potential (M + 1,) for up to M labels, initialised to 0; None unless `potential`."""
    check_range(sizes)
    if not potential:
        return None
    check(sizes is not None, "sizes", "given with size_potential=True, such as (1, 4)", sizes)
    assert sizes is not None
    return nn.Parameter(torch.zeros(sizes[1] + 1))


def check_range(sizes: tuple[int, int] | None) -> None:
    """Raise a ValueError unless `sizes` are None or those of a smallest and a largest multiset."""
    check(sizes is None or 0 <= sizes[0] <= sizes[1], "sizes", "None or (smallest, largest), at least 0", sizes)


def check_built_for(sizes: tuple[int, int] | None, least: int, most: int) -> None:
    """Raise a ValueError if a head was built for other sizes."""
    if sizes is not None:
        built = f"{sizes[0]} to {sizes[1]}, the sizes the head was built with"
        check((least, most) == sizes, "sizes", built, (least, most))


def as_row(size_scores: Tensor | None) -> Float[Tensor, "1 m"] | None:
    """Return a size potential as (1, M + 1), the same for all examples."""
    return None if size_scores is None else size_scores[None]


class SizePotential(nn.Module):
    """A size potential that depends on the input: scores (B, M + 1) of the sizes 0 to M, linear in the pooled memory.

    Up to 8 sizes have independent scores. The scores of more sizes are sums of the 8 smoothest cosines, so that sizes
    with few training examples also learn from neighbouring sizes. The scores are appended to a head's scores (B, N, K)
    as additional rows, so that a head returns one tensor.

    Example:
        >>> potential = SizePotential(memory=8, most=5)
        >>> scores = potential.append(torch.rand(2, 9, 4), torch.rand(2, 8, 3, 3))
        >>> [part.shape for part in potential.split(scores)]
        [torch.Size([2, 9, 4]), torch.Size([2, 6])]
    """

    def __init__(self, memory: int, most: int) -> None:
        super().__init__()
        self.pooled = PooledFeatures(memory, "mean-max")
        self.classifier = nn.Linear(self.pooled.width, min(most + 1, _COSINES))
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.most = most
        self.register_buffer("cosines", _cosines(self.classifier.out_features, most + 1), persistent=False)

    def append(self, scores: Float[Tensor, "b n k"], memory: Memory) -> Float[Tensor, "b r k"]:
        """Append the size scores, padded with 0 to whole rows."""
        width = scores.shape[2]
        sizes: Tensor = self.classifier(self.pooled(memory)) @ self.cosines
        rows = pad(sizes, (0, -sizes.shape[1] % width)).view(sizes.shape[0], -1, width)
        return torch.cat([scores, rows.to(scores.dtype)], 1)

    def split(self, scores: Float[Tensor, "b r k"]) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b m"]]:
        """Separate a head's scores (B, N, K) from the size scores (B, M + 1)."""
        rows = -(-(self.most + 1) // scores.shape[2])
        return scores[:, :-rows], scores[:, -rows:].flatten(1)[:, : self.most + 1]


def _cosines(number: int, sizes: int) -> Float[Tensor, "k m"]:
    """Return the first `number` vectors of the orthonormal discrete cosine basis."""
    k, n = torch.arange(number)[:, None], torch.arange(sizes)
    rows = torch.cos(torch.pi * (n + 0.5) * k / sizes)
    return rows / rows.square().sum(1, keepdim=True).sqrt()
