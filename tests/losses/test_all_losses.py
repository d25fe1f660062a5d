"""Properties of all losses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from torchmultiset.losses import (
    _imitation,
    cell_count_loss,
    count_regression_loss,
    count_table_loss,
    distribution_matching_loss,
    hungarian_loss,
    multiset_loss,
    one_step_loss,
    poisson_count_loss,
    reinforce_loss,
    sequence_loss,
    stop_loss,
)
from torchmultiset.multiset import from_labels

C, T = 5, 5
UNUSED = 4
"""A class that occurs in no target and no trajectory."""


class Batch(NamedTuple):
    """Multisets: with repeats, empty, complete before the last step, and larger than the number of steps."""

    target: Tensor
    labels: Tensor
    with_end: Tensor
    """Like `labels`, with END (label C) at some correct and some wrong steps."""
    sequence: Tensor

    def example(self, b: int) -> Batch:
        return Batch(*(field[b : b + 1] for field in self))


def batch(multisets: list[list[int]]) -> Batch:
    return Batch(
        from_labels(multisets, C),
        torch.tensor([[0, 1, 2, 0, 3], [3, 3, 0, 1, 2], [2, 2, 0, 1, 3], [1, 0, 1, 1, 1]]),
        torch.tensor([[0, 5, 1, 0, 3], [5, 3, 0, 1, 2], [5, 2, 0, 5, 3], [1, 0, 1, 1, 5]]),
        torch.tensor([[0, 0, 1, 3, -1], [-1, -1, -1, -1, -1], [2, -1, -1, -1, -1], [1, 1, 1, 1, 1]]),
    )


MULTISETS = [[0, 0, 1, 3], [], [2], [1, 1, 1, 1, 1, 1]]
BATCH = batch(MULTISETS)
EMPTY = MULTISETS.index([])
B = len(MULTISETS)


class Case(NamedTuple):
    """A loss as a function of scores, and of further real inputs."""

    call: Callable[..., Tensor]
    """(scores, *others, batch, reduction) -> loss"""
    scores: tuple[int, ...]
    """Shape of the scores of one example."""
    others: tuple[tuple[int, ...], ...] = ()
    """Shapes of the other real inputs of one example."""
    scores_are: str = "logits"
    """Kind of scores, such as logits of a softmax over classes, or counts."""
    unbounded: bool = True
    """Whether the loss is infinite if a class of the target is excluded."""
    reinforces: bool = False
    """Whether the labels are samples of the policy and the baseline is a constant in gradients."""

    def inputs(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = (self.scores, *self.others)
        return [torch.randn(B, *shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]

    def __call__(self, *inputs: Tensor, batch: Batch = BATCH, **options: str) -> Tensor:
        return self.call(*inputs, batch, **options)


def multiset_case(divergence: str, over_steps: str, end: bool, few_classes: int) -> Case:
    def call(logits: Tensor, batch: Batch, **options: str) -> Tensor:
        labels = batch.with_end if end else batch.labels
        with patch.object(_imitation, "FEW_CLASSES", few_classes):
            return multiset_loss(
                logits, labels, batch.target, divergence=divergence, over_steps=over_steps, end=end, **options
            )

    return Case(call, (T, C + end), unbounded=divergence == "kl")


def matching_case(divergence: str | float) -> Case:
    return Case(
        lambda logits, batch, **options: distribution_matching_loss(
            logits, batch.target, divergence=divergence, **options
        ),
        (T, C),
        unbounded=divergence == "kl",
    )


CASES = {
    f"multiset {divergence} {over_steps}{' END' * end}{many}": multiset_case(divergence, over_steps, end, few)
    for divergence in ("kl", "js", "tv")
    for over_steps in ("sum", "mean")
    for end in (False, True)
    for many, few in (("", C), (" many classes", 0))  # all classes are visited, or those of the target
}
CASES |= {f"matching {divergence}": matching_case(divergence) for divergence in ("kl", "l1", 2.0, 3.5)}
CASES |= {
    "sequence": Case(lambda logits, batch, **options: sequence_loss(logits, batch.sequence, **options), (T, C)),
    "one step": Case(
        lambda logits, size, batch, **options: one_step_loss(logits, size, batch.target, **options),
        (C,),
        ((),),
    ),
    "count regression": Case(
        lambda rates, batch, **options: count_regression_loss(rates, batch.target, **options),
        (C,),
        scores_are="counts",
    ),
    "counts of cells": Case(
        lambda logits, batch, **options: cell_count_loss(logits, batch.target, **options), (7, C + 1)
    ),
    "count table": Case(
        lambda tables, batch, **options: count_table_loss(tables, batch.target, **options), (C, 7), scores_are="tables"
    ),
    "poisson counts": Case(
        lambda log_rates, batch, **options: poisson_count_loss(log_rates, batch.target, **options),
        (C,),
        scores_are="log rates",
    ),
    "poisson counts of known sizes": Case(
        lambda log_rates, batch, **options: poisson_count_loss(log_rates, batch.target, sizes=(0, 6), **options),
        (C,),
        scores_are="log rates",
    ),
    "hungarian": Case(lambda logits, batch, **options: hungarian_loss(logits, batch.target, **options), (6, C + 1)),
    "reinforce": Case(
        lambda logits, batch, **options: reinforce_loss(logits, batch.labels, batch.target, **options),
        (T, C),
        unbounded=False,
        reinforces=True,
    ),
    "reinforce baseline": Case(
        lambda logits, baseline, batch, **options: reinforce_loss(
            logits, batch.labels, batch.target, baseline, **options
        ),
        (T, C),
        ((T,),),
        unbounded=False,
        reinforces=True,
    ),
    "reinforce END": Case(
        lambda logits, batch, **options: reinforce_loss(logits, batch.with_end, batch.target, end=True, **options),
        (T, C + 1),
        unbounded=False,
        reinforces=True,
    ),
    "stop": Case(lambda scores, batch, **options: stop_loss(scores, batch.target, **options), (T,), scores_are="stops"),
}
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
POLICY_CASES = {name: case for name, case in CASES.items() if case.scores_are == "logits"}
every_policy_loss = pytest.mark.parametrize("case", POLICY_CASES.values(), ids=POLICY_CASES)


def gradients(case: Case, inputs: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Losses of the examples, and the gradients of their sum."""
    inputs = [value.clone().requires_grad_() for value in inputs]
    loss = case(*inputs, reduction="none")
    return loss.detach(), torch.autograd.grad(loss.sum(), inputs)


