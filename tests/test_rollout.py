from __future__ import annotations

import itertools
from collections import Counter

import pytest
import reference
import torch
from fakes import FlatPolicy, TablePolicy
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counters, to_counts
from strategies import NUM_CLASSES, multisets, problems

from torchmultiset.multiset import from_labels
from torchmultiset.rollout import follow_oracle, forced, greedy, rollout, sample

C, T = 3, 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def memory(batch: int) -> torch.Tensor:
    return torch.zeros(batch, 1)


@pytest.fixture
def policy() -> TablePolicy:
    return TablePolicy.random(C, T)


STRATEGIES = {
    "greedy": lambda: greedy,
    "sample": lambda: sample(seeded(1)),
    "oracle": lambda: follow_oracle(from_labels([[0, 0, 1, 2]] * 50, C), seeded(1)),
    "forced": lambda: forced(torch.randint(C, (50, T), generator=seeded(1))),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_each_step_receives_the_previous_label(policy, strategy):
    logits, features, labels = rollout(policy, memory(50), strategy(), T)
    assert logits.shape == (50, T, C)
    assert features.shape == (50, T, 1)
    assert labels.shape == (50, T)
    assert labels.dtype == torch.int64
    for b, row in enumerate(labels.tolist()):
        nodes = [policy.node(row[:t]) for t in range(T)]
        assert torch.equal(logits[b], policy.table[nodes])
        assert features[b, :, 0].tolist() == nodes
    assert policy.previous[0] is None
    assert len(policy.previous) == T
    assert all(torch.equal(previous, labels[:, t]) for t, previous in enumerate(policy.previous[1:]))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_forcing_the_labels_of_a_rollout_reproduces_its_trajectory(policy, strategy):
    first = rollout(policy, memory(50), strategy(), T)
    again = rollout(policy, memory(50), forced(first.labels), T)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_same_generator_gives_the_same_trajectory(policy, strategy):
    before = torch.get_rng_state()
    first = rollout(policy, memory(50), strategy(), T)
    again = rollout(policy, memory(50), strategy(), T)
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(torch.get_rng_state(), before), "the global generator was used"


@pytest.mark.parametrize(
    "strategy", [sample, lambda generator: follow_oracle(from_labels([[0, 1, 2]] * 50, C), generator)]
)
def test_another_seed_gives_another_trajectory(policy, strategy):
    first = rollout(policy, memory(50), strategy(seeded(1)), 3)
    other = rollout(policy, memory(50), strategy(seeded(2)), 3)
    assert not torch.equal(first.labels, other.labels)


@pytest.mark.parametrize("strategy", [sample, lambda: follow_oracle(from_labels([[0, 1, 2]] * 50, C))])
def test_without_a_generator_the_global_seed_decides(policy, strategy):
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(rollout(policy, memory(50), strategy(), 3).labels)
    assert torch.equal(*runs)


def test_choose_receives_the_step_the_logits_and_the_emitted_labels(policy):
    received = []

    def choose(t: int, logits: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        received.append((t, logits, emitted.clone()))
        return torch.tensor([t % C, 2])

    logits, _, labels = rollout(policy, memory(2), choose, T)
    assert [t for t, _, _ in received] == list(range(T))
    for t, given_logits, emitted in received:
        assert torch.equal(given_logits, logits[:, t])
        assert to_counters(emitted) == [Counter(row[:t]) for row in labels.tolist()]


def test_gradients_reach_the_policy(policy):
    logits, _, _ = rollout(policy, memory(2), forced(torch.tensor([[0, 1], [2, 2]])), 2)
    logits.sum().backward()
    reached = policy.table.grad.sum(-1).nonzero().flatten().tolist()
    assert reached == sorted({0, policy.node([0]), policy.node([2])})


# Strategies


def test_greedy_emits_the_most_probable_label(policy):
    logits, _, labels = rollout(policy, memory(1), greedy, T)
    for row, label in zip(logits[0].tolist(), labels[0].tolist(), strict=True):
        assert row[label] == max(row)


def chi_square(labels: torch.Tensor, probabilities: list[float]) -> float:
    counts = Counter(labels.tolist())
    expected = [len(labels) * p for p in probabilities]
    return sum((counts[c] - e) ** 2 / e for c, e in enumerate(expected))


def test_sample_draws_from_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.5], dtype=torch.float64)
    labels = sample(seeded(0))(0, logits.expand(20_000, -1), torch.zeros(20_000, 4, dtype=torch.int64))
    # 16.27: the 99.9 % point of chi-square with 3 degrees of freedom
    assert chi_square(labels, reference.softmax(logits.tolist())) < 16.27


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sample_never_emits_impossible_labels(dtype):
    logits = torch.tensor([-torch.inf, 0.0, -1e4, 0.0], dtype=dtype).expand(1000, -1)
    labels = sample(seeded(0))(0, logits, torch.zeros(1000, 4, dtype=torch.int64))
    assert set(labels.tolist()) == {1, 3}


