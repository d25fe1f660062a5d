"""A vocabulary of labels, tokenised with their separator, as a trie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from torchmultiset._checks import check, check_integers
from torchmultiset.multiset import count_earlier, from_labels, pad_rows

__all__ = ["LabelVocabulary", "Reading"]


class Reading(NamedTuple):
    """Labels found in rows of tokens."""

    starts: Bool[Tensor, "b t"]
    """Steps at which a label or the end token starts."""
    completed: Int64[Tensor, "b t"]
    """Index of the label that this token completes, or -1."""
    known: Bool[Tensor, "b t"]
    """Steps whose token continues a label of the vocabulary or ends the list; False outside of the list."""


class LabelVocabulary:
    r"""Labels as sequences of tokens that a language model generates.

    A list is written as its labels in any order, each followed by the separator, then the end token:
    ``milk\nmilk\nrye bread\n</s>``. Each label is tokenised separately, together with its separator, so that the
    tokens of a list are the concatenated tokens of its labels, in every order. `from_tokenizer` checks that the
    tokenizer gives the same tokens for the joined text of neighbouring labels.

    Args:
        labels: Text of each label.
        tokens: Tokens of each label with its separator.
        end: Token that ends a list.

    Raises:
        ValueError: If a list could be ambiguous: two labels have the same tokens, or the tokens of one are a prefix of
            another's. The message contains both labels.

    Attributes:
        labels: Text of each label.
        tokens: Tokens (C, L) of each label, padded with -1 at the end: the argument `labels` of `list_loss`.
        end: Token that ends a list.

    Example:
        >>> vocabulary = LabelVocabulary(["red apple", "red pepper", "rye"], [[5, 6, 1], [5, 7, 1], [8, 1]], end=0)
        >>> vocabulary.encode(["rye", "red apple", "rye"])
        [8, 1, 5, 6, 1, 8, 1, 0]
        >>> vocabulary.decode(torch.tensor([[8, 1, 5, 6, 1, 8, 1, 0]]))
        [['rye', 'red apple', 'rye']]
        >>> LabelVocabulary(["rye", "rye bread"], [[8], [8, 9]], end=0)
        Traceback (most recent call last):
        ValueError: labels 'rye' and 'rye bread' are ambiguous: the tokens of the first, [8], are a prefix of those of
        the second, [8, 9]; tokenise each label with a separator after it
    """

    def __init__(self, labels: Sequence[str], tokens: Sequence[Sequence[int]], end: int) -> None:
        check(len(labels) > 0, "labels", "at least one label", labels)
        check(len(labels) == len(tokens), "tokens", f"one sequence for each of the {len(labels)} labels", len(tokens))
        self.labels = tuple(labels)
        self.end = end
        self._pieces = [[*map(int, piece)] for piece in tokens]
        self._number = {label: number for number, label in enumerate(self.labels)}
        _refuse_ambiguous(self.labels, self._pieces, end)
        self.tokens = pad_rows(self._pieces, -1)
        self._children, self._leaf = _trie(self._pieces)
        self._base = int(self.tokens.max()) + 2  # the last residue stands for tokens that no label contains
        edges = [
            (node * self._base + token, child)
            for node, children in enumerate(self._children)
            for token, child in sorted(children.items())
        ]
        self._keys, self._child = torch.tensor(edges).T.contiguous()
        self._label_of = torch.tensor([*self._leaf, -1])  # the last node stands for a mismatch

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, labels: Sequence[str], *, separator: str = "\n", end: int | None = None
    ) -> LabelVocabulary:
        r"""Tokenise labels with a tokenizer of `transformers`, and check that a list has one tokenisation.

        Args:
            tokenizer: Tokenizer with ``__call__``, ``decode`` and ``eos_token_id``.
            labels: Text of each label; neither empty nor containing the separator.
            separator: Text after each label. A newline suits byte-level tokenizers (GPT-2, Llama, Qwen); tokenizers
                that turn newlines into spaces (T5) need a punctuation mark and a space, such as ``"; "``.
            end: Token that ends a list; the tokenizer's end of sequence if None.

        Raises:
            ValueError: If decoding does not restore a label, a label is tokenised differently next to another one, or
                two labels are ambiguous.
        """
        end = tokenizer.eos_token_id if end is None else end
        if end is None:
            raise ValueError("end must be a token: this tokenizer has no end of sequence")
        for label in labels:
            check(bool(label.strip()) and separator not in label, "labels", f"text without {separator!r}", label)
        texts = [label + separator for label in labels]
        pieces = _tokenise(tokenizer, texts)
        for label, text, piece in zip(labels, texts, pieces, strict=True):
            decoded = tokenizer.decode(piece, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if decoded.strip(" ") != text.strip(" "):
                raise ValueError(
                    f"label {label!r} with separator {separator!r} is decoded as {decoded!r}: the tokenizer has to"
                    " represent every character; choose another separator, or add the characters to the tokenizer"
                )
        vocabulary = cls(labels, pieces, end)
        # Check each label followed by itself and by the next label.
        number = len(labels)
        pairs = [(i, i) for i in range(number)] + [(i, (i + 1) % number) for i in range(number)]
        joint = _tokenise(tokenizer, [texts[a] + texts[b] for a, b in pairs])
        for (a, b), found in zip(pairs, joint, strict=True):
            if found != pieces[a] + pieces[b]:
                raise ValueError(
                    f"labels {labels[a]!r} and {labels[b]!r} are tokenised differently next to each other than alone:"
                    f" {found} instead of {pieces[a] + pieces[b]}; choose a separator other than {separator!r} that"
                    " the tokenizer keeps apart from the next label, such as a newline"
                )
        return vocabulary

    def __len__(self) -> int:
        return len(self.labels)

    def encode(self, labels: Iterable[str]) -> list[int]:
        """Return the tokens of a list: those of its labels in this order, then the end token."""
        return [*(token for label in labels for token in self._pieces[self._find(label)]), self.end]

    def decode(self, tokens: Int64[Tensor, "b t"]) -> list[list[str]]:
        """Return the labels in each row of tokens, up to the end token; an incomplete last label is left out."""
        completed = self.read(self.until_end(tokens)).completed.tolist()
        return [[self.labels[number] for number in row if number >= 0] for row in completed]

    def counts(self, lists: Sequence[Iterable[str]]) -> Int64[Tensor, "b c"]:
        """Return lists of labels as counts (B, C).

        Example:
            >>> LabelVocabulary(["rye", "oats"], [[8, 1], [9, 1]], end=0).counts([["oats", "rye", "oats"], []])
            tensor([[1, 2],
                    [0, 0]])
        """
        return from_labels([[self._find(label) for label in labels] for labels in lists], len(self))

    def target(self, tokens: Int64[Tensor, "b t"]) -> Int64[Tensor, "b c"]:
        """Return the counts (B, C) of the labels in rows of tokens, such as reference lists."""
        return from_labels(self.read(tokens).completed, len(self))

    def read(self, tokens: Int64[Tensor, "b t"]) -> Reading:
        """Find the labels in rows of tokens.

        Args:
            tokens: Tokens (B, T); negative ones are not part of the list (prompt, padding).

        Returns:
            Where labels start and end. After a token that continues no label, no labels are found in the rest of the
            row, because the start of the next one is unknown.

        Example:
            >>> vocabulary = LabelVocabulary(["red apple", "rye"], [[5, 6, 1], [8, 1]], end=0)
            >>> vocabulary.read(torch.tensor([[-100, 8, 1, 5, 6, 1, 0]])).completed
            tensor([[-1, -1,  1, -1, -1,  0, -1]])
        """
        nodes = self._nodes(tokens)
        before, after = nodes[:, :-1], nodes[:, 1:]
        listed = tokens >= 0
        completed = torch.where(listed, self._label_of.to(tokens.device)[after], -1)
        return Reading(self._at_root(before) & listed, completed, listed & (after < len(self._leaf)))

    def allowed(self, tokens: Int64[Tensor, "b t"]) -> list[list[int]]:
        """Return the tokens that may follow each row; after the end token, only the end token."""
        ended = (tokens == self.end).any(1).tolist()
        last = self._nodes(tokens)[:, -1]
        nodes = torch.where(self._at_root(last), 0, last).tolist()
        following = []
        for node, over in zip(nodes, ended, strict=True):
            if over or node == len(self._leaf):
                following.append([self.end])
            else:
                following.append([*self._children[node], *[self.end] * (node == 0)])
        return following

    def until_end(self, tokens: Int64[Tensor, "b t"]) -> Int64[Tensor, "b t"]:
        """Replace all tokens after the first end token by -100."""
        return tokens.masked_fill(count_earlier(tokens == self.end) > 0, -100)

    def _nodes(self, tokens: Tensor) -> Tensor:
        """Return the node of the trie before the first token and after each, (B, T + 1); a leaf acts as the root."""
        check_integers("tokens", tokens, "(B, T)")
        keys, child, leaf = (table.to(tokens.device) for table in (self._keys, self._child, self._label_of))
        node = tokens.new_zeros(len(tokens))
        nodes = [node]
        nowhere = len(self._leaf)
        folded = tokens.clamp(max=self._base - 1)
        for token, ends in zip(folded.unbind(1), (tokens == self.end).unbind(1), strict=True):
            base = torch.where(leaf[node] >= 0, 0, node)
            key = base * self._base + token
            at = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
            after = torch.where(keys[at] == key, child[at], nowhere)
            after = torch.where((base == 0) & ends, 0, after)
            node = torch.where(token < 0, node, after)
            nodes.append(node)
        return torch.stack(nodes, 1)

    def _at_root(self, nodes: Tensor) -> Tensor:
        return (nodes == 0) | (self._label_of.to(nodes.device)[nodes] >= 0)

    def _find(self, label: str) -> int:
        if label not in self._number:
            raise ValueError(f"label {label!r} is not in the vocabulary of {len(self)} labels")
        return self._number[label]


def _tokenise(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    pieces: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return pieces


def _refuse_ambiguous(labels: Sequence[str], pieces: list[list[int]], end: int) -> None:
    for label, piece in zip(labels, pieces, strict=True):
        check(len(piece) > 0 and min(piece) >= 0, "tokens", f"at least one token for label {label!r}", piece)
        if end in piece:
            raise ValueError(f"label {label!r} contains the end token {end}, which would end the list: {piece}")
    # In lexicographic order, a sequence that is a prefix of any other is a prefix of its successor.
    for a, b in pairwise(sorted(range(len(labels)), key=pieces.__getitem__)):
        first, second = pieces[a], pieces[b]
        if first == second:
            raise ValueError(f"labels {labels[a]!r} and {labels[b]!r} are ambiguous: both have the tokens {first}")
        if first == second[: len(first)]:
            raise ValueError(
                f"labels {labels[a]!r} and {labels[b]!r} are ambiguous: the tokens of the first, {first}, are a prefix"
                f" of those of the second, {second}; tokenise each label with a separator after it"
            )


def _trie(pieces: Sequence[Sequence[int]]) -> tuple[list[dict[int, int]], list[int]]:
    """Return the children of each node by token, and the label of each leaf, -1 for the other nodes."""
    children: list[dict[int, int]] = [{}]
    leaf = [-1]
    for number, piece in enumerate(pieces):
        node = 0
        for token in piece:
            if token not in children[node]:
                children[node][token] = len(children)
                children.append({})
                leaf.append(-1)
            node = children[node][token]
        leaf[node] = number
    return children, leaf