@every_loss
def test_reductions_are_mean_sum_and_none(case):
    inputs = case.inputs()
    each = case(*inputs, reduction="none")
    assert each.shape == (B,)
    torch.testing.assert_close(case(*inputs, reduction="mean"), each.mean())
    torch.testing.assert_close(case(*inputs, reduction="sum"), each.sum())
    assert torch.equal(case(*inputs), case(*inputs, reduction="mean"))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_has_the_dtype_of_the_scores(case, dtype):
    loss, found = gradients(case, case.inputs(dtype))
    assert loss.dtype == dtype
    assert {gradient.dtype for gradient in found} == {dtype}
    exact, wanted = gradients(case, case.inputs())
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_accumulated_in_float32(case, dtype):
    """The loss equals that of the same scores in float32; only the gradient is rounded."""
    inputs = case.inputs(dtype)
    loss, found = gradients(case, inputs)
    exact, wanted = gradients(case, [value.float() for value in inputs])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=1e-6, atol=1e-6)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b.to(dtype))


@every_loss
def test_gradcheck(case):
    scores, *others = case.inputs()
    if not case.reinforces:  # the gradient of a baseline has its own test
        others = [value.requires_grad_() for value in others]
    assert torch.autograd.gradcheck(lambda *inputs: case(*inputs, reduction="none"), (scores.requires_grad_(), *others))


@every_loss
def test_a_batch_equals_its_examples(case):
    inputs = case.inputs()
    together = case(*inputs, reduction="none")
    alone = [case(*(value[b : b + 1] for value in inputs), batch=BATCH.example(b)).item() for b in range(B)]
    assert together.tolist() == pytest.approx(alone, rel=1e-12, abs=1e-12)


@every_loss
def test_an_empty_batch_has_sum_zero(case):
    inputs = [value[:0] for value in case.inputs()]
    empty = Batch(*(field[:0] for field in BATCH))
    assert case(*inputs, batch=empty, reduction="sum") == 0
    assert case(*inputs, batch=empty, reduction="none").shape == (0,)


@every_loss
def test_the_order_of_the_target_does_not_matter(case):
    inputs, shuffler = case.inputs(), random.Random(0)
    before = case(*inputs, reduction="none")
    for _ in range(3):
        shuffled = [shuffler.sample(multiset, len(multiset)) for multiset in MULTISETS]
        assert torch.equal(case(*inputs, batch=batch(shuffled), reduction="none"), before)


