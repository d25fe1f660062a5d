"""Predictions, compared with an evaluation of the same scores one example and one step at a time."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter

import pytest
import reference
import torch
from torch import Tensor, nn

from torchmultiset.encoders import ConvEncoder, MLPEncoder
from torchmultiset.heads import OneStep
from torchmultiset.model.one_shot import OneShotPredictor
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.sequential import SequentialPredictor
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import Step, follow_oracle, forced, greedy, sample

CLASSES = ("ant", "bee", "cat")
C, MOST = len(CLASSES), 3
STOPS = ("fixed", "policy", "end")


class Scripted(nn.Module):
    """A policy whose scores are its input (B, T, K + 1): K scores of labels and one of stopping for each step."""

    features = 1
    counts_only = False

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.steps = 0
        """Number of steps since the last start."""

    def start(self, memory: Tensor) -> tuple[Tensor, int]:
        self.steps = 0
        return memory, 0

    def step(self, state: tuple[Tensor, int], previous: Tensor | None) -> tuple[Step, tuple[Tensor, int]]:
        memory, t = state
        self.steps += 1
        return Step(memory[:, t, :-1], memory[:, t, -1:]), (memory, t + 1)

    def select(self, state: tuple[Tensor, int], index: Tensor) -> tuple[Tensor, int]:
        return state[0][index], state[1]


def scripted(stop: str, max_size: int = MOST) -> Predictor:
    """A predictor whose scores are its input."""
    predictor = Predictor(nn.Identity(), Scripted(C + (stop == "end")), CLASSES, max_size=max_size, stop=stop)
    if predictor.stop_head is not None:
        nn.init.ones_(predictor.stop_head.linear.weight)
        nn.init.zeros_(predictor.stop_head.linear.bias)
    return predictor


def script(stop: str, labels: list[int], stops: list[float] | None = None) -> Tensor:
    """Input (1, T, K + 1) for which a scripted predictor emits these labels and has these scores of stopping."""
    rows = nn.functional.one_hot(torch.tensor(labels), C + (stop == "end")).float() * 2
    scores = torch.tensor(stops or [0.0] * len(labels))
    return torch.cat([rows, scores[:, None]], 1)[None]


def random_scripts(stop: str, n: int = 300) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 2 * torch.randn(n, MOST + (stop != "fixed"), C + (stop == "end") + 1, generator=generator)


def evaluate_plainly(logits: list[list[float]], stops: list[float], stop: str, max_size: int) -> list[int]:
    """The greedy sequence."""
    sequence: list[int] = []
    for t in range(max_size):
        label = max(range(len(logits[t])), key=logits[t].__getitem__)
        if (stop == "policy" and stops[t] > 0) or (stop == "end" and label == C):
            return sequence
        sequence.append(label)
    return sequence


def probability(rows: Tensor, sequence: list[int], stop: str, max_size: int) -> float:
    """Probability of a multiset under scripted scores, which do not depend on earlier labels: a sum over orders."""
    pi = [reference.softmax(row) for row in rows[:, :-1].tolist()]
    enough = [1 / (1 + math.exp(-score)) for score in rows[:, -1].tolist()]
    total = 0.0
    for order in set(itertools.permutations(sequence)):
        product = 1.0
        for t, label in enumerate(order):
            product *= pi[t][label] * (1 - enough[t] if stop == "policy" else 1.0)
        if stop != "fixed" and len(order) < max_size:
            product *= enough[len(order)] if stop == "policy" else pi[len(order)][C]
        total += product
    return total


def networks(stop: str, *, baseline: bool = False) -> dict[str, tuple[Predictor, Tensor]]:
    """Predictors with random weights, and inputs for them."""
    torch.manual_seed(0)
    k = C + (stop == "end")
    vectors, images = torch.randn(40, 7), torch.rand(40, 1, 3, 3).repeat_interleave(6, 2).repeat_interleave(6, 3)
    mlp = MLPEncoder(7, (16,))
    conv = nn.Sequential(ConvEncoder(1, (4, 5), kernel=3), nn.BatchNorm2d(5, momentum=None))
    nn.init.constant_(conv[1].weight, 5)
    conv(images)  # sets the statistics of batch norm
    parts = {
        "lstm": (mlp, LSTMPolicy(k, 16, hidden=12), vectors),
        "feed-forward": (mlp, FeedForwardPolicy(k, 16, hidden=12), vectors),
        "transformer": (conv, TransformerPolicy(k, 5, places=9, width=8, heads=2), images),
        "conv-lstm": (conv, ConvLSTMPolicy(k, (5, 3, 3), hidden=6), images),
    }
    predictors = {}
    for name, (encoder, policy, x) in parts.items():
        predictor = Predictor(encoder, policy, CLASSES, max_size=MOST, stop=stop, baseline=baseline)
        predictor.eval()
        # Large scores around 0, so that examples differ in labels and sizes.
        with torch.no_grad():
            for head in [policy.classifier] + ([predictor.stop_head.linear] if predictor.stop_head else []):
                nn.init.normal_(head.weight, std=20)
            output = predictor(x)
            policy.classifier.bias -= output.logits[:, 0].mean(0)
            if output.stop is not None:
                predictor.stop_head.linear.bias -= output.stop[:, 0].mean()
        predictors[name] = predictor, x
    return predictors


# --- predictions ---


@pytest.mark.parametrize("stop", STOPS)
def test_predictions_equal_a_plain_evaluation_of_the_scores(stop):
    predictor, x = scripted(stop), random_scripts(stop)
    prediction = predictor.explain(x)
    counts, sequences = prediction.counts, prediction.sequence
    expected = [evaluate_plainly(rows[:, :-1].tolist(), rows[:, -1].tolist(), stop, MOST) for rows in x]
    sizes = Counter(map(len, expected))
    assert set(sizes) == ({MOST} if stop == "fixed" else set(range(MOST + 1))), "the examples do not cover all sizes"
    for row, sequence in enumerate(expected):
        padding = [-1] * (sequences.shape[1] - len(sequence))
        assert sequences[row].tolist() == sequence + padding
        assert counts[row].tolist() == [sequence.count(label) for label in range(C)]
    sums = [probability(rows, sequence, stop, MOST) for rows, sequence in zip(x, expected, strict=True)]
    torch.testing.assert_close(prediction.confidence, torch.tensor(sums, dtype=torch.float64), rtol=1e-5, atol=0)
    torch.testing.assert_close(prediction.probabilities, x[..., :-1].softmax(-1))
    assert prediction.rows == "steps"
    plain = [[reference.entropy(reference.softmax(row)) for row in rows[:, :-1].tolist()] for rows in x]
    torch.testing.assert_close(prediction.entropy, torch.tensor(plain), rtol=1e-4, atol=1e-6)
    assert (prediction.stop is not None) == (stop == "policy")
    torch.testing.assert_close(predictor.predict(x), counts, rtol=0, atol=0)
    assert predictor.predict_labels(x) == [[CLASSES[label] for label in sorted(sequence)] for sequence in expected]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", ["lstm", "feed-forward", "transformer", "conv-lstm"])
def test_predictions_of_networks_equal_a_plain_evaluation_of_a_full_rollout(stop, name):
    predictor, x = networks(stop)[name]
    with torch.no_grad():
        whole = predictor(x)
    assert whole.logits.shape[1] == predictor.steps
    prediction = predictor.explain(x)
    counts = prediction.counts
    for row in range(len(x)):
        stops = [] if whole.stop is None else whole.stop[row].tolist()
        sequence = evaluate_plainly(whole.logits[row].tolist(), stops, stop, MOST)
        assert [label for label in prediction.sequence[row].tolist() if label >= 0] == sequence
        assert counts[row].tolist() == [sequence.count(label) for label in range(C)]
    exact = predictor.log_probability(x, counts, beam=100).exp()
    torch.testing.assert_close(prediction.confidence, exact, rtol=1e-5, atol=1e-6)
    assert counts.sum(-1).max() <= MOST
    assert len(counts.sum(-1).unique()) > (stop != "fixed"), "the examples do not cover all sizes"


def test_a_fixed_size_is_always_met():
    predictor, x = networks("fixed")["lstm"]
    assert predictor.steps == MOST
    assert predictor.predict(x).sum(-1).tolist() == [MOST] * len(x)


@pytest.mark.parametrize("stop", ["policy", "end"])
def test_the_empty_multiset_can_be_predicted(stop):
    x = script(stop, [C] * 4) if stop == "end" else script(stop, [1, 1, 1, 1], [0.5, -9.0, -9.0, -9.0])
    predictor = scripted(stop)
    prediction = predictor.explain(x)
    assert prediction.counts.tolist() == [[0, 0, 0]]
    assert prediction.sequence.tolist() == [[-1]]
    assert predictor.predict_labels(x) == [[]]
    expected = math.exp(2) / (math.exp(2) + 3) if stop == "end" else 1 / (1 + math.exp(-0.5))
    assert prediction.confidence.item() == pytest.approx(expected)


@pytest.mark.parametrize("stop", ["policy", "end"])
def test_the_last_step_always_stops(stop):
    x = script(stop, [2, 0, 2, 1], [-1.0] * 4)
    prediction = scripted(stop).explain(x)
    assert prediction.sequence.tolist() == [[2, 0, 2, -1]]
    assert prediction.counts.tolist() == [[1, 0, 2]]
    expected = probability(x[0], [2, 0, 2], stop, MOST)  # the fourth step stops with certainty
    assert prediction.confidence.item() == pytest.approx(expected, rel=1e-5)


def test_labels_after_a_stop_do_not_count():
    x = script("policy", [2, 0, 1, 1], [-1.0, 1.0, -1.0, -1.0])
    assert scripted("policy").predict(x).tolist() == [[0, 0, 1]]
    x = script("end", [2, C, 1, C])
    assert scripted("end").predict(x).tolist() == [[0, 0, 1]]


def test_a_stop_probability_of_one_half_does_not_end_the_multiset():
    assert scripted("policy").predict(script("policy", [0, 0, 0, 0], [0.0, 0.0, 1.0, 0.0])).tolist() == [[2, 0, 0]]


def test_a_predictor_may_emit_at_most_one_label():
    for stop in STOPS:
        predictor = scripted(stop, max_size=1)
        x = random_scripts(stop)[:, : predictor.steps]
        assert predictor.explain(x).counts.sum(-1).unique().tolist() == ([1] if stop == "fixed" else [0, 1])


# --- ending early ---


@pytest.mark.parametrize("stop", ["policy", "end"])
def test_the_rollout_ends_with_the_last_example_that_stops(stop):
    empty = script(stop, [C] * 4) if stop == "end" else script(stop, [0] * 4, [1.0] * 4)
    one = script(stop, [0, C, 0, 0]) if stop == "end" else script(stop, [0] * 4, [-1.0, 1.0, -1.0, -1.0])
    predictor = scripted(stop)
    for x, steps in ((empty, 1), (one, 2), (torch.cat([one, empty, one]), 2)):
        predictor.predict(x)
        assert predictor.policy.steps == steps
        predictor(x)  # in training, all steps are computed
        assert predictor.policy.steps == MOST + 1


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_stopping_early_gives_the_predictions_of_a_full_rollout(stop):
    # In double precision, because convolutions of one example and of a batch round differently.
    double = {name: (predictor.double(), x.double()) for name, (predictor, x) in networks(stop).items()}
    cases = {"script": (scripted(stop), random_scripts(stop)), **double}
    for name, (predictor, x) in cases.items():
        with torch.no_grad():
            whole, early = predictor(x), predictor(x, early=True)
        assert torch.equal(predictor.counts(whole), predictor.counts(early)), name
        together = predictor.explain(x)
        for row in range(len(x[:40])):  # alone, an example stops after its own last label
            alone = predictor.explain(x[row : row + 1])
            size = int(together.counts[row].sum())
            assert alone.probabilities.shape[1] == (predictor.steps if stop == "fixed" else size + 1)
            assert torch.equal(alone.counts[0], together.counts[row]), name
            assert torch.equal(alone.sequence[0, :size], together.sequence[row, :size]), name
            torch.testing.assert_close(alone.confidence[0], together.confidence[row])


def test_rounding_of_a_stop_probability_near_one_half_is_harmless():
    class Edge(nn.Module):
        """A stop head whose score is barely positive for a single step, and barely negative for all steps at once."""

        def forward(self, features: Tensor) -> Tensor:
            return torch.full(features.shape[:-1], 1e-8 if features.ndim == 2 else -1e-8)

    predictor = scripted("policy")
    predictor.stop_head = Edge()
    prediction = predictor.explain(script("policy", [2, 0, 1, 1]))
    assert prediction.counts.tolist() == [[0, 0, 0]]
    assert prediction.confidence.item() == pytest.approx(0.5)


# --- confidence ---


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("max_size", [1, 2])
def test_confidence_is_the_sum_over_all_orders_of_the_multiset(stop, max_size):
    torch.manual_seed(1)
    k = C + (stop == "end")
    predictor = Predictor(MLPEncoder(7, (16,)), LSTMPolicy(k, 16, hidden=8), CLASSES, max_size=max_size, stop=stop)
    predictor.double()
    nn.init.normal_(predictor.policy.classifier.weight, std=3)
    x = torch.randn(1, 7, dtype=torch.float64)

    def confidence(sequence: tuple[int, ...]) -> float:
        padded = [*sequence, *[C if stop == "end" else 0] * (predictor.steps - len(sequence))]
        output = predictor(x, forced(torch.tensor([padded])))
        product = 1.0
        for t, label in enumerate(sequence):
            product *= reference.softmax(output.logits[0, t].tolist())[label]
            if output.stop is not None:
                product *= 1 - output.stop[0, t].sigmoid().item()
        if stop != "fixed" and len(sequence) < max_size:
            end = len(sequence)
            if output.stop is not None:
                return product * output.stop[0, end].sigmoid().item()
            return product * reference.softmax(output.logits[0, end].tolist())[C]
        return product

    lengths = [max_size] if stop == "fixed" else range(max_size + 1)
    sequences = [s for length in lengths for s in itertools.product(range(C), repeat=length)]
    scores = {sequence: confidence(sequence) for sequence in sequences}
    assert math.fsum(scores.values()) == pytest.approx(1, abs=1e-12)
    prediction = predictor.explain(x)
    predicted = Counter(label for label in prediction.sequence[0].tolist() if label >= 0)
    orders = [score for sequence, score in scores.items() if Counter(sequence) == predicted]
    assert prediction.confidence.item() == pytest.approx(math.fsum(orders), abs=1e-12)


def test_explain_with_best_predicts_the_most_probable_multiset():
    predictor, x = networks("policy")["feed-forward"]
    greedy, best = predictor.explain(x, beam=50), predictor.explain(x, best=4, beam=50)
    ranked = predictor.search(x, k=4, beam=50)
    assert torch.equal(best.best.counts, ranked.counts)
    assert torch.equal(best.counts, ranked.counts[:, 0])
    torch.testing.assert_close(best.confidence, ranked.log_probability[:, 0].exp())
    assert (best.confidence >= greedy.confidence - 1e-9).all()
    assert torch.equal(best.sequence, greedy.sequence)
    assert greedy.best is None


def test_a_prediction_is_accepted_from_a_threshold_of_confidence():
    predictor, x = networks("policy")["lstm"]
    prediction = predictor.explain(x)
    threshold = prediction.confidence.median().item()
    accepted = prediction.accepted(threshold)
    assert accepted.tolist() == [c >= threshold for c in prediction.confidence.tolist()]
    assert 0 < accepted.sum() < len(x)
    assert prediction.accepted(0.0).all()


def test_an_explanation_encodes_its_inputs_once():
    predictor, x = networks("policy")["lstm"]
    calls = []
    predictor.encoder.register_forward_hook(lambda *_: calls.append(1))
    predictor.explain(x)
    predictor.explain(x, best=3)
    assert len(calls) == 2


@pytest.mark.parametrize("stop", STOPS)
def test_sampled_counts_follow_the_distribution_of_the_model(stop):
    predictor, x = networks(stop)["feed-forward"]
    sampled = predictor.count_probabilities(x[:5], samples=4000, generator=torch.Generator().manual_seed(0))
    assert sampled.shape == (5, C, MOST + 1)
    torch.testing.assert_close(sampled.sum(-1), torch.ones(5, C, dtype=torch.float64))
    counts, log_probability = predictor.search(x[:5], k=50, beam=500)
    exact = torch.zeros_like(sampled)
    for row in range(5):
        for multiset, log in zip(counts[row].tolist(), log_probability[row].tolist(), strict=True):
            for c, n in enumerate(multiset):
                exact[row, c, n] += math.exp(log)
    assert (sampled - exact).abs().max() < 4 * 0.5 / math.sqrt(4000)
    alone = predictor.count_probabilities(x[2:3], samples=4000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone[0], sampled[2], rtol=0, atol=2 / 4000)


# --- two kinds ---


def test_the_kind_of_a_predictor_follows_from_its_module():
    policy = Predictor(MLPEncoder(7, (16,)), LSTMPolicy(C, 16), CLASSES, max_size=MOST)
    head = Predictor(MLPEncoder(7, (16,)), OneStep(C, 16), CLASSES, max_size=MOST)
    assert type(policy) is SequentialPredictor
    assert type(head) is OneShotPredictor
    assert (policy.kind, policy.steps, head.kind, head.steps) == ("LSTMPolicy", MOST + 1, "OneStep", 0)
    again = copy.deepcopy(head)
    assert type(again) is OneShotPredictor
    assert torch.equal(again.predict(torch.ones(1, 7)), head.predict(torch.ones(1, 7)))


def test_a_predictor_reports_unsupported_methods():
    policy = Predictor(MLPEncoder(7, (16,)), LSTMPolicy(C, 16), CLASSES, max_size=MOST)
    head = Predictor(MLPEncoder(7, (16,)), OneStep(C, 16), CLASSES, max_size=MOST)
    x = torch.rand(2, 7)
    with pytest.raises(ValueError, match="LSTMPolicy is a policy, which has no distribution in closed form"):
        policy.belief(x)
    with pytest.raises(ValueError, match="LSTMPolicy is a policy, not a one-shot head"):
        policy.scores(x)
    with pytest.raises(ValueError, match="OneStep is a one-shot head, which does not emit labels one at a time"):
        head.rollout(x, greedy)
    with pytest.raises(ValueError, match="OneStep has no probabilities of multisets"):
        head.search(x)
    with pytest.raises(ValueError, match="OneStep has no probabilities of multisets"):
        head.explain(x, best=2)


# --- forward ---


@pytest.mark.parametrize("stop", STOPS)
def test_the_output_of_forward_has_all_inputs_of_the_losses(stop):
    predictor, x = networks(stop, baseline=True)["lstm"]
    output = predictor(x, sample(torch.Generator().manual_seed(0)))
    steps, k = (MOST, C) if stop == "fixed" else (MOST + 1, C + (stop == "end"))
    assert output.logits.shape == (40, steps, k)
    assert output.features.shape == (40, steps, 12)
    assert output.labels.shape == (40, steps)
    assert output.value.shape == (40, steps)
    assert (output.stop is None) == (stop != "policy")
    total = output.logits.sum() + output.value.sum() + (0 if output.stop is None else output.stop.sum())
    total.backward()
    assert all(parameter.grad is not None for parameter in predictor.parameters())


def test_without_a_baseline_there_is_no_value():
    predictor, x = networks("policy")["lstm"]
    assert predictor.value_head is None
    assert predictor(x).value is None


@pytest.mark.parametrize("stop", STOPS)
def test_the_caller_chooses_the_emitted_labels(stop):
    predictor, x = networks(stop)["lstm"]
    target = torch.tensor([[1, 0, 2]]).expand(len(x), -1)
    oracle = predictor(x, follow_oracle(target, torch.Generator().manual_seed(0), end=stop == "end"))
    assert oracle.labels[:, :MOST].sort(-1).values.tolist() == [[0, 2, 2]] * len(x)
    again = predictor(x, forced(oracle.labels))
    assert torch.equal(again.labels, oracle.labels)
    torch.testing.assert_close(again.logits, oracle.logits)


def test_the_output_of_forward_converts_to_counts():
    predictor, x = scripted("policy"), script("policy", [2, 0, 1, 1], [-1.0, -1.0, 1.0, -1.0])
    output = predictor(x, forced(torch.tensor([[1, 1, 1, 1]])))
    assert predictor.counts(output).tolist() == [[0, 2, 0]]


# --- side effects ---


@pytest.mark.parametrize("method", ["predict", "predict_labels", "explain"])
def test_predicting_does_not_change_the_predictor(method):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
    predictor = Predictor(encoder, LSTMPolicy(C, 16, hidden=8), CLASSES, max_size=MOST)
    predictor.train()
    encoder[1].eval()  # frozen by the user while the rest is trained
    modes = [module.training for module in predictor.modules()]
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    x = torch.randn(20, 7)
    first, second = (getattr(predictor, method)(x) for _ in range(2))
    assert str(first) == str(second), "dropout is active"
    assert [module.training for module in predictor.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in predictor.state_dict().items())
    assert all(parameter.grad is None for parameter in predictor.parameters())


def test_the_mode_is_restored_after_a_failure():
    predictor, _ = networks("policy")["lstm"]
    predictor.train()
    with pytest.raises(ValueError, match="x must be"):
        predictor.predict(torch.randn(2, 6))
    assert all(module.training for module in predictor.modules())


def test_predictions_require_no_gradient_and_are_ordinary_tensors():
    predictor, x = networks("policy")["lstm"]
    prediction = predictor.explain(x)
    assert not any(field.requires_grad for field in prediction if isinstance(field, Tensor))
    prediction.counts.add_(1)
    weight = torch.ones(C, requires_grad=True)
    (prediction.probabilities * weight).sum().backward()  # as constants of another loss
    assert weight.grad is not None


@pytest.mark.parametrize("stop", STOPS)
def test_an_empty_batch_has_no_predictions(stop):
    predictor, x = networks(stop)["lstm"]
    assert predictor.predict(x[:0]).shape == (0, C)
    assert predictor.predict_labels(x[:0]) == []
    assert predictor.explain(x[:0]).confidence.shape == (0,)


# --- the one-step model ---


def one_step() -> tuple[Predictor, Tensor]:
    torch.manual_seed(0)
    predictor = Predictor(MLPEncoder(7, (16,)), OneStep(C, 16), CLASSES, max_size=MOST, stop="policy")
    nn.init.normal_(predictor.head.classifier.weight, std=2)
    nn.init.normal_(predictor.head.size.linear.weight, std=2)
    return predictor, torch.randn(60, 7)


def test_a_one_step_model_rounds_shares_times_size():
    predictor, x = one_step()
    scores = predictor(x)
    assert scores.shape == (60, 1, C + 1)
    rounded = [[round(share * size) for share in reference.softmax(row)] for *row, size in scores[:, 0].tolist()]
    expected = predictor.predict(x).tolist()
    small = [sum(row) <= predictor.max_size for row in rounded]
    assert [row for row, fits in zip(expected, small, strict=True) if fits] == [
        row for row, fits in zip(rounded, small, strict=True) if fits
    ]
    assert sum(small) > 20
    assert len({tuple(row) for row in expected}) > 5
    names = [[name for name, n in zip(CLASSES, row, strict=True) for _ in range(n)] for row in expected]
    assert predictor.predict_labels(x) == names


def test_a_one_step_model_predicts_the_nearest_multiset_if_rounding_gives_too_many():
    predictor, _ = one_step()
    # A size of 5 with shares of 0.36, 0.34 and 0.3 gives 1.8, 1.7 and 1.5, each of which is rounded to 2.
    scores = torch.tensor([[[math.log(0.36), math.log(0.34), math.log(0.3), 5.0]]])
    assert predictor.head.counts(scores, 0, 6).tolist() == [[2, 2, 2]]
    assert predictor.head.counts(scores, 0, 5).tolist() == [[2, 2, 1]]
    assert predictor.head.counts(scores, 0, 4).tolist() == [[2, 1, 1]]


def test_a_one_step_model_has_no_order_and_no_confidence():
    predictor, x = one_step()
    prediction = predictor.explain(x)
    assert prediction.confidence.isnan().all()
    assert (prediction.sequence, prediction.stop, prediction.rows) == (None, None, "shares")
    torch.testing.assert_close(prediction.probabilities.sum(-1), torch.ones(60, 1))


# --- refused arguments ---


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": "never"}, "stop must be one of 'fixed', 'policy', 'end', but is 'never'"),
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"classes": ["a", "b", "a"]}, r"classes must be different names.*\['a', 'b', 'a'\]"),
        ({"classes": []}, "classes must be different names, at least one"),
        ({"classes": ["a", "b"]}, "policy must be one of 2 classes, but is 3"),
        ({"stop": "end"}, "policy must be one of 4 classes.*END.*but is 3"),
    ],
)
def test_mismatches_are_refused(changes, message):
    arguments = {"classes": list(CLASSES), "max_size": 2, "stop": "policy", **changes}
    with pytest.raises(ValueError, match=message):
        Predictor(MLPEncoder(7, (16,)), LSTMPolicy(3, 16), **arguments)


@pytest.mark.parametrize(
    ("classes", "changes", "message"),
    [
        (C, {"baseline": True}, "baseline must be False for a one-shot head, which REINFORCE cannot train"),
        (
            C + 1,
            {"stop": "end"},
            "stop must be 'fixed' or 'policy' for a one-shot head, which emits no END, but is 'end'",
        ),
    ],
)
def test_a_one_step_model_refuses_settings_of_policies(classes, changes, message):
    with pytest.raises(ValueError, match=message):
        Predictor(MLPEncoder(7, (16,)), OneStep(classes, 16), CLASSES, max_size=MOST, **changes)


def test_a_policy_without_num_classes_is_refused():
    policy = Scripted(C)
    policy.num_classes = None
    with pytest.raises(
        TypeError, match=r"policy must have an integer attribute `num_classes` \(see Policy\), but Scripted has none"
    ):
        Predictor(nn.Identity(), policy, CLASSES, max_size=MOST)


def test_a_policy_that_sees_only_counts_can_be_evaluated_at_given_counts():
    predictor = Predictor(MLPEncoder(5, (4,)), FeedForwardPolicy(C, 4), CLASSES, max_size=MOST)
    at = torch.tensor([[[0, 0, 0], [1, 0, 1]], [[0, 2, 0], [1, 1, 1]]])
    output = predictor.at(torch.rand(2, 5), at)
    assert output.logits.shape == (2, 2, C)
    assert output.stop.shape == (2, 2)
