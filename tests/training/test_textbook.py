"""The optimised network has the losses of the plain one at every training step."""

import pytest
import torch

from benchmarks.losses import loop_over_steps
from benchmarks.textbook import GateByGate, JointGates, PlainTower
from torchmultiset.encoders import ConvEncoder
from torchmultiset.losses import multiset_loss
from torchmultiset.multiset import from_labels
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import forced, rollout

pytestmark = pytest.mark.slow

B, T, C, SIDE = 12, 4, 10, 76  # large enough for all optimisations


def losses_of_50_steps(encoder, policy, loss):
    adam = torch.optim.Adam([*encoder.parameters(), *policy.parameters()], lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    values = []
    for _ in range(50):
        images = torch.rand(B, 1, SIDE, SIDE, dtype=torch.float64, generator=generator)
        target = from_labels(torch.randint(0, C, (B, T), generator=generator), C)
        labels = torch.randint(0, C, (B, T), generator=generator)
        trajectory = rollout(policy, encoder(images), forced(labels), T)
        value = loss(trajectory.logits, labels, target)
        adam.zero_grad()
        value.backward()
        adam.step()
        values.append(value.item())
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("layers", [1, 2])
def test_losses_of_fifty_steps_equal_those_of_the_textbook_networks(layers):
    torch.manual_seed(0)
    encoder = ConvEncoder().double()
    policy = ConvLSTMPolicy(C, encoder.memory_shape(SIDE, SIDE), hidden=8, layers=layers).double()
    start = policy.start(encoder(torch.zeros(B, 1, SIDE, SIDE, dtype=torch.float64)))
    assert start.label_gates is not None
    networks = [(PlainTower(encoder), plain(policy)) for plain in (GateByGate, JointGates)]
    ours = losses_of_50_steps(encoder, policy, multiset_loss)
    for network in networks:
        theirs = losses_of_50_steps(*network, loop_over_steps)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert ours.unique().numel() == 50
