"""The oracle of lists equals brute force over all orders."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import list_reference as reference
import pytest
import torch
from hypothesis import given
from list_reference import END, Lists, lists
from strategies import problems

from torchmultiset import multiset
from torchmultiset.lm import LabelVocabulary, list_loss, list_oracle, order_and_content
from torchmultiset.losses import multiset_loss
from torchmultiset.oracle import oracle as label_oracle

SIZE = 6
"""Number of tokens: end, separator, three letters, and a letter that is its own separator."""


def tensors(problem: Lists):
    """Vocabulary, tokens padded with -100, and counts."""
    vocabulary = LabelVocabulary([*map(str, problem.vocabulary)], problem.vocabulary, END)
    longest = max(map(len, problem.rows))
    tokens = torch.tensor([row + [-100] * (longest - len(row)) for row in problem.rows], dtype=torch.int64)
    target = vocabulary.counts([[*map(str, target.elements())] for target in problem.targets])
    return vocabulary, tokens.reshape(len(problem.rows), longest), target


def arguments(problem: Lists):
    vocabulary, tokens, target = tensors(problem)
    return tokens, vocabulary.read(tokens).starts, target, vocabulary.tokens


@given(lists())
def test_the_oracle_is_the_mean_over_all_orders_of_the_missing_labels(problem):
    found = list_oracle(*arguments(problem), end=END)
    for b, (target, row) in enumerate(zip(problem.targets, problem.rows, strict=True)):
        for t in range(len(row)):
            shares = torch.zeros(SIZE, dtype=torch.float64)
            weights = found.weights[b, t].double()
            shares.scatter_add_(0, found.tokens[b, t], weights / weights.sum().clamp(min=1))
            wanted = reference.next_token(target, row[:t], problem.vocabulary)
            assert {token: share for token, share in enumerate(shares.tolist()) if share} == pytest.approx(wanted)
            assert shares.sum().item() == pytest.approx(1 if wanted else 0)
        assert not found.weights[b, len(row) :].any()


@given(lists())
def test_loss_order_and_content_equal_the_reference(problem):
    inputs = arguments(problem)
    tokens = inputs[0]
    logits = torch.randn(*tokens.shape, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses = list_loss(logits, *inputs, end=END, reduction="none")
    order, content = order_and_content(logits, *inputs, end=END)
    log_p = logits.log_softmax(-1).tolist()
    for b, (target, row) in enumerate(zip(problem.targets, problem.rows, strict=True)):
        wanted = reference.loss(log_p[b][: len(row)], target, row, problem.vocabulary)
        assert losses[b].item() == pytest.approx(wanted)
        assert order[b].item() == pytest.approx(reference.entropy(target, row, problem.vocabulary), abs=1e-12)
    torch.testing.assert_close(order + content, losses)
    assert (content > -1e-12).all()


@given(lists())
def test_a_batch_equals_its_rows(problem):
    inputs = arguments(problem)
    logits = torch.randn(*inputs[0].shape, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = list_loss(logits, *inputs, end=END, reduction="none")
    for b in range(len(together)):
        alone = [x[b : b + 1] for x in (logits, *inputs[:3])]
        torch.testing.assert_close(list_loss(*alone, inputs[3], end=END), together[b])


@given(lists())
def test_the_gradient_is_policy_minus_oracle(problem):
    inputs = arguments(problem)
    logits = torch.randn(*inputs[0].shape, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    list_loss(logits, *inputs, end=END, reduction="sum").backward()
    found = list_oracle(*inputs, end=END)
    weights = found.weights.double()
    shares = torch.zeros_like(logits).scatter_add(2, found.tokens, weights / weights.sum(-1, keepdim=True).clamp(min=1))
    wanted = (logits.softmax(-1) - shares) * weights.any(-1, keepdim=True)
    torch.testing.assert_close(logits.grad, wanted.detach())


def test_gradients_pass_gradcheck_with_and_without_padding():
    labels = torch.tensor([[2, 3, 1], [2, 4, 1]])
    starts = torch.tensor([[True, False, False, True]])
    logits = torch.randn(1, 4, SIZE, dtype=torch.float64, requires_grad=True)
    for tokens in ([[2, 4, 1, 2]], [[2, 4, 1, -100]]):
        fixed = (torch.tensor(tokens), starts, torch.tensor([[2, 1]]), labels)
        assert torch.autograd.gradcheck(lambda x, fixed=fixed: list_loss(x, *fixed, end=END), logits)


@given(problems(end=True))
def test_with_labels_of_one_token_the_loss_is_the_multiset_loss_with_end(problem):
    labels = torch.arange(problem.num_classes)[:, None]
    starts = torch.ones_like(problem.labels, dtype=torch.bool)
    ours = list_loss(
        problem.logits, problem.labels, starts, problem.target, labels, end=problem.num_classes, reduction="none"
    )
    wanted = multiset_loss(problem.logits, problem.labels, problem.target, end=True, reduction="none")
    torch.testing.assert_close(ours, wanted)


def test_the_product_over_the_tokens_of_a_label_is_the_oracle_over_labels():
    """Definition 2: the probability of a missing label is its share of all missing labels."""
    vocabulary = [(2, 3, 1), (2, 3, 3, 1), (2, 4, 1), (3, 1)]
    target = torch.tensor([[3, 1, 2, 0]])
    labels = LabelVocabulary([*map(str, vocabulary)], vocabulary, END)
    for number, piece in enumerate(vocabulary):
        tokens = torch.tensor([piece])
        found = list_oracle(tokens, labels.read(tokens).starts, target, labels.tokens, end=END)
        weights = found.weights.double()
        chosen = (weights * (found.tokens == tokens[..., None])).sum(-1) / weights.sum(-1).clamp(min=1)
        assert chosen.prod().item() == pytest.approx(label_oracle(target)[0, number].item())


def test_averaged_over_all_orders_the_order_part_is_the_log_number_of_orders():
    vocabulary = [(2, 1), (2, 3, 1), (4, 1)]
    labels = LabelVocabulary([*map(str, vocabulary)], vocabulary, END)
    target = Counter({vocabulary[0]: 2, vocabulary[1]: 2, vocabulary[2]: 1})
    rows = [(*sum(order, ()), END) for order in permutations(target.elements())]
    tokens = torch.tensor(rows)
    counts = multiset.from_labels([[0, 0, 1, 1, 2]] * len(rows), 3)
    order, _ = order_and_content(
        torch.zeros(*tokens.shape, SIZE), tokens, labels.read(tokens).starts, counts, labels.tokens, end=END
    )
    assert order.mean().item() == pytest.approx(math.log(math.factorial(5) / (2 * 2)), rel=1e-5)


def test_averaged_over_all_orders_loss_and_gradient_equal_cross_entropy():
    """For a single order they differ, because cross-entropy depends on the sampled order."""
    vocabulary = [(2, 1), (2, 3, 1), (4, 1)]
    labels = LabelVocabulary([*map(str, vocabulary)], vocabulary, END)
    rows = [(*sum(order, ()), END) for order in permutations([vocabulary[0], *vocabulary])]
    tokens, counts = torch.tensor(rows), torch.tensor([[2, 1, 1]]).expand(len(rows), -1)
    # Logits that depend on all previous tokens, like those of a model.
    table = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logits = table[tokens].cumsum(1).roll(1, 1) + table[0]
    ours = list_loss(logits, tokens, labels.read(tokens).starts, counts, labels.tokens, end=END)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum") / len(rows)
    # The roll moves the sum over the list to the first step, which is the same in any order.
    torch.testing.assert_close(ours, plain)
    gradients = [torch.autograd.grad(loss, table, retain_graph=True)[0] for loss in (ours, plain)]
    torch.testing.assert_close(*gradients)


def test_after_a_complete_list_only_the_end_follows_and_then_nothing():
    vocabulary = [(2, 1), (2, 3, 1)]
    labels = LabelVocabulary([*map(str, vocabulary)], vocabulary, END)
    for order in permutations([*vocabulary, vocabulary[0]]):
        tokens = torch.tensor([(*sum(order, ()), END, END)])
        found = list_oracle(tokens, labels.read(tokens).starts, torch.tensor([[2, 1]]), labels.tokens, end=END)
        last = found.weights[0, -2]
        assert (found.tokens[0, -2][last > 0].tolist(), last.sum().item()) == ([END], 1)
        assert not found.weights[0, -1].any()


def test_a_label_that_is_not_missing_has_no_loss_inside_and_is_not_removed():
    labels = torch.tensor([[2, 3, 1], [2, 4, 1], [3, 4, 1]])
    starts = torch.tensor([[True, False, False] * 3])
    tokens = torch.tensor([[2, 4, 1, 3, 4, 1, 2, 3, 1]])  # the first two labels are mistakes
    found = list_oracle(tokens, starts, torch.tensor([[1, 0, 0]]), labels, end=END)
    # The first mistake shares its first token with a missing label; only its second token is penalised.
    assert found.weights.any(-1).tolist() == [[True, True, False, True, False, False, True, True, True]]
    only = found.tokens.gather(2, found.weights.argmax(-1, keepdim=True))[0, :, 0]
    assert only[found.weights.any(-1)[0]].tolist() == [2, 3, 2, 2, 3, 1]


def test_extreme_and_half_precision_logits_stay_finite():
    labels, tokens = torch.tensor([[2, 1]]), torch.tensor([[2, 1, 0]])
    starts = torch.tensor([[True, False, True]])
    right = torch.full((1, 3, SIZE), -1e4).scatter(2, tokens[..., None], 1e4)
    for dtype in (torch.float32, torch.bfloat16):
        logits = right.to(dtype, copy=True).requires_grad_()
        loss = list_loss(logits, tokens, starts, torch.tensor([[1]]), labels, end=END)
        loss.backward()
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(0, abs=1e-6)
        assert logits.grad.isfinite().all()


def test_a_batch_without_any_step_of_a_list_has_loss_zero():
    tokens = torch.full((2, 3), -100)
    logits = torch.randn(2, 3, SIZE, requires_grad=True)
    loss = list_loss(logits, tokens, tokens > 0, torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[2, 1]]), end=END)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(1, 4, SIZE)}, r"logits must be .* \(1, 3, any\)"),
        ({"starts": torch.ones(1, 3)}, "starts must be a boolean tensor"),
        ({"target": torch.tensor([[-1]])}, "target must hold non-negative counts"),
        ({"labels": torch.tensor([[2, 1], [3, 1]])}, r"labels must be \(C, L\) with a row for each class"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.int64)}, "tokens must be|logits must be"),
        ({"reduction": "max"}, "reduction must be one of"),
    ],
)
def test_invalid_arguments_are_refused_with_their_names(without_shape_hook, change, message):
    right = {
        "logits": torch.zeros(1, 3, SIZE),
        "tokens": torch.tensor([[2, 1, 0]]),
        "starts": torch.tensor([[True, False, True]]),
        "target": torch.tensor([[1]]),
        "labels": torch.tensor([[2, 1]]),
    }
    with pytest.raises(ValueError, match=message):
        list_loss(**{**right, **change}, end=END)
