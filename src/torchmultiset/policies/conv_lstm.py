"""The paper's policy: a stack of convolutional LSTM layers over a feature map (Appendix E)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout2d, embedding

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_float, check_one_of
from torchmultiset._memory import MemorySpec, places
from torchmultiset._pooling import Pool, PoolKind
from torchmultiset.policies._lstm import lstm_cell
from torchmultiset.rollout import Step

__all__ = ["ConvLSTMPolicy", "ConvLSTMState"]


class ConvLSTMState(NamedTuple):
    """State of a ConvLSTM policy with q hidden channels and maps of h x w."""

    memory_gates: Float[Tensor, "b 4*q h w"]
    """Contribution of the memory to the first layer's gates, the same at every step."""
    label_gates: Float[Tensor, "c+1 4*q h w"] | None
    """Contribution of each possible previous label, or None if convolving the actual ones is cheaper."""
    of_label: Float[Tensor, "4*q 1 k k"]
    """The first layer's weights for the label map."""
    weights: tuple[Tensor, ...]
    """Weights of each layer for the hidden states of the layer below, if there is one, and its own."""
    hidden: tuple[Float[Tensor, "b q h w"], ...]
    cell: tuple[Float[Tensor, "b q h w"], ...]


@recorded
class ConvLSTMPolicy(nn.Module):
    """Convolutional LSTM layers on a map, followed by spatial pooling and a softmax classifier.

    At each step the previous label is embedded as a map of the memory's height and width and concatenated to the memory
    as one more channel. The first layer's gates are linear in memory, label map and hidden state, so the memory's
    contribution is computed once per rollout, and so are those of all C + 1 labels if C + 1 is at most the batch size.

    Args:
        num_classes: Number of classes, C, including END if there is one.
        memory: Channels, height and width of the memory.
        hidden: Channels of each layer, q.
        layers: Number of layers.
        kernel: Kernel size of the convolutions, odd.
        classifier_sees_previous: Concatenate the embedding of the previous label to the pooled features.
        norm: ``"layer"`` applies layer normalisation to the pooled features; None, as in the paper, does not. Without
            it training starts slowly, since means over h x w values in (-1, 1) are tiny.
        pool: How positions are pooled: ``"mean"``, ``"max"``, ``"mean-max"`` (both), ``"attention"`` or ``"sum"``.
        dropout: Dropout probability of the memory's channels, drawn once per rollout.

    Example:
        >>> from torchmultiset.rollout import greedy, rollout
        >>> policy = ConvLSTMPolicy(num_classes=10, memory=(32, 9, 9))
        >>> rollout(policy, torch.rand(2, 32, 9, 9), greedy, steps=4).logits.shape
        torch.Size([2, 4, 10])
    """

    counts_only = False

    def __init__(
        self,
        num_classes: int,
        memory: tuple[int, int, int],
        *,
        hidden: int = 32,
        layers: int = 2,
        kernel: int = 3,
        classifier_sees_previous: bool = False,
        norm: Literal["layer"] | None = None,
        pool: PoolKind = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_one_of("norm", norm, (None, "layer"))
        check(num_classes >= 1, "num_classes", "at least 1", num_classes)
        check(layers >= 1, "layers", "at least 1", layers)
        check(kernel >= 1 and kernel % 2 == 1, "kernel", "an odd number", kernel)
        check(0 <= dropout < 1, "dropout", "at least 0 and below 1", dropout)
        channels, height, width = memory
        self.num_classes = num_classes
        self.memory = memory
        self.hidden = hidden
        self.kernel = kernel
        self.classifier_sees_previous = classifier_sees_previous
        self.dropout = dropout
        self.pool = Pool(hidden, pool)
        self.features = self.pool.width + (height * width if classifier_sees_previous else 0)
        # The last row embeds the start of the sequence, before the first label.
        self.embedding = nn.Embedding(num_classes + 1, height * width)
        # Each layer convolves its concatenated input and hidden state with one weight tensor.
        inputs = [channels + 1] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(
            nn.Conv2d(size + hidden, 4 * hidden, kernel, padding=kernel // 2) for size in inputs
        )
        self.norm = nn.LayerNorm(self.pool.width) if norm else nn.Identity()
        self.classifier = nn.Linear(self.features, num_classes)

    @classmethod
    def for_memory(cls, memory: MemorySpec, settings: Mapping[str, Any], *, num_classes: int) -> ConvLSTMPolicy:
        """Create a policy for a memory from `hidden`, `layers`, `pool`, `dropout` and `policy_norm`."""
        others = "'lstm', 'feed-forward' or 'transformer' for vectors and tokens"
        check(memory.grid is not None, "policy", others, "conv-lstm")
        assert memory.grid is not None
        chosen = {name: settings[name] for name in ("hidden", "layers", "pool", "dropout")}
        norm: Literal["layer"] | None = None if settings["policy_norm"] == "none" else "layer"
        return cls(num_classes, (memory.features, *memory.grid), norm=norm, **chosen)

    def start(self, memory: Float[Tensor, "b d h w"]) -> ConvLSTMState:
        """Compute the convolutions that are the same at every step."""
        check_float("memory", memory, "(B, channels, height, width)", like=(None, *self.memory))
        first = self._layer(0)
        of_memory, of_label, of_hidden = torch.split(first.weight, [self.memory[0], 1, self.hidden], dim=1)
        memory = dropout2d(memory, self.dropout, self.training)
        memory_gates = conv2d(memory, of_memory, first.bias, padding=first.padding)
        label_gates = None
        # An exported graph must not depend on the batch size.
        if not torch.compiler.is_exporting() and self.num_classes + 1 <= len(memory):
            label_gates = self._label_gates(self.embedding.weight, of_label)
        weights = (of_hidden, *(self._layer(i).weight for i in range(1, len(self.layers))))
        return ConvLSTMState(memory_gates, label_gates, of_label, weights, (), ())

    def step(self, state: ConvLSTMState, previous: Int64[Tensor, " b"] | None) -> tuple[Step, ConvLSTMState]:
        """Read the previous label and score the next one."""
        if previous is None:
            previous = torch.full(state.memory_gates.shape[:1], self.num_classes, device=state.memory_gates.device)
        hidden: list[Tensor] = []
        cell: list[Tensor] = []
        for i, weights in enumerate(state.weights):
            # At the first step the hidden states are 0 and contribute nothing.
            read = [*hidden[-1:], *state.hidden[i : i + 1]]
            shares = [state.memory_gates, self._gates_of_labels(state, previous)] if i == 0 else [self._bias(i)]
            if read:
                maps = torch.cat(read, 1) if len(read) > 1 else read[0]
                shares.append(conv2d(maps, weights[:, : maps.shape[1]], padding=self.kernel // 2))
            maps, new_cell = lstm_cell(sum(shares[1:], shares[0]), state.cell[i] if state.cell else None)
            hidden.append(maps)
            cell.append(new_cell)
        features = self.norm(self.pool(places(maps, self.hidden)))
        if self.classifier_sees_previous:
            features = torch.cat([features, self.embedding(previous)], 1)
        new = state._replace(hidden=tuple(hidden), cell=tuple(cell))
        return Step(self.classifier(features), features), new

    def select(self, state: ConvLSTMState, index: Int64[Tensor, " n"]) -> ConvLSTMState:
        """Return the state of the examples at these indices, in this order; indices may repeat."""
        return state._replace(
            memory_gates=state.memory_gates[index],
            hidden=tuple(maps[index] for maps in state.hidden),
            cell=tuple(cell[index] for cell in state.cell),
        )

    def _gates_of_labels(self, state: ConvLSTMState, labels: Int64[Tensor, " b"]) -> Float[Tensor, "b gates h w"]:
        if state.label_gates is None:
            return self._label_gates(self.embedding(labels), state.of_label)
        # An embedding of whole maps: its gradient adds rows, while that of index_select scatters single numbers.
        table = state.label_gates
        _, gates_each, height, width = table.shape
        rows = embedding(labels, table.permute(0, 2, 3, 1).flatten(1))
        return rows.view(-1, height, width, gates_each).permute(0, 3, 1, 2)

    def _label_gates(self, embedded: Float[Tensor, "n hw"], of_label: Tensor) -> Float[Tensor, "n gates h w"]:
        _, height, width = self.memory
        return conv2d(embedded.view(-1, 1, height, width), of_label, padding=self.kernel // 2)

    def _bias(self, i: int) -> Float[Tensor, "gates 1 1"]:
        bias = self._layer(i).bias
        assert bias is not None
        return bias.view(-1, 1, 1)

    def _layer(self, i: int) -> nn.Conv2d:
        layer = self.layers[i]
        assert isinstance(layer, nn.Conv2d)
        return layer
