"""The search is compared with an enumeration of all label sequences of a small problem."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from torchmultiset import search as module
from torchmultiset.encoders import MLPEncoder
from torchmultiset.heads import OneStep
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import to_labels
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import Step, forced, rollout, sample

pytestmark = pytest.mark.slow

C, MOST = 3, 3
STOPS = ("fixed", "policy", "end")
UNLIMITED = 10**9
POLICIES = {
    "feed-forward": lambda k: FeedForwardPolicy(k, 6, hidden=8),
    "transformer": lambda k: TransformerPolicy(k, 6, width=8, heads=2),
    "lstm": lambda k: LSTMPolicy(k, 6, hidden=8, layers=2),
    "conv-lstm": lambda k: ConvLSTMPolicy(k, (6, 2, 3), hidden=8),
}
COUNTS_ONLY = ("feed-forward", "transformer")
RECURRENT = ("lstm", "conv-lstm")


class AsMap(nn.Module):
    """Maps a vector to a small map whose positions differ slightly."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None, None] * torch.linspace(0.5, 1.5, 6, dtype=x.dtype).view(2, 3)


def make(name: str, stop: str, batch: int = 5) -> tuple[Predictor, Tensor]:
    """A predictor with large random weights, so that the emitted labels and their order matter, and its inputs."""
    torch.manual_seed(0)
    policy = POLICIES[name](C + (stop == "end"))
    encoder = AsMap() if name == "conv-lstm" else nn.Identity()
    predictor = Predictor(encoder, policy, ["ant", "bee", "cat"], max_size=MOST, stop=stop).double().eval()
    x = torch.randn(50, 6, dtype=torch.float64)
    with torch.no_grad():
        for weights in policy.parameters():
            weights *= 3
        # Rescaled so that no label has a probability near 0 or 1.
        output = predictor(x, sample(torch.Generator().manual_seed(0)))
        scale = 1.5 / output.logits.std()
        policy.classifier.weight *= scale
        policy.classifier.bias.copy_((policy.classifier.bias - output.logits.mean((0, 1))) * scale)
        if predictor.stop_head is not None:
            scale = 1.5 / output.stop.std()
            predictor.stop_head.linear.weight *= scale
            bias = predictor.stop_head.linear.bias
            bias.copy_((bias - output.stop.mean()) * scale - 1)
    return predictor, x[:batch]


@torch.no_grad()
def enumerated(predictor: Predictor, x: Tensor) -> list[dict[tuple[int, ...], float]]:
    """For each input, the probability of every multiset, summed over its orders."""
    probabilities: list[dict[tuple[int, ...], float]] = [{} for _ in x]
    for sequence in itertools.product(range(C), repeat=MOST):
        emitted = [*sequence, 0][: predictor.steps]
        logits, _, _, stop, _ = predictor(x, forced(torch.tensor(emitted).expand(len(x), -1)))
        for row, multisets in enumerate(probabilities):
            sure = 1.0
            for size in range(MOST + 1):
                end = 1.0
                if size < MOST:
                    shares = logits[row, size].softmax(-1).tolist()
                    end = {"fixed": 0.0, "end": shares[-1]}.get(predictor.stop, -1.0)
                    if stop is not None:
                        end = float(stop[row, size].sigmoid())
                # A prefix occurs in many sequences; it is counted in the one that continues with zeros.
                if not any(sequence[size:]) and (end > 0 or predictor.stop != "fixed"):
                    counts = tuple(sequence[:size].count(label) for label in range(C))
                    multisets[counts] = multisets.get(counts, 0.0) + sure * end
                if size < MOST:
                    sure *= shares[sequence[size]] * ((1 - end) if predictor.stop == "policy" else 1.0)
    return probabilities


def found(predictor: Predictor, x: Tensor, **options) -> list[dict[tuple[int, ...], float]]:
    counts, log_probability = predictor.search(x, **options)
    return [
        {tuple(multiset): p for multiset, p in zip(*rows, strict=True) if p > 0}
        for rows in zip(counts.tolist(), log_probability.exp().tolist(), strict=True)
    ]


