r"""How many cells of a map say each class: distributions over counts, exact and in log space.

Each of N cells says one of C classes or "nothing", independently of the others: a softmax over C + 1. How many of them
say class c is then a sum of N independent yes or no with probabilities of their own, which is Poisson binomial.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, softplus

from torchmultiset._checks import check, check_float
from torchmultiset._precision import full_precision

__all__ = ["cell_log_probabilities", "poisson_binomial"]


def cell_log_probabilities(
    logits: Float[Tensor, "b n k"],
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b n c"]]:
    r"""The log-probabilities that each cell says each class, and that it does not.

    .. math::
        \log p_{ic}, \quad \log(1 - p_{ic}), \qquad p_{ic} = \frac{e^{x_{ic}}}{\sum_{j=0}^{C} e^{x_{ij}}}

    Both are accurate however near p is to 0 or 1: nothing is lost where a cell is sure.

    Args:
        logits: Scores (B, N, C + 1) of the cells; the last class is "nothing".

    Returns:
        Two tensors (B, N, C), in at least float32.

    Example:
        >>> log_p, log_not = cell_log_probabilities(torch.tensor([[[0.0, 0.0, 0.0], [0.0, 50.0, 0.0]]]))
        >>> log_p.exp()
        tensor([[[3.3333e-01, 3.3333e-01],
                 [1.9287e-22, 1.0000e+00]]])
        >>> log_not.exp()
        tensor([[[6.6667e-01, 6.6667e-01],
                 [1.0000e+00, 3.8575e-22]]])
    """
    check_float("logits", logits, "(B, N, C + 1)", like=(None, None, None))
    check(logits.shape[-1] >= 2, "logits", 'scores of at least one class and of "nothing"', logits)
    log_p = full_precision(logits).log_softmax(-1)
    # Only the likeliest class can have p near 1, where 1 - p must come from the sum of the others. Any bound between
    # 1/2 and 1 keeps its logarithm here finite until it is replaced.
    log_not = torch.log1p(-log_p.exp().clamp(max=0.75))
    own, likeliest = log_p.max(-1, keepdim=True)
    lowest = torch.finfo(log_p.dtype).min
    others = _log_sum(log_p.scatter(-1, likeliest, lowest), -1)
    log_odds = own - others.masked_fill(others == lowest, -math.inf)
    # Softplus, since logsigmoid underflows in an exported model; the usual threshold of 20 is too coarse for float64.
    log_p = log_p.scatter(-1, likeliest, -softplus(-log_odds, threshold=50))
    log_not = log_not.scatter(-1, likeliest, -softplus(log_odds, threshold=50))
    return log_p[..., :-1], log_not[..., :-1]


def poisson_binomial(
    log_p: Float[Tensor, "*b n c"], log_not: Float[Tensor, "*b n c"], most: int
) -> Float[Tensor, "*b c m"]:
    r"""The log-probabilities that exactly 0, 1, ..., `most` of the N cells say each class.

    .. math::
        P(N_c = k) = [z^k] \prod_{i=1}^{N} \big((1 - p_{ic}) + p_{ic} z\big)

    The product is taken by pairs, pairs of pairs and so on, in :math:`\log_2 N` rounds, each cut off after `most`.

    Args:
        log_p: Log-probabilities (..., N, C) that each cell says each class.
        log_not: Log-probabilities (..., N, C) that it does not, from `cell_log_probabilities`.
        most: The largest count asked for. What is left to a sum of 1 belongs to larger ones.

    Returns:
        Log-probabilities (..., C, most + 1), in at least float32; minus infinity for more than N cells.

    Example:
        >>> p = torch.tensor([[0.5], [0.5], [0.1]])  # three cells, one class
        >>> poisson_binomial(p.log(), (1 - p).log(), most=4).exp()
        tensor([[0.2250, 0.4750, 0.2750, 0.0250, 0.0000]])

    Reference:
        Wang, "On the Number of Successes in Independent Trials", Statistica Sinica 1993; by pairs: Biscarri, Zhao and
        Brunner, "A Simple and Fast Method for Computing the Poisson Binomial Distribution Function", CSDA 2018.
    """
    check(log_p.is_floating_point() and log_p.ndim >= 2, "log_p", "floating-point of shape (..., N, C)", log_p)
    check(log_p.shape[-2] >= 1, "log_p", "log-probabilities of at least one cell", log_p)
    check_float("log_not", log_not, "(..., N, C)", like=tuple(log_p.shape))
    check(most >= 0, "most", "at least 0", most)
    cells, classes = log_p.shape[-2:]
    # One polynomial for each cell, (coefficients, N, everything else). The impossible is kept finite on the way, since
    # a sum of nothing but infinities has no gradient; N times the floor is still a number.
    product = torch.stack([full_precision(each).movedim(-2, 0) for each in (log_not, log_p)][: most + 1]).flatten(2)
    floor = torch.finfo(product.dtype).min / (4 * cells)
    product = product.clamp(min=floor)
    left_over = None
    while product.shape[1] > 1:
        half = product.shape[1] // 2
        if product.shape[1] % 2:
            last = product[:, -1:]
            left_over = last if left_over is None else _multiply(left_over, last, most)
        product = _multiply(product[:, :half], product[:, half : 2 * half], most)
    if left_over is not None:
        product = _multiply(product, left_over, most)
    product = product.masked_fill(product < floor / 2, -math.inf)
    possible = product.shape[0]
    counts = product.squeeze(1).T.reshape(*log_p.shape[:-2], classes, possible)
    return pad(counts, (0, most + 1 - possible), value=-math.inf)


def _multiply(a: Tensor, b: Tensor, most: int) -> Tensor:
    """Products of polynomials (coefficients, ...) up to degree `most`, all coefficients as logarithms."""
    terms, longest = a.shape[0], min(a.shape[0] + b.shape[0] - 1, most + 1)
    # Coefficient k is the sum of a[j] b[k - j] over j: a backwards, against each window of b.
    around = b.new_full((terms - 1, *b.shape[1:]), -math.inf)  # `pad` of PyTorch 2.8 refuses an empty batch
    windows = torch.cat([around, b, around]).unfold(0, terms, 1)[:longest].movedim(-1, 1)
    return _log_sum(windows + a.flip(0), 1).squeeze(1)


def _log_sum(logarithms: Tensor, dim: int) -> Tensor:
    """The logarithm of a sum, by hand: `logsumexp` takes the exponential twice and underflows in an exported model."""
    largest = logarithms.detach().amax(dim, keepdim=True)
    return (logarithms - largest).exp().sum(dim, keepdim=True).log() + largest
