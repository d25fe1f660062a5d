"""The ConvLSTM policy equals textbook cells that concatenate and convolve all inputs at every step."""

import pytest
import torch

from benchmarks.textbook import GateByGate, JointGates
from torchmultiset.losses import multiset_loss
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import forced, greedy, rollout

T, C, MEMORY = 4, 5, (3, 4, 6)
SMALL = (3, 4, 4)  # small maps use a direct convolution


def make(layers, *, memory=MEMORY, sees_previous=False, kernel=3):
    torch.manual_seed(layers)
    policy = ConvLSTMPolicy(
        C, memory, hidden=7, layers=layers, kernel=kernel, classifier_sees_previous=sees_previous
    ).double()
    return policy, torch.manual_seed(0)


@pytest.mark.parametrize("batch", [2, C + 1, 9], ids=["chosen maps", "table at its limit", "table"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("plain_class", [JointGates, GateByGate])
@pytest.mark.parametrize("sees_previous", [False, True])
@pytest.mark.parametrize("memory", [MEMORY, SMALL])
def test_values_and_gradients_equal_the_textbook_cell(plain_class, layers, batch, sees_previous, memory):
    policy, generator = make(layers, memory=memory, sees_previous=sees_previous)
    plain = plain_class(policy)
    labels = torch.randint(0, C, (batch, T), generator=generator)
    target = torch.randint(0, 3, (batch, C), generator=generator)
    encoded = torch.rand(batch, *memory, dtype=torch.float64, generator=generator)

    def run(model):
        memory = encoded.clone().requires_grad_()
        logits, features, _ = rollout(model, memory, forced(labels), T)
        loss = multiset_loss(logits, labels, target)
        loss.backward()
        return logits, features, memory.grad

    for ours, theirs in zip(run(policy), run(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)

    torch.testing.assert_close(policy.embedding.weight.grad, plain.embedding.weight.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(policy.classifier.weight.grad, plain.classifier.weight.grad, rtol=0, atol=1e-12)
    for i, layer in enumerate(policy.layers):
        if plain_class is JointGates:
            weight, bias = plain.convs[i].weight.grad, plain.convs[i].bias.grad
        else:
            gates = range(4 * i, 4 * i + 4)
            weight = torch.cat(
                [torch.cat([plain.of_input[g].weight.grad, plain.of_hidden[g].weight.grad], 1) for g in gates]
            )
            bias = torch.cat([plain.of_input[g].bias.grad for g in gates])
        torch.testing.assert_close(layer.weight.grad, weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.bias.grad, bias, rtol=0, atol=1e-12)


def convolutions(policy, batch, steps, monkeypatch):
    """Shapes of the inputs of all convolutions of a rollout."""
    shapes = []
    original = torch.nn.functional.conv2d

    def spy(x, *args, **kwargs):
        shapes.append(tuple(x.shape))
        return original(x, *args, **kwargs)

    monkeypatch.setattr("torchmultiset.policies.conv_lstm.conv2d", spy)
    with torch.no_grad():
        rollout(policy, torch.rand(batch, *policy.memory), greedy, steps)
    return shapes


def test_memory_and_label_table_are_convolved_once_per_rollout(monkeypatch):
    policy = ConvLSTMPolicy(C, SMALL, hidden=7, layers=1)
    shapes = convolutions(policy, 8, 5, monkeypatch)
    assert shapes.count((8, *SMALL)) == 1
    assert shapes.count((C + 1, 1, 4, 4)) == 1
    assert shapes.count((8, 7, 4, 4)) == 4  # the hidden state, at every step but the first
    assert len(shapes) == 6


def test_with_more_labels_than_examples_only_the_chosen_maps_are_convolved(monkeypatch):
    policy = ConvLSTMPolicy(C, MEMORY, hidden=7, layers=1)
    shapes = convolutions(policy, C, 5, monkeypatch)
    assert shapes.count((C, *MEMORY)) == 1
    assert shapes.count((C, 1, 4, 6)) == 5
    assert (C + 1, 1, 4, 6) not in shapes


def test_the_first_step_has_its_own_embedding():
    policy, _ = make(1)
    memory = torch.rand(2, *MEMORY, dtype=torch.float64)
    before = rollout(policy, memory, greedy, 1).logits
    with torch.no_grad():
        policy.embedding.weight[-1] += 1
    after = rollout(policy, memory, greedy, 1).logits
    assert not torch.allclose(before, after)


def test_the_network_of_the_paper_has_the_expected_shapes():
    policy = ConvLSTMPolicy(10, (32, 9, 9))
    assert policy.embedding.weight.shape == (11, 81)
    assert [tuple(layer.weight.shape) for layer in policy.layers] == [(128, 65, 3, 3), (128, 64, 3, 3)]
    assert policy.classifier.weight.shape == (10, 32)


def test_the_coco_network_of_the_paper_has_the_expected_shapes():
    policy = ConvLSTMPolicy(24, (512, 19, 19), hidden=512).to("meta")
    assert policy.embedding.weight.shape == (25, 361)
    memory = torch.rand(2, 512, 19, 19, device="meta")
    step, _ = policy.step(policy.start(memory), None)
    assert step.features.shape == (2, 512)
    assert step.logits.shape == (2, 24)


def test_a_memory_of_another_shape_is_refused(without_shape_hook):
    policy, _ = make(1)
    with pytest.raises(
        ValueError, match=r"memory must be .*\(any, 3, 4, 6\).*is a float32 tensor of shape \(2, 3, 4, 5\)"
    ):
        policy.start(torch.rand(2, 3, 4, 5))
