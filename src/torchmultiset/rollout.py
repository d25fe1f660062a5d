"""Executing a policy: one loop over steps, and the ways to choose a label at each (section 4).

A policy reads a memory (what an encoder made of the input) and gives, step by step, scores for the next label.
`rollout` asks it for scores, lets `choose` name a label, tells the policy, and writes down what happened.

    choose = greedy | sample(generator) | follow_oracle(target, generator) | forced(labels)

are the paper's three execution strategies and teacher forcing. Anything of the same form will do.

A multiset ends at a known size, where a stop head says so, or at the END class: `until_size`, `until_stop` and
`until_end` give a mask (B, T) of the labels that belong to the prediction, so that
``from_labels(labels, num_classes, where=mask)`` are its counts. A data set whose largest multiset has n labels needs
T = n steps for a known size, and T = n + 1 otherwise: slot t asks "are t labels enough?" before label t is named, for t
from 0 (the empty multiset) to n. The last slot can only end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check, check_counts, check_float, check_labels
from torchmultiset.multiset import difference

__all__ = [
    "Choose",
    "Policy",
    "Step",
    "Trajectory",
    "append_end",
    "follow_oracle",
    "forced",
    "greedy",
    "rollout",
    "sample",
    "until_end",
    "until_size",
    "until_stop",
]

S = TypeVar("S")


class Step(NamedTuple):
    """What a policy says before a label is chosen."""

    logits: Float[Tensor, "b c"]
    """Scores of the next label, before the softmax."""
    features: Float[Tensor, "b d"]
    """What the scores were read from; stop and value heads read it too."""


class Trajectory(NamedTuple):
    """What happened in a rollout: at step t, `logits[:, t]` is before `labels[:, t]` was chosen."""

    logits: Float[Tensor, "b t c"]
    features: Float[Tensor, "b t d"]
    labels: Int64[Tensor, "b t"]


@runtime_checkable
class Policy(Protocol[S]):
    """Names labels one at a time. The state S is the policy's own business.

    In a `Predictor` it also has two numbers: `num_classes`, with END, and `features`, the width of what `Step` has of
    them.
    """

    def start(self, memory: Float[Tensor, "b ..."]) -> S:
        """Do what needs doing once per input, before the first label."""
        ...

    def step(self, state: S, previous: Int64[Tensor, " b"] | None) -> tuple[Step, S]:
        """Take in the label named last (None at the start) and score the next."""
        ...


Choose: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""(t, logits (B, C), named (B, C)) -> labels (B,); `named` counts the labels so far."""


def rollout(
    policy: Policy[S],
    memory: Float[Tensor, "b ..."],
    choose: Choose,
    steps: int,
    *,
    until: Callable[[Step, Tensor], Tensor] | None = None,
) -> Trajectory:
    """Execute a policy.

    Args:
        policy: The policy.
        memory: What the encoder made of the inputs, (B, ...).
        choose: How to name a label from the scores.
        steps: The most labels to name, T.
        until: For evaluation: (step, labels (B,)) -> mask (B,) of the examples that are finished now. The
            loop ends once all have been, and the trajectory is that much shorter.

    Returns:
        The trajectory. Gradients flow through `logits` and `features`; labels have none.

    Example:
        >>> class Uniform:
        ...     def start(self, memory):
        ...         return memory
        ...     def step(self, state, previous):
        ...         return Step(logits=torch.zeros(len(state), 3), features=state), state
        >>> target = torch.tensor([[1, 0, 1]])
        >>> trajectory = rollout(Uniform(), torch.zeros(1, 5), follow_oracle(target), steps=2)
        >>> trajectory.labels.sort().values
        tensor([[0, 2]])
    """
    check(steps >= 1, "steps", "at least 1", steps)
    state = policy.start(memory)
    previous: Tensor | None = None
    named = finished = None
    seen: list[Step] = []
    labels: list[Tensor] = []
    for t in range(steps):
        step, state = policy.step(state, previous)
        if named is None:
            named = torch.zeros_like(step.logits, dtype=torch.int64)
        with torch.no_grad():
            previous = choose(t, step.logits, named)
        seen.append(step)
        labels.append(previous)
        if until is not None:
            done = until(step, previous)
            finished = done if finished is None else finished | done
            if finished.all():
                break
        # Not in place: a strategy may keep what it was given.
        named = named.scatter_add(1, previous[:, None], torch.ones_like(previous[:, None]))
    logits, features = zip(*seen, strict=True)
    return Trajectory(torch.stack(logits, 1), torch.stack(features, 1), torch.stack(labels, 1))


def greedy(t: int, logits: Float[Tensor, "b c"], named: Int64[Tensor, "b c"]) -> Int64[Tensor, " b"]:  # noqa: ARG001
    r"""Greedy search: :math:`\hat y_t = \arg\max_y \log \pi_\theta(y \mid \hat y_{<t}, x)`.

    Example:
        >>> greedy(0, torch.tensor([[0.1, 0.7, 0.2]]), torch.zeros(1, 3, dtype=torch.int64))
        tensor([1])
    """
    return logits.argmax(-1)


