r"""Exact distributions, in log space, over the number of cells of a map that predict each class.

Each of N cells predicts one of C classes or "nothing", independently of the others: a softmax over C + 1. The number of
cells that predict class c is then a sum of N independent Bernoulli variables, which is Poisson binomial.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad, softplus

from torchmultiset._checks import check, check_float
from torchmultiset._precision import full_precision

__all__ = ["cell_log_probabilities", "poisson_binomial", "size_log_probabilities"]

_IMPOSSIBLE = -1e30
"""Logarithm that stands for a probability of 0, finite because the difference of two infinities is not a number."""


def cell_log_probabilities(
    logits: Float[Tensor, "b n k"],
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b n c"]]:
    r"""Compute the log-probabilities that each cell predicts each class, and that it does not.

    .. math::
        \log p_{ic}, \quad \log(1 - p_{ic}), \qquad p_{ic} = \frac{e^{x_{ic}}}{\sum_{j=0}^{C} e^{x_{ij}}}

    Both (B, N, C) are accurate even if p is close to 0 or 1.

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
    # Only the most probable class can have p near 1, where 1 - p is computed from the other classes below. Until then,
    # any bound between 1/2 and 1 keeps its logarithm finite.
    log_not = torch.log1p(-log_p.exp().clamp(max=0.75))
    own, likeliest = log_p.max(-1, keepdim=True)
    lowest = torch.finfo(log_p.dtype).min
    others = _log_sum(log_p.scatter(-1, likeliest, lowest), -1)
    log_odds = own - others.masked_fill(others == lowest, -math.inf)
    # Softplus, since logsigmoid underflows in exported models; the default threshold of 20 is too low for float64.
    log_p = log_p.scatter(-1, likeliest, -softplus(-log_odds, threshold=50))
    log_not = log_not.scatter(-1, likeliest, -softplus(log_odds, threshold=50))
    return log_p[..., :-1], log_not[..., :-1]


def poisson_binomial(
    log_p: Float[Tensor, "*b n c"], log_not: Float[Tensor, "*b n c"], most: int
) -> Float[Tensor, "*b c m"]:
    r"""Compute the log-probabilities that exactly 0, 1, ..., `most` of the N cells predict each class.

    .. math::
        P(N_c = k) = [z^k] \prod_{i=1}^{N} \big((1 - p_{ic}) + p_{ic} z\big)

    Polynomials are multiplied pairwise in :math:`\log_2 N` rounds, each truncated at degree `most`.

    Args:
        log_p: Log-probabilities (..., N, C) that each cell predicts each class.
        log_not: Log-probabilities (..., N, C) that it does not, from `cell_log_probabilities`.
        most: Largest count. The remaining probability belongs to larger counts.

    Returns:
        Log-probabilities (..., C, most + 1), in at least float32; minus infinity for counts above N.

    Example:
        >>> p = torch.tensor([[0.5], [0.5], [0.1]])  # three cells, one class
        >>> poisson_binomial(p.log(), (1 - p).log(), most=4).exp()
        tensor([[0.2250, 0.4750, 0.2750, 0.0250, 0.0000]])

    Reference:
        Wang, "On the Number of Successes in Independent Trials", Statistica Sinica 1993; pairwise: Biscarri, Zhao and
        Brunner, "A Simple and Fast Method for Computing the Poisson Binomial Distribution Function", CSDA 2018.
    """
    check(log_p.is_floating_point() and log_p.ndim >= 2, "log_p", "a floating-point tensor of shape (..., N, C)", log_p)
    check(bool(log_p.shape[-2] >= 1), "log_p", "log-probabilities of at least one cell", log_p)
    check_float("log_not", log_not, "(..., N, C)", like=tuple(log_p.shape))
    check(most >= 0, "most", "at least 0", most)
    if isinstance(log_p.shape[-2], torch.SymInt):  # exported models read any number of cells
        return _symmetric_polynomials(log_p, log_not, most)
    # One polynomial per cell: (coefficients, N, all other dimensions).
    cells = torch.stack([full_precision(each).movedim(-2, 0) for each in (log_not, log_p)][: most + 1]).flatten(2)
    product = _product(cells, most)
    possible = product.shape[0]
    counts = product.T.reshape(*log_p.shape[:-2], log_p.shape[-1], possible)
    return pad(counts, (0, most + 1 - possible), value=-math.inf)


