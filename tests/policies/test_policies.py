"""Properties of all policies, and of those that do not depend on the order of labels."""

import itertools

import pytest
import torch

from torchmultiset import multiset
from torchmultiset.heads import SizeHead, StopHead, ValueHead
from torchmultiset.losses import multiset_loss
from torchmultiset.metrics import exact_match
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import follow_oracle, forced, greedy, rollout, sample

C, D = 6, 5
POLICIES = {
    "conv-lstm": (lambda: ConvLSTMPolicy(C, (D, 3, 4), hidden=8), (D, 3, 4)),
    "conv-lstm-1": (lambda: ConvLSTMPolicy(C, (D, 3, 4), hidden=8, layers=1, kernel=1), (D, 3, 4)),
    "lstm": (lambda: LSTMPolicy(C, D, hidden=8), (D,)),
    "lstm-2": (lambda: LSTMPolicy(C, D, hidden=8, layers=2), (D,)),
    "feed-forward": (lambda: FeedForwardPolicy(C, D, hidden=8), (D,)),
    "feed-forward-map": (lambda: FeedForwardPolicy(C, D, hidden=8, layers=1), (D, 3, 4)),
    "transformer": (lambda: TransformerPolicy(C, D, width=8, heads=2), (D,)),
    "transformer-map": (lambda: TransformerPolicy(C, D, places=12, width=8, heads=2), (D, 3, 4)),
}
ORDER_FREE = [name for name, (build, _) in POLICIES.items() if getattr(build(), "counts_only", False)]


def make(name, batch=9):
    torch.manual_seed(0)
    build, shape = POLICIES[name]
    return build().double(), torch.rand(batch, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", POLICIES)
def test_rollouts_have_the_documented_shapes(name):
    policy, memory = make(name)
    logits, features, labels = rollout(policy, memory, greedy, 4)
    assert logits.shape == (9, 4, C)
    assert features.shape == (9, 4, policy.features)
    assert labels.shape == (9, 4)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("batch", [3, 9])
def test_forcing_a_trajectorys_labels_reproduces_its_logits(name, batch):
    policy, memory = make(name, batch)
    drawn = rollout(policy, memory, sample(torch.Generator().manual_seed(1)), 5)
    again = rollout(policy, memory, forced(drawn.labels), 5)
    torch.testing.assert_close(again.logits, drawn.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(again.features, drawn.features, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_equals_its_single_examples(name):
    policy, memory = make(name)
    labels = torch.randint(0, C, (9, 4), generator=torch.Generator().manual_seed(2))
    together = rollout(policy, memory, forced(labels), 4).logits
    for i in range(9):
        alone = rollout(policy, memory[i : i + 1], forced(labels[i : i + 1]), 4).logits
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_emitted_labels_matter(name):
    policy, memory = make(name)
    zeros = torch.zeros(9, 2, dtype=torch.int64)
    a = rollout(policy, memory, forced(zeros), 2).logits
    b = rollout(policy, memory, forced(zeros + 1), 2).logits
    torch.testing.assert_close(a[:, 0], b[:, 0], rtol=0, atol=0)
    assert (a[:, 1] - b[:, 1]).abs().amin(0).max() > 1e-6


@pytest.mark.parametrize("name", ORDER_FREE)
def test_a_permuted_prefix_gives_the_same_logits(name):
    policy, memory = make(name)
    prefix = [0, 3, 3, 5]
    reference = None
    for order in set(itertools.permutations(prefix)):
        labels = torch.tensor([*order, 0]).expand(9, -1)
        last = rollout(policy, memory, forced(labels), 5).logits[:, -1]
        reference = last if reference is None else reference
        assert torch.equal(last, reference)


@pytest.mark.parametrize("name", POLICIES)
def test_every_parameter_has_a_gradient(name):
    policy, memory = make(name)
    target = torch.randint(0, 3, (9, C), generator=torch.Generator().manual_seed(3))
    # All labels are emitted, so that every row of an embedding is used.
    labels = torch.arange(C).expand(9, -1)
    trajectory = rollout(policy, memory, forced(labels), C)
    multiset_loss(trajectory.logits, labels, target * 9).backward()
    largest = {n: 0.0 if p.grad is None else p.grad.abs().max().item() for n, p in policy.named_parameters()}
    without_gradient = {n for n, size in largest.items() if not size > 1e-6 * max(largest.values())}  # except rounding
    # With a single position to attend to, the query has no effect.
    expected = {n for n, _ in policy.named_parameters() if name == "transformer" and ("query" in n or "before" in n)}
    assert without_gradient == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_learns_multisets_with_repeats(name, without_shape_hook):
    torch.manual_seed(0)
    build, shape = POLICIES[name]
    policy = build()
    memory = torch.randn(3, *shape)
    target = multiset.from_labels([[0, 0, 2], [1, 4, 5], [3, 3, 3]], C)
    adam = torch.optim.Adam(policy.parameters(), lr=0.02)
    for _ in range(600):
        trajectory = rollout(policy, memory, greedy, 3)
        if exact_match(multiset.from_labels(trajectory.labels, C), target).all():
            return
        adam.zero_grad()
        multiset_loss(trajectory.logits, trajectory.labels, target).backward()
        adam.step()
    pytest.fail("no exact match on three examples after 600 steps")


def test_heads_read_features_of_all_steps_at_once():
    features = torch.rand(2, 4, 8)
    for head in (StopHead(8), ValueHead(8)):
        together = head(features)
        assert together.shape == (2, 4)
        torch.testing.assert_close(together[:, 2], head(features[:, 2]))
    assert (SizeHead(8)(torch.randn(100, 8) * 10) > 0).all()


@pytest.mark.parametrize("name", POLICIES)
def test_with_the_oracle_strategy_any_policy_emits_the_target(name):
    policy, memory = make(name)
    target = torch.randint(0, 3, (9, C), generator=torch.Generator().manual_seed(4))
    steps = int(target.sum(-1).max())
    labels = rollout(policy, memory, follow_oracle(target), steps).labels
    where = torch.arange(steps) < target.sum(-1, keepdim=True)
    assert torch.equal(multiset.from_labels(labels, C, where=where), target)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LSTMPolicy(C, D).start(torch.rand(2, D + 1, 3, 3)), "memory must be"),
        (lambda: FeedForwardPolicy(C, D).start(torch.rand(2, D + 1)), "memory must be"),
        (lambda: TransformerPolicy(C, D, places=4).start(torch.rand(2, D, 3, 3)), "memory must be a map of at most 4"),
        (lambda: TransformerPolicy(C, D, width=10, heads=4), "width must be a multiple of heads = 4"),
        (lambda: ConvLSTMPolicy(C, (D, 3, 3), kernel=4), "kernel must be an odd number"),
        (lambda: ConvLSTMPolicy(C, (D, 3, 3), layers=0), "layers must be at least 1"),
    ],
)
def test_invalid_input_is_reported_with_the_argument(build, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        build()
