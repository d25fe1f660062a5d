"""Plain implementations of the paper's network, used as speed baselines and as references in tests.

Both are `Policy` objects that concatenate memory, label map and hidden state and convolve all of it at every step.
`JointGates` uses one convolution for all gates, as most published ConvLSTM cells do; `GateByGate` uses eight, one for
each gate's input and hidden state, as in the equations. Neither hoists, fuses or reorders anything.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from torchmultiset.encoders import ConvEncoder
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.rollout import Step

State = tuple[Tensor, list[Tensor], list[Tensor]]


class _Plain(nn.Module):
    """Base class of ConvLSTM policies with the parameters of another, computed without optimisations."""

    def __init__(self, policy: ConvLSTMPolicy) -> None:
        super().__init__()
        self.num_classes, self.memory, self.hidden = policy.num_classes, policy.memory, policy.hidden
        self.sees_previous = policy.classifier_sees_previous
        self.embedding = deepcopy(policy.embedding)
        self.classifier = deepcopy(policy.classifier)

    def start(self, memory: Tensor) -> State:
        _, height, width = self.memory

        def zeros() -> list[Tensor]:
            return [memory.new_zeros(len(memory), self.hidden, height, width) for _ in range(self.depth())]

        return memory, zeros(), zeros()

    def step(self, state: State, previous: Tensor | None) -> tuple[Step, State]:
        memory, hidden, cell = state
        _, height, width = self.memory
        if previous is None:
            previous = torch.full((len(memory),), self.num_classes)
        embedded = self.embedding(previous)
        x = torch.cat([memory, embedded.view(-1, 1, height, width)], 1)
        new_hidden, new_cell = [], []
        for i in range(self.depth()):
            into, forget, out, candidate = self.gates(i, x, hidden[i])
            c = torch.sigmoid(forget) * cell[i] + torch.sigmoid(into) * torch.tanh(candidate)
            x = torch.sigmoid(out) * torch.tanh(c)
            new_hidden.append(x)
            new_cell.append(c)
        features = x.mean((2, 3))
        if self.sees_previous:
            features = torch.cat([features, embedded], 1)
        return Step(self.classifier(features), features), (memory, new_hidden, new_cell)

    def depth(self) -> int:
        raise NotImplementedError

    def gates(self, layer: int, x: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError


class JointGates(_Plain):
    """ConvLSTM with one convolution for all four gates, over the concatenated input and hidden state."""

    def __init__(self, policy: ConvLSTMPolicy) -> None:
        super().__init__(policy)
        self.convs = deepcopy(policy.layers)

    def depth(self) -> int:
        return len(self.convs)

    def gates(self, layer: int, x: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        joint: Tensor = self.convs[layer](torch.cat([x, hidden], 1))
        return joint.chunk(4, 1)


class GateByGate(_Plain):
    """ConvLSTM with eight convolutions: for each gate one over the input and one over the hidden state."""

    def __init__(self, policy: ConvLSTMPolicy) -> None:
        super().__init__(policy)
        self.of_input, self.of_hidden = nn.ModuleList(), nn.ModuleList()
        for layer in policy.layers:
            joint = layer.state_dict()
            q, kernel, size = self.hidden, policy.kernel, joint["weight"].shape[1] - self.hidden
            for weight, bias in zip(joint["weight"].split(q), joint["bias"].split(q), strict=True):
                of_input = nn.Conv2d(size, q, kernel, padding=kernel // 2)
                of_hidden = nn.Conv2d(q, q, kernel, padding=kernel // 2, bias=False)
                of_input.to(weight.dtype).load_state_dict({"weight": weight[:, :size], "bias": bias})
                of_hidden.to(weight.dtype).load_state_dict({"weight": weight[:, size:]})
                self.of_input.append(of_input)
                self.of_hidden.append(of_hidden)

    def depth(self) -> int:
        return len(self.of_input) // 4

    def gates(self, layer: int, x: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            of_input(x) + of_hidden(hidden)
            for of_input, of_hidden in zip(
                self.of_input[4 * layer : 4 * layer + 4], self.of_hidden[4 * layer : 4 * layer + 4], strict=True
            )
        )


class PlainTower(nn.Module):
    """The paper's tower, convolution, ReLU and pooling, in PyTorch's default memory layout."""

    def __init__(self, encoder: ConvEncoder) -> None:
        super().__init__()
        self.convs = deepcopy(encoder.convs)
        for conv in self.convs:
            conv.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = max_pool2d(relu(conv(x)), 2)
        return x