def size_log_probabilities(log_probabilities: Float[Tensor, "b c m"]) -> Float[Tensor, "b m"]:
    r"""Compute the log-probabilities that independent counts of C classes sum to 0, 1, ..., M.

    .. math::
        P(N_1 + \dots + N_C = k) = [z^k] \prod_{c=1}^{C} \sum_{n=0}^{M} P(N_c = n)\, z^n

    Args:
        log_probabilities: Log-probabilities (B, C, M + 1) of 0 to M labels of each class; they need not sum to 1.

    Returns:
        Log-probabilities (B, M + 1), in at least float32. Sums above M are left out.

    Example:
        >>> coins = torch.full((1, 3, 3), 0.5).log().index_fill(2, torch.tensor([2]), -math.inf)
        >>> size_log_probabilities(coins).exp()  # 0, 1 or 2 heads of three coins; the rest has 3
        tensor([[0.1250, 0.3750, 0.3750]])
    """
    check_float("log_probabilities", log_probabilities, "(B, C, M + 1)", like=(None, None, None))
    classes = full_precision(log_probabilities).permute(2, 1, 0)
    return _product(classes, log_probabilities.shape[2] - 1).T


def _symmetric_polynomials(
    log_p: Float[Tensor, "*b n c"], log_not: Float[Tensor, "*b n c"], most: int
) -> Float64[Tensor, "*b c m"]:
    r"""Compute `poisson_binomial` in `most` rounds, so that the graph does not depend on the number of cells.

    .. math::
        P(N_c = k) = e_k(x_1, \ldots, x_N) \prod_{i=1}^{N} (1 - p_i), \qquad
        e_k(x_1, \ldots, x_N) = \sum_{i=1}^{N} x_i\, e_{k-1}(x_1, \ldots, x_{i-1}), \qquad
        x_i = \frac{p_i}{1 - p_i}
    """
    # Beyond this bound, differences of logarithms in double precision would lose too many digits.
    log_not = log_not.double().clamp(min=-1e6)
    # The largest odds first: the first term of each sum is then not so much smaller than the sum that it underflows.
    odds = (log_p.double().clamp(min=_IMPOSSIBLE) - log_not).sort(dim=-2, descending=True).values
    nothing = log_not.sum(-2)
    counts, terms = [nothing], odds
    for _ in range(most):
        largest = terms.amax(-2, keepdim=True)
        sums = (terms - largest).exp().cumsum(-2).log() + largest  # of the first i cells
        counts.append(nothing + sums[..., -1, :])
        terms = odds + pad(sums, (0, 0, 1, 0), value=_IMPOSSIBLE)[..., :-1, :]
    result = torch.stack(counts, -1)
    return result.masked_fill(result < _IMPOSSIBLE / 2, -math.inf)


def _product(factors: Float[Tensor, "m n b"], most: int) -> Float[Tensor, "k b"]:
    """Multiply N polynomials in pairs, with coefficients in log space, up to degree `most`."""
    # Impossible counts stay finite until the end, since a log-sum of infinities has no gradient; N times the floor does
    # not overflow.
    floor = torch.finfo(factors.dtype).min / (4 * factors.shape[1])
    product = factors.clamp(min=floor)
    left_over = None
    while product.shape[1] > 1:
        half = product.shape[1] // 2
        if product.shape[1] % 2:
            last = product[:, -1:]
            left_over = last if left_over is None else _multiply(left_over, last, most)
        product = _multiply(product[:, :half], product[:, half : 2 * half], most)
    if left_over is not None:
        product = _multiply(product, left_over, most)
    return product.masked_fill(product < floor / 2, -math.inf).squeeze(1)


def _multiply(a: Tensor, b: Tensor, most: int) -> Tensor:
    """Multiply polynomials (coefficients, ...) up to degree `most`, with coefficients in log space."""
    terms, longest = a.shape[0], min(a.shape[0] + b.shape[0] - 1, most + 1)
    # Coefficient k is the sum of a[j] b[k - j] over j: a reversed, times each window of b.
    around = b.new_full((terms - 1, *b.shape[1:]), -math.inf)  # `pad` of PyTorch 2.8 rejects an empty batch
    windows = torch.cat([around, b, around]).unfold(0, terms, 1)[:longest].movedim(-1, 1)
    return _log_sum(windows + a.flip(0), 1).squeeze(1)


def _log_sum(logarithms: Tensor, dim: int) -> Tensor:
    """Compute a log-sum-exp: unlike `logsumexp`, with one exponential and without underflow in exported models."""
    largest = logarithms.detach().amax(dim, keepdim=True)
    return (logarithms - largest).exp().sum(dim, keepdim=True).log() + largest
