"""The estimated likelihood of a multiset is unbiased: its expectation over all draws is exact."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from torchmultiset.encoders import MLPEncoder
from torchmultiset.losses import marginal_estimate_loss
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy, LSTMPolicy
from torchmultiset.rollout import forced, sample_order

C, MOST = 3, 3
MULTISETS = [(0, 0, 2), (0, 1, 2), (1, 2), (1,), ()]
POLICIES = {"feed-forward": lambda k: FeedForwardPolicy(k, 8, hidden=8), "lstm": lambda k: LSTMPolicy(k, 8, hidden=8)}
stops = pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
policies = pytest.mark.parametrize("name", POLICIES)


def make(name: str, stop: str, least: int | None = None) -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    policy = POLICIES[name](C + (stop == "end"))
    predictor = Predictor(MLPEncoder(5, (8,)), policy, ["ant", "bee", "cat"], max_size=MOST, stop=stop, min_size=least)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return predictor.double().eval(), torch.randn(1, 5, dtype=torch.float64)


def counts_of(labels: tuple[int, ...]) -> Tensor:
    return torch.tensor([[labels.count(c) for c in range(C)]])


def along(predictor: Predictor, x: Tensor, order: tuple[int, ...]) -> tuple[float, float]:
    """Probability of an order under the proposal, and the estimate of the likelihood from this order."""
    padded = torch.tensor([[*order, *[0] * (predictor.steps - len(order))]])
    output = predictor.rollout(x, forced(padded))
    stop = None if output.stop is None else output.stop[:, None]
    loss = marginal_estimate_loss(
        output.logits[:, None],
        output.labels[:, None],
        counts_of(order),
        stop,
        end=predictor.end,
        max_size=MOST,
    )
    proposed = 1.0
    for t in range(len(order)):
        chances = output.logits[0, t].softmax(-1).tolist()
        left = set(order[t:])
        proposed *= chances[order[t]] / math.fsum(chances[label] for label in left)
    return proposed, math.exp(-loss.item())


@stops
@policies
@pytest.mark.parametrize("least", [None, 1])
@torch.no_grad()
def test_the_estimate_is_unbiased(name, stop, least):
    """The expectation is the sum over all orders of their probability times their estimate."""
    predictor, x = make(name, stop, None if stop == "fixed" else least)
    for labels in MULTISETS:
        if not predictor.min_size <= len(labels):
            continue
        drawn = [along(predictor, x, order) for order in sorted(set(itertools.permutations(labels)))]
        assert math.fsum(chance for chance, _ in drawn) == pytest.approx(1)
        mean = math.fsum(chance * estimate for chance, estimate in drawn)
        exact = predictor.log_probability(x, counts_of(labels), beam=100).exp().item()
        assert mean == pytest.approx(exact, rel=1e-9)
        if len(labels) == 3:
            assert len({round(estimate, 9) for _, estimate in drawn}) > 1, "all orders give the same estimate"


@stops
@torch.no_grad()
def test_several_orders_are_averaged(stop):
    predictor, x = make("feed-forward", stop)
    orders = [(0, 1, 2), (2, 1, 0), (0, 1, 2)]
    output = predictor.rollout(
        x.expand(3, -1), forced(torch.tensor([[*o, *[0] * (predictor.steps - 3)] for o in orders]))
    )
    stop_scores = None if output.stop is None else output.stop[None]
    loss = marginal_estimate_loss(
        output.logits[None], output.labels[None], counts_of((0, 1, 2)), stop_scores, end=predictor.end, max_size=MOST
    )
    estimates = [along(predictor, x, order)[1] for order in orders]
    assert math.exp(-loss.item()) == pytest.approx(math.fsum(estimates) / 3)


def test_the_expected_loss_is_too_large_by_half_the_relative_variance():
    predictor, x = make("lstm", "fixed")
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.mul_(0.4)
        drawn = [along(predictor, x, order) for order in itertools.permutations((0, 1, 2))]
    exact = math.fsum(chance * estimate for chance, estimate in drawn)
    mean_loss = -math.fsum(chance * math.log(estimate) for chance, estimate in drawn)
    assert mean_loss > -math.log(exact)
    variance = math.fsum(chance * (estimate - exact) ** 2 for chance, estimate in drawn)
    assert mean_loss + math.log(exact) == pytest.approx(variance / (2 * exact**2), rel=0.5)


def test_orders_are_drawn_from_the_policy_restricted_to_free_labels():
    logits = torch.tensor([[0.0, 1.0, 5.0, 9.0]]).expand(20_000, -1)  # the last is END
    target = torch.tensor([[2, 1, 0]]).expand(20_000, -1)
    choose = sample_order(target, torch.Generator().manual_seed(0))
    first = choose(0, logits, torch.zeros(20_000, 4).long())
    share = (first == 1).double().mean().item()
    assert share == pytest.approx(math.e / (1 + math.e), abs=0.01)
    assert first.max() == 1
    emitted = torch.tensor([[1, 1, 0, 0]]).expand(20_000, -1)
    assert (choose(2, logits, emitted) == 0).all()
    assert (choose(3, logits, torch.tensor([[2, 1, 0, 0]]).expand(20_000, -1)) == 0).all()
    far = torch.tensor([[-1e4, -2e4, 0.0]])
    assert sample_order(torch.tensor([[1, 1, 0]]))(0, far, torch.zeros(1, 3).long()).tolist() == [0]


def test_gradients_are_weighted_by_the_probabilities_of_the_orders():
    """The proposal q is a constant in the gradient."""
    torch.manual_seed(0)
    labels, target = torch.tensor([[[0, 0, 2], [2, 0, 0]]]), counts_of((0, 0, 2))
    logits = torch.randn(1, 2, 3, C, dtype=torch.float64, requires_grad=True)
    marginal_estimate_loss(logits, labels, target).backward()
    log_pi = logits.detach().log_softmax(-1)
    free = torch.tensor([[[0, 2], [0, 2], [2, 2]], [[0, 2], [0, 0], [0, 0]]])
    weights = [
        math.prod(math.fsum(log_pi[0, i, t, c].exp().item() for c in set(free[i, t].tolist())) for t in range(3))
        for i in range(2)
    ]
    shares = torch.tensor([weight / sum(weights) for weight in weights], dtype=torch.float64)
    again = logits.detach().clone().requires_grad_()
    log_p = again.log_softmax(-1).gather(3, labels[..., None]).squeeze(3).sum(-1)
    (-(shares * log_p[0]).sum()).backward()
    torch.testing.assert_close(logits.grad, again.grad)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y, t: marginal_estimate_loss(x, y[..., :1], t), r"labels must be of shape \(1, 2, 3\)"),
        (lambda x, y, t: marginal_estimate_loss(x, y * 0, t), "labels must be the target's labels in some order"),
        (
            lambda x, y, t: marginal_estimate_loss(x, y, t, torch.zeros(1, 2, 3)),
            "scores of at least 4 steps, for 3 labels",
        ),
        (lambda x, y, t: marginal_estimate_loss(x, y, t, torch.zeros(1, 2, 3), end=True), "logits must be"),
        (lambda x, y, t: marginal_estimate_loss(x[:, :0], y[:, :0], t), "scores of at least one order"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(1, 2, 3, C), torch.tensor([[[0, 0, 2], [2, 0, 0]]]), counts_of((0, 0, 2)))