@every_loss
def test_a_permutation_of_the_classes_does_not_matter(case):
    """The same permutation is applied to scores, targets and labels; END stays the last."""
    order = torch.tensor([3, 0, 4, 1, 2, C])  # class c of the renamed problem is class order[c]
    new_name = order.argsort()
    renamed = Batch(
        BATCH.target[:, order[:C]],
        new_name[BATCH.labels],
        new_name[BATCH.with_end],
        torch.where(BATCH.sequence < 0, -1, new_name[BATCH.sequence]),
    )
    scores, *others = case.inputs()
    if case.scores_are == "tables":
        permuted = scores[:, order[:C]]
    else:
        permuted = scores if case.scores_are == "stops" else scores[..., order[: scores.shape[-1]]]
    torch.testing.assert_close(
        case(permuted, *others, batch=renamed, reduction="none"), case(scores, *others, reduction="none")
    )


@every_loss
def test_inputs_are_not_modified(case):
    inputs = case.inputs()
    before = [value.clone() for value in [*inputs, *BATCH]]
    case(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, [*inputs, *BATCH], strict=True))


@every_policy_loss
def test_a_constant_added_to_the_logits_of_a_step_changes_nothing(case):
    logits, *others = case.inputs()
    shift = 3 * torch.randn(*logits.shape[:-1], 1, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(case(logits + shift, *others), case(logits, *others))


@every_loss
def test_an_empty_target_has_finite_values_and_gradients(case):
    loss, found = gradients(case, case.inputs())
    assert torch.isfinite(loss[EMPTY])
    assert all(torch.isfinite(gradient[EMPTY]).all() for gradient in found)


@pytest.mark.parametrize(
    "name",
    [n for n in CASES if "END" not in n and n.split()[0] in ("multiset", "matching", "sequence", "reinforce")],
)
def test_an_empty_target_has_weight_zero(name):
    loss, found = gradients(CASES[name], CASES[name].inputs())
    assert loss[EMPTY] == 0
    assert all((gradient[EMPTY] == 0).all() for gradient in found)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("extreme", [1e4, 1e30])
def test_extreme_scores_have_finite_values_and_gradients(case, extreme, dtype):
    scores, *others = case.inputs(dtype)
    generator = torch.Generator().manual_seed(3)
    signs = torch.randint(-1, 2, scores.shape, generator=generator).to(dtype)
    # Squares and exponentials must not overflow.
    extreme = {"counts": 1e4, "log rates": 80.0}.get(case.scores_are, extreme)
    for extremes in (signs * extreme, torch.full_like(scores, extreme), torch.full_like(scores, -extreme)):
        loss, found = gradients(case, [extremes, *others])
        assert torch.isfinite(loss).all()
        assert all(torch.isfinite(gradient).all() for gradient in found)


@every_policy_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_correctly_excluded_class_does_not_affect_the_loss(case, dtype):
    """A score of -inf for a class that is never free and never emitted leaves the loss finite and unchanged."""
    scores, *others = case.inputs(dtype)
    without = [*range(UNUSED), *range(UNUSED + 1, scores.shape[-1])]
    masked = scores.clone()
    masked[..., UNUSED] = -torch.inf
    loss, found = gradients(case, [masked, *others])
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(gradient).all() for gradient in found)
    assert (found[0][..., UNUSED] == 0).all()
    # END is label C, which decreases by one if a class is removed
    smaller = BATCH._replace(
        target=BATCH.target[:, :UNUSED],
        with_end=torch.where(BATCH.with_end == C, C - 1, BATCH.with_end),
    )
    torch.testing.assert_close(loss, case(scores[..., without], *others, batch=smaller, reduction="none"))


@every_policy_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_wrongly_excluded_class_gives_infinity_or_the_documented_loss_but_never_nan(case, dtype):
    """The scores of class 3, which only the first target contains and only its last label emits, are -inf."""
    scores, *others = case.inputs(dtype)
    scores[0, ..., 3] = -torch.inf
    if case.reinforces:
        scores[0, -1, 3] = 0.0  # a policy does not emit excluded labels
    loss = case(*[value.requires_grad_() for value in (scores, *others)], reduction="none")
    assert torch.isfinite(loss[1:]).all()
    assert not loss[0].isnan()
    if case.unbounded:
        assert loss[0] == torch.inf
    else:
        assert torch.isfinite(loss[0])
        for gradient in torch.autograd.grad(loss.sum(), [scores, *others]):
            assert torch.isfinite(gradient).all()
