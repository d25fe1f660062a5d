"""Scores of generated lists equal their definitions on multisets of strings."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmultiset.lm import list_scores, split_list

LISTS = st.lists(st.sampled_from(["rye", "Rye", " rye", "milk", "oat  milk", "oat milk"]), max_size=5)


@given(st.lists(st.tuples(LISTS, LISTS), max_size=4), st.booleans(), st.booleans())
def test_scores_equal_those_of_multisets_of_strings(pairs, ignore_case, ignore_spaces):
    def multiset(labels):
        lowered = [label.lower() if ignore_case else label for label in labels]
        return Counter(" ".join(label.split()) if ignore_spaces else label for label in lowered)

    predicted, target = [a for a, _ in pairs], [b for _, b in pairs]
    scores = list_scores(predicted, target, ignore_case=ignore_case, ignore_spaces=ignore_spaces)
    for i, (a, b) in enumerate(zip(map(multiset, predicted), map(multiset, target), strict=True)):
        shared = (a & b).total()
        assert scores.exact_match[i].item() == (a == b)
        if a == b:
            assert scores.precision[i].item() == scores.recall[i].item() == scores.f1[i].item() == 1
        else:
            assert scores.precision[i].item() == pytest.approx(shared / max(a.total(), 1))
            assert scores.recall[i].item() == pytest.approx(shared / max(b.total(), 1))
            assert scores.f1[i].item() == pytest.approx(2 * shared / (a.total() + b.total()))


def test_texts_are_split_at_the_separator():
    assert split_list("rye\noat milk\n\nrye") == ["rye", "oat milk", "rye"]
    assert split_list("rye; milk; ", "; ") == ["rye", "milk"]
    assert split_list("") == []


@pytest.mark.parametrize(
    ("predicted", "target", "message"),
    [
        ([["rye"]], [], "predicted must be 0 lists, one for each target, but is 1"),
        (["rye"], [["rye"]], "predicted must be lists of labels; see split_list"),
    ],
)
def test_invalid_lists_are_refused(without_shape_hook, predicted, target, message):
    with pytest.raises(ValueError, match=message):
        list_scores(predicted, target)
