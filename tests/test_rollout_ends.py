from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from torchmultiset.multiset import cardinality, from_labels
from torchmultiset.rollout import append_end, until_end, until_size, until_stop


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 5))
def test_until_size_keeps_the_first_labels(sizes, steps):
    kept = until_size(torch.tensor(sizes), steps)
    assert kept.tolist() == [[True] * min(n, steps) + [False] * (steps - min(n, steps)) for n in sizes]


@given(
    st.integers(1, 5).flatmap(
        lambda steps: st.lists(
            st.lists(st.sampled_from([-3.0, -1.0, -0.1, 0.1, 1.0, 3.0]), min_size=steps, max_size=steps),
            min_size=1,
            max_size=4,
        )
    ),
    st.sampled_from([0.2, 0.5, 0.9]),
)
def test_until_stop_equals_the_loop(rows, threshold):
    kept = until_stop(torch.tensor(rows), threshold=threshold)
    assert kept.tolist() == [reference.kept_until_stop(row, threshold) for row in rows]


def test_a_probability_of_one_half_does_not_stop():
    assert until_stop(torch.tensor([[0.0, 0.0]])).tolist() == [[True, False]]


@pytest.mark.parametrize("logit", [1e4, 1e30, torch.inf])
def test_extreme_stop_logits_decide_as_moderate_ones(logit):
    assert until_stop(torch.tensor([[-logit, logit, -logit]])).tolist() == [[True, False, False]]


@given(problems(end=True))
def test_until_end_equals_the_loop(problem):
    kept = until_end(problem.labels, problem.num_classes)
    wanted = [reference.kept_until_end(row, problem.num_classes) for row in problem.trajectories]
    assert kept.tolist() == wanted


@given(problems(end=True))
def test_end_is_never_kept(problem):
    kept = until_end(problem.labels, problem.num_classes)
    counts = from_labels(problem.labels, problem.num_classes, where=kept)
    assert torch.equal(cardinality(counts), kept.sum(-1))


@pytest.mark.parametrize("stop", ["head", "END"])
def test_the_empty_multiset_can_be_predicted(stop):
    labels = torch.tensor([[3, 0, 1]])
    kept = until_end(labels, 3) if stop == "END" else until_stop(torch.tensor([[1.0, -1.0, -1.0]]))
    assert from_labels(labels, 3, where=kept).tolist() == [[0, 0, 0]]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4))
def test_append_end_after_the_last_label(rows):
    longest = max(len(row) for row in rows)
    sequence = torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.int64)
    sequence = sequence.reshape(len(rows), longest)
    assert append_end(sequence, 5).tolist() == [row + [5] + [-1] * (longest - len(row)) for row in rows]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4))
def test_until_end_inverts_append_end(rows):
    counts = from_labels(rows, 5)
    longest = max(len(row) for row in rows)
    sequence = torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.int64)
    ended = append_end(sequence.reshape(len(rows), longest), 5)
    padded = torch.where(ended < 0, 0, ended)  # labels after END do not matter
    assert torch.equal(from_labels(padded, 5, where=until_end(padded, 5)), counts)