def sample(generator: torch.Generator | None = None) -> Choose:
    r"""Stochastic sampling: :math:`\hat y_t \sim \pi_\theta(y \mid \hat y_{<t}, x)`.

    Args:
        generator: Where the randomness comes from; PyTorch's own if None.

    Example:
        >>> choose = sample(torch.Generator().manual_seed(0))
        >>> choose(0, torch.tensor([[0.0, 99.0, 0.0]]), torch.zeros(1, 3, dtype=torch.int64))
        tensor([1])
    """

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        return _draw(logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), generator)

    return choose


def follow_oracle(
    target: Int64[Tensor, "b c"], generator: torch.Generator | None = None, *, end: bool = False
) -> Choose:
    r"""Oracle sampling: :math:`\hat y_t \sim \pi_*(y \mid \hat y_{<t}, x, \mathcal{Y}_t)`.

    Args:
        target: Counts (B, C).
        generator: Where the randomness comes from; PyTorch's own if None.
        end: Whether the policy has an END class, with label C. Once all else is named, END is.

    Without END, once all is named, any label is: such a step weighs nothing in a loss.

    Example:
        >>> target = torch.tensor([[0, 2, 0]])
        >>> follow_oracle(target)(1, torch.zeros(1, 3), torch.tensor([[0, 1, 0]]))
        tensor([1])
    """
    check_counts("target", target)

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        check(
            logits.shape == (target.shape[0], target.shape[1] + end),
            "target",
            f"counts of shape (B, C) for logits of shape (B, {'C + 1' if end else 'C'}) = {tuple(logits.shape)}",
            target,
        )
        free = difference(target, named[:, : target.shape[1]])
        nothing = (free.sum(-1, keepdim=True) == 0).long()
        return _draw((torch.cat([free, nothing], -1) if end else free + nothing).float(), generator)

    return choose


def forced(labels: Int64[Tensor, "b t"]) -> Choose:
    """Name these labels, whatever the policy says: teacher forcing, or repeating a trajectory.

    Args:
        labels: Labels (B, T). Where one is padding (negative), any label is named.

    Example:
        >>> choose = forced(torch.tensor([[2, 0]]))
        >>> choose(1, torch.zeros(1, 3), torch.tensor([[0, 0, 1]]))
        tensor([0])
    """
    check(labels.ndim == 2 and labels.dtype == torch.int64, "labels", "an int64 tensor of shape (B, T)", labels)

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        check(t < labels.shape[1], "labels", f"at least {t + 1} labels long for a rollout of that many", labels)
        if t == 0:
            check_labels("labels", labels, logits.shape[1], like=(logits.shape[0], None), padding=True)
        return labels[:, t].clamp(min=0)

    return choose


def until_size(size: Int64[Tensor, " b"], steps: int) -> Bool[Tensor, "b t"]:
    """Keep the first `size` labels: the way to end where the size is known.

    Args:
        size: Number of labels of each example (B,).
        steps: T.

    Example:
        >>> until_size(torch.tensor([2, 0]), steps=3)
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    check(steps >= 1, "steps", "at least 1", steps)
    check(size.ndim == 1 and size.dtype == torch.int64, "size", "an int64 tensor of shape (B,)", size)
    return torch.arange(steps, device=size.device) < size[:, None]


def until_stop(stop_logits: Float[Tensor, "b t"], *, threshold: float = 0.5) -> Bool[Tensor, "b t"]:
    r"""Keep the labels before the termination policy :math:`\pi_s` first says stop (section 4).

    Args:
        stop_logits: Scores (B, T) of a stop head; slot t asks "are t labels enough?".
        threshold: Stop where the probability is above this.

    Example:
        >>> until_stop(torch.tensor([[-2.0, -1.0, 3.0, -1.0], [5.0, 0.0, 0.0, 0.0]]))
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check_float("stop_logits", stop_logits, "(B, T)", like=(None, None))
    check(0 < threshold < 1, "threshold", "between 0 and 1", threshold)
    return _before_first(stop_logits > math.log(threshold / (1 - threshold)))


def until_end(labels: Int64[Tensor, "b t"], end: int) -> Bool[Tensor, "b t"]:
    """Keep the labels before the first END (Appendix E, "Special Class").

    Args:
        labels: Labels (B, T).
        end: The label of END.

    Example:
        >>> until_end(torch.tensor([[0, 2, 3, 1], [3, 3, 3, 3]]), end=3)
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check(labels.ndim == 2 and labels.dtype == torch.int64, "labels", "an int64 tensor of shape (B, T)", labels)
    return _before_first(labels == end)


def append_end(sequence: Int64[Tensor, "b t"], end: int) -> Int64[Tensor, "b t+1"]:
    """Put END after the last label of each sequence, so that the sequence loss teaches it.

    Args:
        sequence: Labels (B, T), padded with -1 at the end.
        end: The label of END.

    Example:
        >>> append_end(torch.tensor([[2, 0], [1, -1]]), end=3)
        tensor([[ 2,  0,  3],
                [ 1,  3, -1]])
    """
    check(
        sequence.ndim == 2 and sequence.dtype == torch.int64,
        "sequence",
        "an int64 tensor of shape (B, T)",
        sequence,
    )
    size = (sequence >= 0).sum(-1, keepdim=True)
    longer = pad(sequence, (0, 1), value=-1)
    return longer.scatter(1, size, end)


def _before_first(ends: Tensor) -> Tensor:
    keep = ends.cumsum(-1) == 0
    keep[:, -1] = False
    return keep


def _draw(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.multinomial(weights, 1, generator=generator).squeeze(-1)