@given(st.data())
def test_remark_2_an_oracle_rollout_always_matches_exactly(data):
    """For targets of different sizes in one batch; the logits do not matter."""
    num_classes = data.draw(NUM_CLASSES)
    targets = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    counts = to_counts(targets, num_classes)
    choose = follow_oracle(counts, seeded(data.draw(st.integers(0, 999))))
    steps = max(1, *(target.total() for target in targets))
    labels = rollout(FlatPolicy(num_classes), memory(len(targets)), choose, steps).labels
    assert 0 <= labels.min() <= labels.max() < num_classes
    for target, row in zip(targets, labels.tolist(), strict=True):
        assert reference.exact_match(Counter(row[: target.total()]), target) == 1


@given(st.data())
def test_an_oracle_rollout_ends_with_end(data):
    num_classes = data.draw(NUM_CLASSES)
    targets = data.draw(st.lists(multisets(num_classes), min_size=1, max_size=4))
    choose = follow_oracle(to_counts(targets, num_classes), seeded(0), end=True)
    steps = max(target.total() for target in targets) + 2
    labels = rollout(FlatPolicy(num_classes + 1), memory(len(targets)), choose, steps).labels
    for target, row in zip(targets, labels.tolist(), strict=True):
        assert Counter(row[: target.total()]) == target
        assert row[target.total()] == num_classes


@pytest.mark.parametrize("end", [False, True])
@given(data=st.data())
def test_after_any_prefix_the_oracle_emits_free_labels(end, data):
    problem = data.draw(problems(end=end))
    # Once END was emitted at its time, nothing is free and any label is allowed; the counts do not show that time.
    choose = follow_oracle(problem.target, seeded(0), end=end)
    for t in range(problem.labels.shape[1]):
        prefix = problem.labels[:, :t]
        emitted = to_counts([Counter(row) for row in prefix.tolist()], problem.num_classes + end)
        chosen = choose(t, problem.logits[:, t], emitted).tolist()
        for b, label in enumerate(chosen):
            free = reference.free_multisets(
                problem.multisets[b], problem.trajectories[b], problem.num_classes if end else None
            )[t]
            assert free[label] > 0 or not free
            assert 0 <= label < problem.num_classes + end


def test_the_oracle_draws_items_uniformly():
    batch = 20_000
    choose = follow_oracle(from_labels([[0, 0, 0, 1, 3]] * batch, 4), seeded(0))
    emitted = from_labels([[0, 2]] * batch, 4)  # one correct, one wrong: {0, 0, 1, 3} is left
    labels = choose(2, torch.zeros(batch, 4), emitted)
    assert 2 not in labels
    # 13.82: the 99.9 % point of chi-square with 2 degrees of freedom
    assert chi_square(torch.where(labels == 3, 2, labels), [1 / 2, 1 / 4, 1 / 4]) < 13.82


def test_forced_emits_the_sequence_and_any_label_in_padding(policy):
    sequence = torch.tensor([[2, 1, 0], [1, -1, -100]])
    _, _, labels = rollout(policy, memory(2), forced(sequence), 3)
    assert labels.tolist() == [[2, 1, 0], [1, 0, 0]]


def test_fewer_steps_than_forced_labels_are_allowed(policy):
    _, _, labels = rollout(policy, memory(1), forced(torch.tensor([[2, 1, 0]])), 2)
    assert labels.tolist() == [[2, 1]]


# Ending early


@pytest.mark.parametrize(
    ("finished_at", "steps"),
    [([0, 0], 1), ([0, 1], 2), ([2, 0], 3), ([1, 9], T), ([9, 9], T)],
)
def test_until_ends_when_every_example_has_finished(policy, finished_at, steps):
    """An example stays finished, whatever `until` returns for it later."""
    t = itertools.count()
    at = torch.tensor(finished_at)
    trajectory = rollout(policy, memory(2), sample(seeded(0)), T, until=lambda step, labels: at == next(t))
    full = rollout(policy, memory(2), sample(seeded(0)), T)
    assert trajectory.labels.shape == (2, steps)
    assert len(trajectory.logits[0]) == len(trajectory.features[0]) == steps
    assert torch.equal(trajectory.labels, full.labels[:, :steps])
    assert torch.equal(trajectory.logits, full.logits[:, :steps])


def test_until_receives_the_step_and_its_labels(policy):
    received_steps = []

    def until(step, labels):
        received_steps.append((step, labels))
        return labels == 1

    logits, features, labels = rollout(policy, memory(1), forced(torch.tensor([[0, 2, 1, 0]])), T, until=until)
    assert labels.tolist() == [[0, 2, 1]]
    assert torch.equal(torch.stack([step.logits for step, _ in received_steps], 1), logits)
    assert torch.equal(torch.stack([step.features for step, _ in received_steps], 1), features)
    assert torch.equal(torch.stack([label for _, label in received_steps], 1), labels)
