from __future__ import annotations

import itertools
import math
import re

import pytest
import reference
import torch

from torchmultiset.losses import power_loss

EVERY = [
    *itertools.combinations_with_replacement(range(3), 1),
    *sorted(itertools.combinations_with_replacement(range(3), 2), key=lambda pair: pair[::-1]),
]
"""All multisets of one or two of three labels, in the order of their indices."""
TARGET = torch.tensor([[1, 0, 0], [0, 2, 0], [1, 0, 1]])
PLACES = [EVERY.index(labels) for labels in [(0,), (1, 1), (0, 2)]]


def scores(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(3, len(EVERY), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


def loss(logits: torch.Tensor, **options: str) -> torch.Tensor:
    return power_loss(logits, TARGET, max_size=2, min_size=1, **options)


def test_the_loss_is_the_cross_entropy_of_a_classifier_over_all_multisets():
    wanted = [-reference.log_softmax(row)[place] for row, place in zip(scores().tolist(), PLACES, strict=True)]
    assert loss(scores(), reduction="none").tolist() == pytest.approx(wanted, rel=1e-12)
    assert loss(scores(), reduction="sum").item() == pytest.approx(math.fsum(wanted), rel=1e-12)
    assert loss(scores()).item() == pytest.approx(math.fsum(wanted) / 3, rel=1e-12)


def test_the_likelihoods_of_all_multisets_sum_to_one():
    every = reference.to_counts([reference.Counter(labels) for labels in [(), *EVERY]], 3)
    logits = torch.randn(1, len(every), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    each = power_loss(logits.expand(len(every), -1), every, max_size=2, reduction="none")
    assert each.neg().exp().sum().item() == pytest.approx(1, rel=1e-12)


def test_a_batch_equals_its_examples():
    singles = [power_loss(scores()[b : b + 1], TARGET[b : b + 1], max_size=2, min_size=1).item() for b in range(3)]
    assert loss(scores(), reduction="none").tolist() == pytest.approx(singles, rel=1e-12)
    none = power_loss(scores()[:0], TARGET[:0], max_size=2, min_size=1, reduction="none")
    assert none.shape == (0,)


def test_gradcheck():
    assert torch.autograd.gradcheck(lambda logits: loss(logits, reduction="none"), scores().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    found = loss(scores(dtype))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(scores(dtype).float()))


def test_an_excluded_multiset_gives_infinity_only_if_it_is_the_target():
    logits = scores()
    logits[:, PLACES[0]] = -torch.inf
    logits.requires_grad_()
    each = loss(logits, reduction="none")
    assert each[0] == torch.inf
    assert torch.isfinite(each[1:]).all()
    (gradient,) = torch.autograd.grad(each[1:].sum(), logits)
    assert torch.isfinite(gradient).all()


def test_extreme_scores_have_finite_values_and_gradients():
    logits = (1e30 * scores(torch.float32).sign()).requires_grad_()
    found = loss(logits)
    found.backward()
    assert torch.isfinite(found)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: power_loss(scores(), TARGET, max_size=2),
            "logits must be a floating-point tensor of shape (B, how_many(3, 2, min_size=0)) = (3, 10), "
            "but is a float64 tensor of shape (3, 9)",
        ),
        (lambda: loss(scores()[:2]), "logits must be"),
        (lambda: loss(scores().long()), "logits must be"),
        (lambda: loss(scores(), reduction="max"), "reduction must be"),
        (
            lambda: power_loss(scores(), 2 * TARGET, max_size=2, min_size=1),
            "target must hold multisets of 1 to 2 labels, but one has 4",
        ),
        (lambda: power_loss(scores(), -TARGET, max_size=2, min_size=1), "target must hold non-negative counts"),
        (lambda: power_loss(scores(), TARGET.float(), max_size=2, min_size=1), "target must be an int64"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