# Exact


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", COUNTS_ONLY)
def test_an_unlimited_beam_gives_every_multiset_its_probability(name, stop):
    predictor, x = make(name, stop)
    expected = enumerated(predictor, x)
    every = 10 if stop == "fixed" else 1 + 3 + 6 + 10
    for ours, theirs in zip(found(predictor, x, k=every + 3, beam=UNLIMITED), expected, strict=True):
        assert len(theirs) == every
        assert ours == pytest.approx(theirs, rel=1e-9)
        assert sum(ours.values()) == pytest.approx(1, abs=1e-12)
        assert max(ours.values()) < 0.95, "the example shows too little"
    counts, log_probability = predictor.search(x, k=every + 3, beam=UNLIMITED)
    assert counts.shape == (len(x), every + 3, C)
    assert not counts[:, every:].any()
    assert (log_probability[:, every:] == -torch.inf).all()
    assert (log_probability.diff(dim=1)[:, : every - 1] <= 0).all()
    best, _ = predictor.search(x, k=1, beam=UNLIMITED)
    assert [tuple(row) for row in best[:, 0].tolist()] == [max(t, key=t.__getitem__) for t in expected]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", COUNTS_ONLY)
def test_a_multiset_is_no_less_probable_than_a_sequence_of_its_labels(name, stop):
    predictor, x = make(name, stop, batch=50)
    prediction = predictor.explain(x)
    log_probability = predictor.log_probability(x, prediction.counts, beam=UNLIMITED)
    with torch.no_grad():
        output = predictor(x, forced(prediction.sequence))
    emitted = prediction.sequence >= 0
    chosen = output.logits[:, : emitted.shape[1]].softmax(-1).gather(2, prediction.sequence.clamp(min=0)[..., None])
    one_order = torch.where(emitted, chosen[..., 0], 1.0).prod(1)
    if stop == "fixed":  # otherwise the probability of stopping is another factor
        assert (log_probability.exp() >= one_order - 1e-12).all()
        assert (log_probability.exp() > one_order + 0.01).any()
    torch.testing.assert_close(prediction.confidence, log_probability.exp())


@pytest.mark.parametrize("stop", STOPS)
def test_every_multiset_has_its_exact_log_probability(stop):
    predictor, x = make("feed-forward", stop, batch=2)
    for row, multisets in enumerate(enumerated(predictor, x)):
        for counts, probability in multisets.items():
            log = predictor.log_probability(x[row : row + 1], torch.tensor([counts]))
            assert log.item() == pytest.approx(math.log(probability), rel=1e-9)
    impossible = torch.tensor([[MOST, 1, 0], [0, 0, MOST - 1 if stop == "fixed" else MOST + 1]])
    assert predictor.log_probability(x, impossible).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", RECURRENT)
