"""Execution of a policy: a loop over steps, and strategies for choosing the label at each step (section 4).

A policy reads a memory (the output of an encoder) and scores the next label, step by step. `rollout` queries it for
scores, lets `choose` select a label, feeds the label back to the policy and records the trajectory.

    choose = greedy | sample(generator) | follow_oracle(target, generator) | forced(labels)

are the paper's three execution strategies and teacher forcing. Any function with this signature works.

A multiset ends at a known size, when a stop head stops, or at the END class: `until_size`, `until_stop` and
`until_end` return a mask (B, T) of the labels that belong to the prediction, so that
``from_labels(labels, num_classes, where=mask)`` gives its counts. If the largest multiset has n labels, a rollout
needs T = n steps for a known size and T = n + 1 otherwise: before label t is emitted, slot t decides whether t labels
are enough, for t from 0 (the empty multiset) to n. The last slot always ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check, check_counts, check_float, check_integers, check_labels
from torchmultiset._memory import Memory
from torchmultiset._precision import full_precision
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
    "sample_order",
    "until_end",
    "until_size",
    "until_stop",
]

S = TypeVar("S")


class Step(NamedTuple):
    """Output of a policy before a label is chosen."""

    logits: Float[Tensor, "b c"]
    """Scores (B, C) of the next label, before the softmax."""
    features: Float[Tensor, "b d"]
    """Features (B, D) behind the scores, which are also the input of stop and value heads."""


class Trajectory(NamedTuple):
    """Record of a rollout: `logits[:, t]` are the scores from which `labels[:, t]` was chosen."""

    logits: Float[Tensor, "b t c"]
    features: Float[Tensor, "b t d"]
    labels: Int64[Tensor, "b t"]


@runtime_checkable
class Policy(Protocol[S]):
    """Emits labels one at a time. The state S is private to the policy.

    In a `Predictor`, a policy also needs two attributes: `num_classes`, including END, and `features`, the width D of
    `Step.features`.
    """

    def start(self, memory: Any) -> S:
        """Compute what is needed once per input, before the first label, from the output of the encoder."""
        ...

    def step(self, state: S, previous: Int64[Tensor, " b"] | None) -> tuple[Step, S]:
        """Read the previous label (None at the first step) and score the next one."""
        ...


Choose: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""(t, logits (B, C), named (B, C)) -> labels (B,); `named` holds the counts of the labels emitted so far."""


def rollout(
    policy: Policy[S],
    memory: Memory,
    choose: Choose,
    steps: int,
    *,
    until: Callable[[Step, Tensor], Tensor] | None = None,
) -> Trajectory:
    """Execute a policy.

    Args:
        policy: Policy to execute.
        memory: Output of the encoder (B, ...).
        choose: Strategy that selects a label from the scores.
        steps: Maximum number of labels to emit, T.
        until: For evaluation: (step, labels (B,)) -> mask (B,) of the examples that finish at this step. The rollout
            ends early once all examples have finished.

    Returns:
        The trajectory. Gradients flow through `logits` and `features`, but not through the labels.

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
        # Not in place: a strategy may keep a reference to `named`.
        named = named.scatter_add(1, previous[:, None], torch.ones_like(previous[:, None]))
    logits, features = zip(*seen, strict=True)
    return Trajectory(torch.stack(logits, 1), torch.stack(features, 1), torch.stack(labels, 1))


def greedy(t: int, logits: Float[Tensor, "b c"], named: Int64[Tensor, "b c"]) -> Int64[Tensor, " b"]:  # noqa: ARG001
    r"""Choose the most probable label, :math:`\hat y_t = \arg\max_y \log \pi_\theta(y \mid \hat y_{<t}, x)`.

    Example:
        >>> greedy(0, torch.tensor([[0.1, 0.7, 0.2]]), torch.zeros(1, 3, dtype=torch.int64))
        tensor([1])
    """
    return logits.argmax(-1)


def sample(generator: torch.Generator | None = None) -> Choose:
    r"""Return a strategy that samples the policy, :math:`\hat y_t \sim \pi_\theta(y \mid \hat y_{<t}, x)`.

    Example:
        >>> choose = sample(torch.Generator().manual_seed(0))
        >>> choose(0, torch.tensor([[0.0, 99.0, 0.0]]), torch.zeros(1, 3, dtype=torch.int64))
        tensor([1])
    """

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        return _draw(full_precision(logits).softmax(-1), generator)

    return choose


def follow_oracle(
    target: Int64[Tensor, "b c"], generator: torch.Generator | None = None, *, end: bool = False
) -> Choose:
    r"""Return a strategy that samples the oracle, :math:`\hat y_t \sim \pi_*(y \mid \hat y_{<t}, x, \mathcal{Y}_t)`.

    Args:
        target: Counts (B, C).
        generator: Random number generator; PyTorch's default if None.
        end: Whether the policy has an END class, with label C. It is emitted once nothing else is free.

    Without END, a random label is emitted once nothing is free: such a step contributes nothing to a loss.

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


