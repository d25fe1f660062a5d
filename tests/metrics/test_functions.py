from __future__ import annotations

import math
from collections import Counter

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import to_counts
from strategies import NUM_CLASSES, logits, multisets

from torchmultiset.metrics import (
    class_f1,
    count_mae,
    count_rmse,
    exact_match,
    f1,
    precision,
    recall,
    step_entropy,
)
from torchmultiset.multiset import from_labels

PER_EXAMPLE = [exact_match, precision, recall, f1]


@st.composite
def predictions(draw: st.DrawFn) -> tuple[int, list[Counter[int]], list[Counter[int]]]:
    """Number of classes, predicted multisets and true multisets; some predictions are correct."""
    num_classes = draw(NUM_CLASSES)
    target = draw(st.lists(multisets(num_classes), min_size=1, max_size=5))
    predicted = [draw(st.one_of(st.just(one), multisets(num_classes))) for one in target]
    return num_classes, predicted, target


@pytest.mark.parametrize("metric", PER_EXAMPLE, ids=lambda metric: metric.__name__)
@given(drawn=predictions())
def test_metrics_equal_their_definitions_in_appendix_a(metric, drawn):
    num_classes, predicted, target = drawn
    found = metric(to_counts(predicted, num_classes), to_counts(target, num_classes))
    assert found.shape == (len(target),)
    assert found.is_floating_point()
    by_definition = getattr(reference, metric.__name__)
    wanted = [by_definition(a, b) for a, b in zip(predicted, target, strict=True)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


@given(predictions())
def test_the_two_forms_of_appendix_a_agree(drawn):
    """Definitions by enumeration, as in the reference, and by multiplicities."""
    num_classes, predicted, target = drawn
    for a, b in zip(predicted, target, strict=True):
        if a and b:
            extra = sum(max(a[c] - b[c], 0) for c in range(num_classes))
            missing = sum(max(b[c] - a[c], 0) for c in range(num_classes))
            assert reference.precision(a, b) == pytest.approx(1 - extra / a.total())
            assert reference.recall(a, b) == pytest.approx(1 - missing / b.total())


def test_the_example_of_appendix_a():
    """{a, a, b} predicted for {a, b}: the second a is not in the target."""
    counts, target = from_labels([[0, 0, 1]], 2), from_labels([[0, 1]], 2)
    assert precision(counts, target).tolist() == pytest.approx([2 / 3])
    assert recall(counts, target).tolist() == [1]
    assert f1(counts, target).tolist() == pytest.approx([0.8])
    assert exact_match(counts, target).tolist() == [0]


@pytest.mark.parametrize("metric", PER_EXAMPLE, ids=lambda metric: metric.__name__)
def test_two_empty_multisets_score_one_and_a_single_one_zero(metric):
    """In the order: both empty, empty prediction, empty target."""
    counts, target = from_labels([[], [], [0]], 2), from_labels([[], [1], []], 2)
    assert metric(counts, target).tolist() == [1, 0, 0]


@given(predictions())
def test_f1_is_at_least_exact_match(drawn):
    num_classes, predicted, target = drawn
    counts, true = to_counts(predicted, num_classes), to_counts(target, num_classes)
    assert (f1(counts, true) >= exact_match(counts, true)).all()
    assert f1(counts, true).mean() >= exact_match(counts, true).mean()


@given(predictions())
def test_predicting_the_target_scores_one(drawn):
    num_classes, _, target = drawn
    counts = to_counts(target, num_classes)
    assert all((metric(counts, counts) == 1).all() for metric in PER_EXAMPLE)


@given(predictions())
def test_exchanging_prediction_and_target_exchanges_precision_and_recall(drawn):
    num_classes, predicted, target = drawn
    a, b = to_counts(predicted, num_classes), to_counts(target, num_classes)
    assert torch.equal(precision(a, b), recall(b, a))
    assert f1(a, b).tolist() == pytest.approx(f1(b, a).tolist())


@given(predictions())
def test_class_f1_equals_its_definition(drawn):
    num_classes, predicted, target = drawn
    found = class_f1(to_counts(predicted, num_classes), to_counts(target, num_classes))
    assert found.shape == ()
    assert found.item() == pytest.approx(reference.class_f1(predicted, target), abs=1e-6, nan_ok=True)


def test_class_f1_by_hand():
    """Class 0: counts (2, 0) of (1, 1); class 1: (1, 1) of (1, 2); class 2 is predicted but never true."""
    counts, target = torch.tensor([[2, 1, 3], [0, 1, 0]]), torch.tensor([[1, 1, 0], [1, 2, 0]])
    p0, r0 = (1 / 2 + 0) / 2, (1 + 0) / 2
    p1, r1 = 1.0, (1 + 1 / 2) / 2
    wanted = (2 * p0 * r0 / (p0 + r0) + 2 * p1 * r1 / (p1 + r1)) / 2
    assert class_f1(counts, target).item() == pytest.approx(wanted)


def test_class_f1_without_labels_is_nan():
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    assert class_f1(nothing, nothing).isnan()
    assert class_f1(torch.ones_like(nothing), nothing).isnan()


def test_class_f1_can_be_below_exact_match():
    """Rare classes have the same weight, which explains Table 3 of the paper (EM .221, F1 .085)."""
    target = from_labels([[0]] * 8 + [[1], [2]], 3)
    counts = from_labels([[0]] * 10, 3)
    assert class_f1(counts, target) < exact_match(counts, target).mean()


@given(predictions())
def test_count_mae_equals_its_definition(drawn):
    num_classes, predicted, target = drawn
    found = count_mae(to_counts(predicted, num_classes), to_counts(target, num_classes))
    wanted = [reference.count_mae(a, b, num_classes) for a, b in zip(predicted, target, strict=True)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


FORMS = [{"nonzero": nonzero, "relative": relative} for nonzero in (False, True) for relative in (False, True)]


@pytest.mark.parametrize("form", FORMS)
@given(drawn=predictions())
def test_count_rmse_equals_its_definition(form, drawn):
    num_classes, predicted, target = drawn
    found = count_rmse(to_counts(predicted, num_classes), to_counts(target, num_classes), **form)
    assert found.shape == ()
    wanted = reference.count_rmse(predicted, target, num_classes, **form)
    assert found.item() == pytest.approx(wanted, abs=1e-6, nan_ok=True)


def test_count_rmse_by_hand():
    """Class 0: errors 1 and -2 of true counts 1 and 3; class 1: error 4 of 0, and 0 of 0."""
    counts, target = torch.tensor([[2, 4], [1, 0]]), torch.tensor([[1, 0], [3, 0]])
    found = [count_rmse(counts, target, **form).item() for form in FORMS]
    wanted = [
        (math.sqrt((1 + 4) / 2) + math.sqrt(16 / 2)) / 2,
        (math.sqrt((1 / 2 + 4 / 4) / 2) + math.sqrt(16 / 2)) / 2,
        math.sqrt((1 + 4) / 2),
        math.sqrt((1 / 2 + 4 / 4) / 2),
    ]
    assert found == pytest.approx(wanted)
    assert count_mae(counts, target).tolist() == [2.5, 1.0]


def test_count_errors_of_the_target_are_zero_or_nan_without_labels():
    target = torch.tensor([[2, 0], [1, 1]])
    assert [count_rmse(target, target, **form).item() for form in FORMS] == [0, 0, 0, 0]
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    assert [count_rmse(nothing, nothing, **form).isnan().item() for form in FORMS] == [False, False, True, True]


@given(st.data())
def test_step_entropy_equals_its_definition(data):
    batch, steps, num_classes = (data.draw(st.integers(1, n)) for n in (3, 4, 5))
    scores = data.draw(logits(batch, steps, num_classes))
    found = step_entropy(scores)
    wanted = [[reference.entropy(reference.softmax(row)) for row in rows] for rows in scores.tolist()]
    assert found.shape == (batch, steps)
    torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_step_entropy_accepts_any_leading_shape():
    assert step_entropy(torch.zeros(4)).item() == pytest.approx(math.log(4))
    assert step_entropy(torch.zeros(2, 3, 5, 4)).shape == (2, 3, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_entropy_of_extreme_logits_is_exact(dtype):
    scores = torch.tensor([[1e30, -1e30], [1e4, 1e4], [-torch.inf, 0.0]], dtype=dtype)
    assert step_entropy(scores).tolist() == pytest.approx([0.0, math.log(2), 0.0], abs=1e-6)