def test_an_unlimited_beam_scores_a_recurrent_policy_exactly(name, stop):
    predictor, x = make(name, stop)
    for ours, theirs in zip(found(predictor, x, k=20, beam=UNLIMITED), enumerated(predictor, x), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


# Estimated


# Largest and mean error of a probability, as stated in the docstring of the module.
ERRORS = {"lstm": (0.05, 0.0045), "conv-lstm": (0.007, 0.0008)}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", RECURRENT)
def test_merging_the_prefixes_of_a_recurrent_policy_is_a_fair_estimate(name, stop, record_property):
    predictor, x = make(name, stop, batch=20)
    search = predictor._search(UNLIMITED)
    with torch.no_grad():
        state = predictor.policy.start(predictor.encoder(x))
        levels = [*search._prefixes(state, torch.zeros(20, C, dtype=torch.int64), UNLIMITED)]
    errors = []
    for row, multisets in enumerate(enumerated(predictor, x)):
        merged = {
            tuple(counts): math.exp(log)
            for level in levels
            for counts, log in zip(level.counts[row].tolist(), (level.log_mass + level.log_end)[row], strict=True)
        }
        errors += [abs(merged[multiset] - p) for multiset, p in multisets.items()]
        # Also with estimates, the probabilities sum to 1.
        assert sum(merged.values()) == pytest.approx(1, abs=1e-9)
        assert {m: merged[m] for m in multisets if sum(m) == 1} == pytest.approx(
            {m: p for m, p in multisets.items() if sum(m) == 1}, rel=1e-9
        )
    largest, mean = max(errors), sum(errors) / len(errors)
    record_property("errors", f"largest {largest:.4f}, mean {mean:.5f}")
    assert 1e-4 < largest < ERRORS[name][0]
    assert mean < ERRORS[name][1]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", POLICIES)
def test_wider_beams_estimate_a_probability_more_accurately(name, stop):
    predictor, x = make(name, stop, batch=20)
    counts = torch.ones(20, C, dtype=torch.int64)  # in six orders
    exact = predictor.log_probability(x, counts, beam=UNLIMITED).exp()
    errors = [(predictor.log_probability(x, counts, beam=beam).exp() - exact).abs() for beam in (1, 2, 6)]
    assert errors[2].max() < 1e-9
    assert [float(error.mean()) for error in errors] == sorted((float(e.mean()) for e in errors), reverse=True)
    assert errors[0].mean() < 0.1


class AllOrdersAlike(nn.Module):
    """A policy that emits the labels of the multiset in the memory in random order and, rarely, another label.

    Each label occurs at most once, so the probability of a correct label depends on the number of emitted labels.
    """

    counts_only = True
    features = 1

    def __init__(self, num_classes: int, astray: float) -> None:
        super().__init__()
        self.num_classes, self.astray = num_classes, astray
        self.nothing = nn.Parameter(torch.zeros(1))

    def start(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        return memory, torch.zeros_like(memory)

    def step(self, state: tuple[Tensor, Tensor], previous: Tensor | None) -> tuple[Step, tuple[Tensor, Tensor]]:
        memory, emitted = state
        if previous is not None:
            emitted = emitted + nn.functional.one_hot(previous, self.num_classes)
        free = (memory - emitted).clamp(min=0)
        share = free / free.sum(-1, keepdim=True).clamp(min=1)
        logits = ((1 - self.astray) * share + self.astray / self.num_classes).log()
        return Step(logits, free[:, :1]), (memory, emitted)

    def select(self, state: tuple[Tensor, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        return state[0][index], state[1][index]


@pytest.mark.parametrize("beam", [1, 4, 32])
def test_the_probabilities_of_many_orders_are_summed(beam):
    size, classes, astray = 12, 15, 0.05
    policy = AllOrdersAlike(classes, astray)
    predictor = Predictor(nn.Identity(), policy, [*map(str, range(classes))], max_size=size, stop="fixed")
    truth = torch.stack([torch.randperm(classes, generator=torch.Generator().manual_seed(i)) < size for i in range(3)])
    # At each step, a correct label is drawn from the free labels, or by a uniform draw that is correct by chance.
    expected = math.prod(1 - astray + astray * (size - t) / classes for t in range(size))
    counts, log_probability = predictor.search(truth.double(), k=2, beam=beam)
    assert torch.equal(counts[:, 0], truth.long())
    assert log_probability[:, 0].exp().tolist() == pytest.approx([expected] * 3, rel=1e-9)
    assert (log_probability[:, 1].exp() < 0.05).all()
    assert predictor.explain(truth.double(), beam=beam).confidence.tolist() == pytest.approx([expected] * 3, rel=1e-9)


# All policies


@pytest.mark.parametrize("beam", [1, 3, UNLIMITED])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", POLICIES)
def test_the_best_multiset_is_at_least_as_probable_as_the_greedy_prediction(name, stop, beam):
    predictor, x = make(name, stop, batch=20)
    greedy = predictor.predict(x)
    score = predictor.log_probability(x, greedy, beam=beam)
    assert (score > -torch.inf).all()
    counts, log_probability = predictor.search(x, k=4, beam=beam)
    assert (log_probability[:, 0] >= score - 1e-12).all()
    one, only = predictor.search(x, k=1, beam=beam)
    assert (only[:, 0] >= score - 1e-12).all()
    assert one.shape == (20, 1, C)
    # The reported probability of each multiset is the one that `log_probability` returns for it.
    for place in range(4):
        there = log_probability[:, place] > -torch.inf
        again = predictor.log_probability(x[there], counts[there, place], beam=beam)
        torch.testing.assert_close(log_probability[there, place], again, rtol=1e-9, atol=1e-9)
    rows = [tuple(map(tuple, row[log > -torch.inf].tolist())) for row, log in zip(counts, log_probability, strict=True)]
    assert all(len({*row}) == len(row) for row in rows), "a multiset is returned twice"


@pytest.mark.parametrize("name", POLICIES)
def test_results_do_not_depend_on_the_batch_size(name, monkeypatch):
    predictor, x = make(name, "policy", batch=9)
    together = predictor.search(x, k=3, beam=4)
    alone = [predictor.search(x[i : i + 1], k=3, beam=4) for i in range(9)]
    monkeypatch.setattr(module, "_STATES", 8)
    for parts in (predictor.search(x, k=3, beam=4), [torch.cat(part) for part in zip(*alone, strict=True)]):
        assert torch.equal(together.counts, parts[0])
        torch.testing.assert_close(together.log_probability, parts[1], rtol=0, atol=1e-12)
    none = predictor.search(x[:0], k=3)
    assert (none.counts.shape, none.log_probability.shape) == ((0, 3, C), (0, 3))


@pytest.mark.parametrize("shape", [(6, 2, 3), (6, 9, 9)], ids=["small", "large"])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_selected_examples_continue_unchanged(name, steps, shape):
    torch.manual_seed(0)
    policy = POLICIES[name](C) if name != "conv-lstm" else ConvLSTMPolicy(C, shape, hidden=8)
    policy = policy.double()
    memory = torch.randn(5, *(shape if name == "conv-lstm" else shape[:1]), dtype=torch.float64)
    labels = torch.randint(C, (5, 5), generator=torch.Generator().manual_seed(1))
    index = torch.tensor([3, 3, 0, 4, 1, 3, 2])
    with torch.no_grad():
        state, previous = policy.start(memory), None
        for t in range(steps):
            _, state = policy.step(state, previous)
            previous = labels[:, t]
        state = policy.select(state, index)
        for t in range(steps, 5):
            step, state = policy.step(state, None if t == 0 else labels[index, t - 1])
            whole = rollout(policy, memory, forced(labels), t + 1)
            torch.testing.assert_close(step.logits, whole.logits[index, t], rtol=0, atol=1e-12)
            torch.testing.assert_close(step.features, whole.features[index, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_declare_whether_they_see_only_counts(name):
    predictor, x = make(name, "fixed")
    one, other = (
        predictor(x, forced(torch.tensor([row]).expand(5, -1))).logits[:, 2] for row in ([0, 1, 0], [1, 0, 0])
    )
    assert torch.allclose(one, other, atol=1e-12) == predictor.policy.counts_only


def test_excluded_labels_have_probability_zero():
    predictor, x = make("feed-forward", "end")
    with torch.no_grad():
        predictor.policy.classifier.bias[1] = -torch.inf
    counts, log_probability = predictor.search(x, k=30, beam=UNLIMITED)
    there = log_probability > -torch.inf
    assert there.sum(1).tolist() == [1 + 2 + 3 + 4] * len(x)
    assert not counts[..., 1].any()
    torch.testing.assert_close(log_probability.exp().sum(1), torch.ones(len(x), dtype=torch.float64))


def test_a_beam_may_be_narrower_than_the_number_of_results():
    predictor, x = make("transformer", "fixed")
    counts, log_probability = predictor.search(x, k=10, beam=2)
    assert (log_probability > -torch.inf).all()
    assert all(len({*map(tuple, row)}) == 10 for row in counts.tolist())


def test_single_precision_and_training_mode_give_the_same_results():
    predictor, x = make("lstm", "policy")
    exact = predictor.search(x, k=4)
    predictor.float().train()
    rounded = predictor.search(x.float(), k=4)
    assert predictor.training
    assert predictor.policy.training
    torch.testing.assert_close(rounded.log_probability, exact.log_probability, rtol=1e-4, atol=1e-4)
    assert not rounded.log_probability.requires_grad


def test_invalid_input_is_reported_with_the_argument(without_shape_hook):
    predictor, x = make("feed-forward", "fixed")
    with pytest.raises(ValueError, match="k must be at least 1"):
        predictor.search(x, k=0)
    with pytest.raises(ValueError, match="beam must be at least 1"):
        predictor.search(x, beam=0)
    with pytest.raises(ValueError, match=r"counts must be .* \(B, C\) = \(5, 3\)"):
        predictor.log_probability(x, torch.zeros(4, C, dtype=torch.int64))
    one_step = Predictor(MLPEncoder(6, (8,)), OneStep(C, 8), ["ant", "bee", "cat"], max_size=MOST)
    for query in (one_step.search, lambda x: one_step.log_probability(x, to_labels(torch.ones(5, C).long()))):
        with pytest.raises(ValueError, match="OneStep has no probabilities of multisets: train with"):
            query(x.float())
    predictor.policy.select = None
    with pytest.raises(ValueError, match=r"policy must be an object with a method select\(state, index\)"):
        predictor.search(x)
