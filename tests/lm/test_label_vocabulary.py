"""Labels as tokens: lists are encoded and decoded, and ambiguous labels are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from list_reference import END, lists, split, vocabularies

from torchmultiset.lm import LabelVocabulary

pytest.importorskip("transformers", reason='install it with: pip install "torchmultiset[lm]"')
from tiny_language_models import byte_tokenizer, metaspace_tokenizer


@given(st.data())
def test_lists_in_any_order_are_encoded_and_decoded(data):
    pieces = data.draw(vocabularies())
    vocabulary = LabelVocabulary([*map(str, pieces)], pieces, END)
    written = data.draw(st.lists(st.sampled_from(vocabulary.labels), max_size=6))
    tokens = torch.tensor([vocabulary.encode(written)])
    assert vocabulary.decode(tokens) == [written]
    assert torch.equal(vocabulary.target(tokens), vocabulary.counts([written]))


@given(lists())
def test_labels_start_and_end_where_a_plain_loop_finds_them(problem):
    vocabulary = LabelVocabulary([*map(str, problem.vocabulary)], problem.vocabulary, END)
    for row in problem.rows:
        reading = vocabulary.read(torch.tensor([[-100, *row, -100]], dtype=torch.int64))
        for t in range(len(row)):
            assert bool(reading.starts[0, t + 1]) == (not split(row[:t], problem.vocabulary)[1])
            done, rest = split(row[: t + 1], problem.vocabulary)
            label = -1 if rest or done[-1] == (END,) else problem.vocabulary.index(done[-1])
            assert int(reading.completed[0, t + 1]) == label
        assert reading.known[0].tolist() == [False, *[True] * len(row), False]


@given(lists())
def test_allowed_tokens_continue_a_list(problem):
    vocabulary = LabelVocabulary([*map(str, problem.vocabulary)], problem.vocabulary, END)
    for row in problem.rows:
        (allowed,) = vocabulary.allowed(torch.tensor([row], dtype=torch.int64))
        rest = split(row, problem.vocabulary)[1]
        wanted = {piece[len(rest)] for piece in problem.vocabulary if piece[: len(rest)] == rest}
        wanted |= {END} if not rest else set()
        assert {*allowed} == ({END} if END in row else wanted)
        assert len(allowed) == len({*allowed})


def test_after_an_unknown_token_no_label_is_found():
    vocabulary = LabelVocabulary(["rye", "oats"], [[8, 1], [9, 1]], end=0)
    for unknown in (5, 999):
        reading = vocabulary.read(torch.tensor([[8, 1, unknown, 8, 1, 0]]))
        assert reading.completed.tolist() == [[-1, 0, -1, -1, -1, -1]]
        assert reading.known.tolist() == [[True, True, False, False, False, False]]
    assert not vocabulary.read(torch.tensor([[8, 0]])).known[0, 1]  # the end token inside a label
    assert vocabulary.allowed(torch.tensor([[5]])) == [[0]]


def test_an_end_token_above_all_others_is_not_confused_with_unknown_tokens():
    vocabulary = LabelVocabulary(["rye"], [[8, 1]], end=50)
    assert vocabulary.decode(torch.tensor([[8, 1, 50], [8, 1, 60]])) == [["rye"], ["rye"]]
    assert vocabulary.read(torch.tensor([[50, 8, 1], [60, 8, 1]])).known[:, 0].tolist() == [True, False]


def test_an_incomplete_last_label_and_tokens_after_the_end_are_ignored():
    vocabulary = LabelVocabulary(["red apple", "rye"], [[5, 6, 1], [8, 1]], end=0)
    assert vocabulary.decode(torch.tensor([[8, 1, 5, 6], [8, 1, 0, 8]])) == [["rye"], ["rye"]]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[8], [8, 9], [7]], r"labels 'a' and 'b' are ambiguous: the tokens of the first, \[8\]"),
        ([[8, 9], [7], [8, 9]], r"labels 'a' and 'c' are ambiguous: both have the tokens \[8, 9\]"),
        ([[8], [7, 0], [6]], "label 'b' contains the end token 0"),
        ([[8], [], [6]], "at least one token for label 'b'"),
        ([[8], [9]], "one sequence for each of the 3 labels"),
    ],
)
def test_ambiguous_labels_are_refused_with_their_names(tokens, message):
    with pytest.raises(ValueError, match=message):
        LabelVocabulary(["a", "b", "c"], tokens, end=0)


def test_a_common_prefix_of_distant_labels_is_found():
    pieces = [[1, 2, 3], [4, 5], [1, 2, 4], [9], [1, 2]]
    with pytest.raises(ValueError, match=r"labels 'e' and '[ac]' are ambiguous"):
        LabelVocabulary([*"abcde"], pieces, end=0)


def test_an_unknown_label_is_reported():
    with pytest.raises(ValueError, match="label 'milk' is not in the vocabulary of 1 labels"):
        LabelVocabulary(["rye"], [[8, 1]], end=0).counts([["rye", "milk"]])


LABELS = ["rye", "rye bread", "bread", "red onion", "red"]


@pytest.mark.parametrize(
    ("tokenizer", "separator"),
    [(byte_tokenizer(LABELS), "\n"), (byte_tokenizer(LABELS), "|"), (metaspace_tokenizer(LABELS), "; ")],
)
def test_labels_are_tokenised_so_that_every_order_is_canonical(tokenizer, separator):
    vocabulary = LabelVocabulary.from_tokenizer(tokenizer, LABELS, separator=separator)
    for written in (LABELS, LABELS[::-1], ["rye", "rye", "bread"]):
        text = "".join(label + separator for label in written)
        assert vocabulary.encode(written) == [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        assert vocabulary.decode(torch.tensor([vocabulary.encode(written)])) == [written]


@pytest.mark.parametrize(
    ("tokenizer", "labels", "separator", "message"),
    [
        # Tokenizers such as GPT-2's join a space with the next word.
        (byte_tokenizer([", bread, rye"]), LABELS, ", ", "tokenised differently next to each other than alone"),
        (byte_tokenizer(LABELS), [*LABELS, "rye"], "\n", "labels 'rye' and 'rye' are ambiguous"),
        (metaspace_tokenizer(LABELS), LABELS, "\n", "is decoded as"),
        (byte_tokenizer(LABELS), ["rye\nbread"], "\n", "labels must be text without"),
        (byte_tokenizer(LABELS), [" "], "\n", "labels must be text without"),
        (byte_tokenizer(LABELS, end=None), ["rye"], "\n", "has no end of sequence"),
    ],
)
def test_a_tokenisation_that_depends_on_the_order_is_refused(tokenizer, labels, separator, message):
    with pytest.raises(ValueError, match=message):
        LabelVocabulary.from_tokenizer(tokenizer, labels, separator=separator)
