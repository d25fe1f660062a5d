"""Sentences about scores: differences within chance, and an exact match near 0."""

from __future__ import annotations

import torch

from torchmultiset.viz.verdict import example_scores, explain_exact_match, verdict

A, B = [1, 0], [0, 1]


def counts(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def test_the_score_of_an_example_is_the_mean_of_exact_match_and_f1():
    scores = example_scores(counts(A, [1, 1], B), counts(A, A, A))
    torch.testing.assert_close(scores, torch.tensor([1.0, 1 / 3, 0.0], dtype=torch.float64))


def test_a_model_better_than_every_baseline_has_no_verdict():
    target = counts(*[A, B] * 20)
    assert verdict(target, target, {"ridge": counts(*[A] * 40), "majority": counts(*[B] * 40)}) == ""


def test_a_difference_within_its_interval_is_attributed_to_chance():
    target = counts(*[A] * 40)
    # The model is right where ridge is wrong three times, and wrong once where ridge is right.
    predictions = counts(*[A] * 33, *[B] * 7)
    ridge = counts(*[B] * 3, *[A] * 29, *[B] * 7, A)
    assert verdict(predictions, target, {"ridge": ridge}) == (
        "This model scores 0.825 and the ridge baseline 0.750 (mean of exact match and F1), a difference that can be"
        " chance on 40 examples."
    )
    clear = counts(*[B] * 12, *[A] * 20, *[B] * 8)
    assert verdict(predictions, target, {"ridge": clear}) == ""


def test_the_verdict_is_about_the_best_baseline_that_is_not_beaten():
    target = counts(*[A] * 10)
    predictions, low, high = (counts(*[A] * right, *[B] * (10 - right)) for right in (5, 4, 7))
    sentence = "The ridge baseline scores 0.700, this model only 0.500 (mean of exact match and F1)."
    assert verdict(predictions, target, {"majority": low, "ridge": high}) == sentence


def test_an_exact_match_near_0_is_explained_with_the_size_and_the_count_error():
    target = counts(*[[10, 2]] * 20)
    near = counts(*[[9, 2]] * 20)
    text = explain_exact_match(near, target)
    assert "every label of an example to be right, 12.0 on average" in text
    assert "off by 0.50 per class" in text
    assert explain_exact_match(target, target) == ""
