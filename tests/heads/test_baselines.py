"""Majority, nearest neighbour and ridge regression, compared with plain loops and refitting."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from torchmultiset.heads import RidgeCounts, fit_baselines, fit_ridge, nearest_counts
from torchmultiset.model.predictor import Predictor

N, D, C = 30, 4, 3


def problem(number: int = N, width: int = D, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = (
        torch.randn(number, width, dtype=torch.float64, generator=generator) * torch.logspace(-2, 2, width).double()
    )
    weight = (
        torch.randn(width, C, dtype=torch.float64, generator=generator) / torch.logspace(-2, 2, width).double()[:, None]
    )
    drawn = features @ weight + 1.5 + noise * torch.randn(number, C, dtype=torch.float64, generator=generator)
    return features, drawn.round().clamp(min=0).long()


def solved(features: Tensor, counts: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Ridge regression by the normal equations, with features standardised over all data."""
    x, y = features, counts.double()
    centre, offset = x.mean(0), y.mean(0)
    weight = torch.linalg.solve(
        (x - centre).T @ (x - centre) + penalty * torch.eye(x.shape[1]).double(), (x - centre).T @ (y - offset)
    )
    return weight.T, offset - weight.T @ centre


@pytest.mark.parametrize(("number", "width"), [(30, 4), (6, 9)])
def test_ridge_solves_the_normal_equations_with_the_best_leave_one_out_error(number, width):
    features, counts = problem(number, width)
    ridge = fit_ridge(features, counts)
    mean, scale = features.mean(0), features.std(0, correction=0)
    x = (features - mean) / scale
    eigenvalues = torch.linalg.eigvalsh(x.T @ x)
    unit = eigenvalues[eigenvalues > 1e-9 * eigenvalues.max()].mean().item()
    weight, bias = solved(x, counts, ridge.penalty * unit)
    torch.testing.assert_close(ridge.weight, weight / scale)
    torch.testing.assert_close(features @ ridge.weight.T + ridge.bias, x @ weight.T + bias)

    def left_out(penalty: float) -> float:
        errors = []
        for i in range(number):
            rest = [j for j in range(number) if j != i]
            w, b = solved(x[rest], counts[rest], penalty * unit)
            errors.append((counts[i] - (w @ x[i] + b)).square().mean().item())
        return math.fsum(errors) / number

    assert ridge.error == pytest.approx(left_out(ridge.penalty), rel=1e-6)
    for other in (ridge.penalty * 10, ridge.penalty / 10):
        if 1e-4 <= other <= 1e4:
            assert left_out(other) >= ridge.error * (1 - 1e-9)


def test_noise_is_shrunk_to_the_mean():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 60, generator=generator)
    counts = torch.randint(0, 4, (40, C), generator=generator)
    ridge = fit_ridge(features, counts)
    assert ridge.penalty >= 1
    assert (features @ ridge.weight.T + ridge.bias - counts.float().mean(0)).abs().max() < 1


def test_constant_columns_and_a_single_example_are_allowed():
    features, counts = problem()
    features[:, 1] = 7.0
    assert fit_ridge(features, counts).weight.isfinite().all()
    one = fit_ridge(features[:1], counts[:1])
    torch.testing.assert_close(features[:1] @ one.weight.T + one.bias, counts[:1].double())


@pytest.mark.parametrize("pool", ["mean", "mean-max"])
def test_a_ridge_head_predicts_within_the_sizes_and_is_saved(pool, tmp_path):
    torch.manual_seed(0)
    memory = torch.rand(50, D, 2, 2)
    counts = (3 * memory[:, :C].mean((2, 3))).round().long()
    head = RidgeCounts(C, D, pool=pool)
    ridge = head.fit(memory, counts)
    predictor = Predictor(nn.Identity(), head, ["a", "b", "c"], max_size=5, min_size=3)
    found = predictor.predict(memory)
    assert found.sum(-1).min() >= 3
    assert found.sum(-1).max() <= 5
    assert (found == counts).all(-1).float().mean() > 0.7
    torch.testing.assert_close(head(memory)[..., 0], head.pooled(memory) @ ridge.weight.T + ridge.bias)
    predictor.save(tmp_path)
    assert torch.equal(Predictor.load(tmp_path, encoder=nn.Identity()).predict(memory), found)


def test_the_three_baselines_equal_plain_loops():
    features, counts = problem()
    new = problem(noise=2.0)[0] * 1.1
    fitted = fit_baselines(features, counts)
    rows = [tuple(row) for row in counts.tolist()]
    _, times = Counter(rows).most_common(1)[0]
    majority = fitted["majority"].predict(new).tolist()
    assert majority == [majority[0]] * len(new)
    assert rows.count(tuple(majority[0])) == times
    mean, scale = features.mean(0), features.std(0, correction=0)
    for row, found in zip(new, fitted["neighbour"].predict(new).tolist(), strict=True):
        distances = [math.dist(((row - mean) / scale).tolist(), ((one - mean) / scale).tolist()) for one in features]
        assert tuple(found) == rows[distances.index(min(distances))]
    sizes = counts.sum(-1)
    ridge = fit_ridge(features, counts)
    expected = nearest_counts(new @ ridge.weight.T + ridge.bias, int(sizes.min()), int(sizes.max()))
    assert torch.equal(fitted["ridge"].predict(new), expected)
    limited = fit_baselines(features, counts, sizes=(2, 2))["ridge"].predict(new)
    assert (limited.sum(-1) == 2).all()
    assert fitted["neighbour"].predict(features).tolist() == counts.tolist()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: fit_ridge(x, y[:5]), "counts must be"),
        (lambda x, y: fit_baselines(x[:0], y[:0]), "features must be features of at least one example"),
        (lambda x, y: fit_baselines(x, y)["ridge"].predict(x[:, :2]), "features must be"),
        (lambda x, y: fit_baselines(x, y)["neighbour"].predict(x[:, :2]), "features must be"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(*problem())
