"""The likelihood of a multiset, compared with a sum over all of its orders."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from torchmultiset.encoders import MLPEncoder
from torchmultiset.losses import marginal_loss, parts_of
from torchmultiset.losses._marginal import _ways
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import forced

C, MOST = 3, 3
POLICIES = {
    "feed-forward": lambda k: FeedForwardPolicy(k, 8, hidden=8),
    "transformer": lambda k: TransformerPolicy(k, 8, width=8, heads=2, layers=1),
}
STOPS = ("fixed", "policy", "end")
every = pytest.mark.parametrize("stop", STOPS)
policies = pytest.mark.parametrize("name", POLICIES)


def make(name: str, stop: str, number: int = 4) -> tuple[Predictor, Tensor]:
    """A predictor whose scores depend strongly on the emitted labels."""
    torch.manual_seed(0)
    policy = POLICIES[name](C + (stop == "end"))
    predictor = Predictor(MLPEncoder(5, (8,)), policy, ["ant", "bee", "cat"], max_size=MOST, stop=stop)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return predictor.double().eval(), torch.randn(number, 5, dtype=torch.float64)


def all_multisets(stop: str) -> list[tuple[int, ...]]:
    return [
        labels
        for size in range(MOST if stop == "fixed" else 0, MOST + 1)
        for labels in itertools.combinations_with_replacement(range(C), size)
    ]


def counts_of(multisets: list[tuple[int, ...]]) -> Tensor:
    return torch.tensor([[labels.count(c) for c in range(C)] for labels in multisets])


def enumerated(predictor: Predictor, x: Tensor, labels: tuple[int, ...]) -> float:
    """Probability of a multiset for one input: the sum over its orders, each from a forced rollout."""
    total = []
    for order in sorted(set(itertools.permutations(labels))):
        padded = [*order, *[0] * (predictor.steps - len(order))]
        output = predictor(x[None], forced(torch.tensor([padded])))
        chances = output.logits[0].softmax(-1).tolist()
        stops = None if output.stop is None else output.stop[0].sigmoid().tolist()
        chance = math.prod(chances[t][label] for t, label in enumerate(order))
        if stops is not None:
            chance *= math.prod(1 - stops[t] for t in range(len(order)))
        if predictor.stop != "fixed" and len(order) < MOST:  # the largest multisets always end
            chance *= chances[len(order)][C] if stops is None else stops[len(order)]
        total.append(chance)
    return math.fsum(total)


def losses(predictor: Predictor, x: Tensor, target: Tensor, max_size: int | None = MOST) -> Tensor:
    parts = parts_of(target)
    end = predictor.stop == "end"
    output = predictor.at(x, torch.nn.functional.pad(parts, (0, 1)) if end else parts)
    return marginal_loss(output.logits, target, output.stop, end=end, max_size=max_size, reduction="none")


@every
@policies
@torch.no_grad()
def test_the_likelihood_of_a_multiset_is_the_sum_over_its_orders(name, stop):
    """For multisets with repeats and of several sizes in one batch, including the empty one."""
    predictor, x = make(name, stop, 1)
    multisets = all_multisets(stop)
    found = losses(predictor, x.expand(len(multisets), -1), counts_of(multisets))
    expected = [enumerated(predictor, x[0], labels) for labels in multisets]
    assert (-found).exp().tolist() == pytest.approx(expected, rel=1e-9)


@every
@policies
@torch.no_grad()
def test_the_likelihoods_of_all_multisets_sum_to_one(name, stop):
    predictor, x = make(name, stop)
    for one in x:
        multisets = all_multisets(stop)
        chances = (-losses(predictor, one.expand(len(multisets), -1), counts_of(multisets))).exp()
        assert chances.sum().item() == pytest.approx(1, abs=1e-9)


@every
@policies
def test_the_loss_equals_the_negative_log_probability_of_the_predictor(name, stop):
    predictor, x = make(name, stop, 20)
    multisets = all_multisets(stop)
    target = counts_of([multisets[i % len(multisets)] for i in range(20)])
    log_probability = predictor.log_probability(x, target, beam=100)
    torch.testing.assert_close(-losses(predictor, x, target), log_probability)


@torch.no_grad()
def test_without_a_largest_multiset_the_last_label_is_followed_by_a_decision_to_stop():
    predictor, x = make("feed-forward", "policy")
    target = counts_of([(0, 1, 2), (0, 1), (), (2, 2, 2)])
    bounded, unbounded = losses(predictor, x, target), losses(predictor, x, target, max_size=None)
    assert torch.equal(bounded[1:3], unbounded[1:3])
    whole = predictor.at(x, target[:, None]).stop[:, 0]
    expected = bounded - torch.nn.functional.logsigmoid(whole)
    torch.testing.assert_close(unbounded[[0, 3]], expected[[0, 3]])


@every
def test_gradients_of_the_marginal_loss_pass_gradcheck(stop):
    torch.manual_seed(0)
    target = counts_of([(0, 0, 2)] if stop == "fixed" else [(0, 0, 2), (1,), (), (1, 2)])
    logits = torch.randn(len(target), 8, C + (stop == "end"), dtype=torch.float64, requires_grad=True)
    scores = torch.randn(len(target), 8, dtype=torch.float64, requires_grad=True) if stop == "policy" else None

    def loss(logits: Tensor, scores: Tensor | None = None) -> Tensor:
        return marginal_loss(logits, target, scores, end=stop == "end", reduction="none")

    assert torch.autograd.gradcheck(loss, (logits,) if scores is None else (logits, scores))


def test_a_batch_equals_its_examples():
    torch.manual_seed(0)
    target = counts_of([(0, 0, 2), (1,), ()])
    logits, stop = torch.randn(3, 8, C), torch.randn(3, 8)
    each = marginal_loss(logits, target, stop, reduction="none")
    for i, size in enumerate((3, 1, 0)):
        # Alone, a smaller multiset needs only its own parts, which come first.
        alone = marginal_loss(logits[i : i + 1, : 2**size], target[i : i + 1], stop[i : i + 1, : 2**size])
        torch.testing.assert_close(alone, each[i])
    torch.testing.assert_close(marginal_loss(logits, target, stop), each.mean())
    torch.testing.assert_close(marginal_loss(logits, target, stop, reduction="sum"), each.sum())


def test_a_batch_of_empty_multisets_has_the_loss_of_stopping():
    nothing = torch.zeros(2, C, dtype=torch.int64)
    assert torch.equal(parts_of(nothing), torch.zeros(2, 1, C, dtype=torch.int64))
    stop = torch.tensor([[0.0], [2.0]], requires_grad=True)
    loss = marginal_loss(torch.zeros(2, 1, C), nothing, stop, reduction="none")
    assert loss.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-2))])
    loss.sum().backward()
    assert stop.grad is not None
    assert stop.grad.isfinite().all()


def test_parts_are_all_subsets_of_the_labels():
    target = counts_of([(0, 0, 2), (1,)])
    parts = parts_of(target)
    assert parts.shape == (2, 8, C)
    for row, labels in zip(parts.tolist(), [(0, 0, 2), (1,)], strict=True):
        for s, counts in enumerate(row):
            chosen = [label for i, label in enumerate(labels) if s >> i & 1]
            assert counts == [chosen.count(c) for c in range(C)]


def test_half_precision_is_accumulated_in_float32():
    torch.manual_seed(0)
    target = counts_of([(0, 0, 2), (1, 2, 2)])
    logits = torch.randn(2, 8, C).bfloat16()
    loss = marginal_loss(logits, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, marginal_loss(logits.float(), target))


@torch.no_grad()
def test_a_recurrent_policy_cannot_be_evaluated_at_a_multiset():
    predictor = Predictor(MLPEncoder(5, (8,)), LSTMPolicy(C, 8), ["ant", "bee", "cat"], max_size=MOST)
    with pytest.raises(ValueError, match="policy must be one that sees only counts: feed-forward or transformer"):
        predictor.at(torch.rand(1, 5), torch.zeros(1, 2, C, dtype=torch.int64))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(1, 3, C), torch.tensor([[1, 1, 0]])), r"logits must be .*\(1, 4, 3\)"),
        ((torch.zeros(1, 4, C), torch.tensor([[1, 1, 0]]), torch.zeros(1, 3)), r"stop_logits must be .*\(1, 4\)"),
        ((torch.zeros(1, 4, C), torch.tensor([[1.0, 1.0, 0.0]])), "target must be"),
    ],
)
def test_mismatches_are_reported_with_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        marginal_loss(*arguments)


def test_end_and_a_stop_head_exclude_each_other():
    with pytest.raises(ValueError, match="stop_logits must be None with END, which decides when to stop"):
        marginal_loss(torch.zeros(1, 4, C + 1), torch.tensor([[1, 1, 0]]), torch.zeros(1, 4), end=True)


def test_a_correctly_excluded_class_leaves_gradients_finite():
    # The first multiset is shorter and padded, and the class used for its padding is excluded.
    logits = torch.randn(2, 4, C, dtype=torch.float64)
    logits[0, :, 0] = -torch.inf
    logits.requires_grad_()
    loss = marginal_loss(logits, torch.tensor([[0, 1, 0], [1, 1, 0]]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_a_loss_in_inference_mode_leaves_later_training_possible():
    _ways.cache_clear()
    with torch.inference_mode():
        expected = marginal_loss(torch.zeros(1, 4, C), torch.tensor([[1, 1, 0]]))
    logits = torch.zeros(1, 4, C, requires_grad=True)
    loss = marginal_loss(logits, torch.tensor([[1, 1, 0]]))
    loss.backward()
    assert loss.item() == expected.item()
    assert logits.grad is not None