def sample_order(target: Int64[Tensor, "b c"], generator: torch.Generator | None = None) -> Choose:
    r"""Return a strategy that emits the target's labels in an order drawn from the policy.

    .. math:: q(y \mid \hat y_{<t}) \propto \pi_\theta(y \mid \hat y_{<t}, x)\ [y \in \mathcal{Y}_t]

    This is the policy restricted to the remaining labels, the proposal of `losses.marginal_estimate_loss`. Once none
    remains, the first class is emitted.

    Args:
        target: Counts (B, C). The policy may have END as one more class, which is not emitted.
        generator: Random number generator; PyTorch's default if None.

    Example:
        >>> choose = sample_order(torch.tensor([[0, 2, 0]]))
        >>> choose(1, torch.tensor([[9.0, 0.0, 9.0]]), torch.tensor([[0, 1, 0]]))
        tensor([1])
    """
    check_counts("target", target)

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        free = difference(target, named[:, : target.shape[1]]) > 0
        scores = logits[:, : target.shape[1]].double()
        # Relative to the most probable remaining label, whose weight becomes 1 and cannot underflow.
        scores = scores.masked_fill(~free, -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num(1.0) * free
        weights[:, 0] += ~free.any(-1)
        return _draw(weights, generator)

    return choose


def forced(labels: Int64[Tensor, "b t"]) -> Choose:
    """Return a strategy that emits the given labels: teacher forcing, or replaying a trajectory.

    Args:
        labels: Labels (B, T). At padding (negative labels) an arbitrary label is emitted.

    Example:
        >>> choose = forced(torch.tensor([[2, 0]]))
        >>> choose(1, torch.zeros(1, 3), torch.tensor([[0, 0, 1]]))
        tensor([0])
    """
    check_integers("labels", labels, "(B, T)", like=(None, None))

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        check(t < labels.shape[1], "labels", f"at least {t + 1} labels long for a rollout of {t + 1} steps", labels)
        if t == 0:
            check_labels("labels", labels, logits.shape[1], like=(logits.shape[0], None), padding=True)
        return labels[:, t].clamp(min=0)

    return choose


def until_size(size: Int64[Tensor, " b"], steps: int) -> Bool[Tensor, "b t"]:
    """Return a mask of the first `size` labels, for multisets of known size.

    Example:
        >>> until_size(torch.tensor([2, 0]), steps=3)
        tensor([[ True,  True, False],
                [False, False, False]])
    """
    check(steps >= 1, "steps", "at least 1", steps)
    check_integers("size", size, "(B,)", like=(None,))
    return torch.arange(steps, device=size.device) < size[:, None]


def until_stop(stop_logits: Float[Tensor, "b t"], *, threshold: float = 0.5) -> Bool[Tensor, "b t"]:
    r"""Return a mask of the labels before the termination policy :math:`\pi_s` first stops (section 4).

    Args:
        stop_logits: Scores (B, T) of a stop head; slot t decides whether t labels are enough.
        threshold: Stop when the probability exceeds this value.

    Example:
        >>> until_stop(torch.tensor([[-2.0, -1.0, 3.0, -1.0], [5.0, 0.0, 0.0, 0.0]]))
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check_float("stop_logits", stop_logits, "(B, T)", like=(None, None))
    check(0 < threshold < 1, "threshold", "between 0 and 1", threshold)
    return _before_first(stop_logits > math.log(threshold / (1 - threshold)))


def until_end(labels: Int64[Tensor, "b t"], end: int) -> Bool[Tensor, "b t"]:
    """Return a mask of the labels before the first END (Appendix E, "Special Class").

    Example:
        >>> until_end(torch.tensor([[0, 2, 3, 1], [3, 3, 3, 3]]), end=3)
        tensor([[ True,  True, False, False],
                [False, False, False, False]])
    """
    check_integers("labels", labels, "(B, T)", like=(None, None))
    return _before_first(labels == end)


def append_end(sequence: Int64[Tensor, "b t"], end: int) -> Int64[Tensor, "b t+1"]:
    """Append END to each sequence, so that the sequence loss trains the policy to emit it.

    Example:
        >>> append_end(torch.tensor([[2, 0], [1, -1]]), end=3)
        tensor([[ 2,  0,  3],
                [ 1,  3, -1]])
    """
    check_integers("sequence", sequence, "(B, T)", like=(None, None))
    size = (sequence >= 0).sum(-1, keepdim=True)
    return pad(sequence, (0, 1), value=-1).scatter(1, size, end)


def _before_first(ends: Tensor) -> Tensor:
    keep = ends.cumsum(-1) == 0
    keep[:, -1] = False
    return keep


def _draw(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.multinomial(weights, 1, generator=generator).squeeze(-1)
