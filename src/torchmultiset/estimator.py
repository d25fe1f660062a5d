"""scikit-learn interface: `MultisetClassifier` with `fit`, `predict`, `predict_proba` and `score`.

This module needs the extra ``sklearn``. Nothing else in the package imports scikit-learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
except ImportError as error:
    from torchmultiset._install import pip_install

    raise ImportError(f"MultisetClassifier needs scikit-learn: {pip_install('sklearn')}") from error

from torchmultiset._checks import check
from torchmultiset.data import Examples, Inputs
from torchmultiset.data.in_memory import InMemory, read_in_memory
from torchmultiset.data.manifest import Column
from torchmultiset.data.tokens import TokenKind, warn_of_cut
from torchmultiset.model.build import (
    build_objective,
    build_predictor,
    fit_encoder,
    head_class,
    resolve_kinds,
    resolve_stop,
)
from torchmultiset.model.config import ModelConfig, ObjectiveConfig, PolicyName
from torchmultiset.model.predictor import Predictor, Stop
from torchmultiset.model.registry import OBJECTIVES
from torchmultiset.multiset import to_labels
from torchmultiset.pipeline.resolve import input_shape, resolve_objective
from torchmultiset.training.checkpoint import BEST
from torchmultiset.training.config import OptimConfig
from torchmultiset.training.loop import fit, local_fabric
from torchmultiset.training.solve import solve

__all__ = ["MultisetClassifier"]

_ROWS = 2048  # rollouts per batch

Form: TypeAlias = Literal["matrix", "lists", "counters"]


class Targets(NamedTuple):
    """Targets parsed from one of the three accepted forms of y."""

    form: Form
    classes: list[Any]
    """Sorted labels; for a matrix, the column names or, if it has none, the column indices."""
    counts: Int64[np.ndarray, "n c"]


class MultisetClassifier(BaseEstimator):  # type: ignore[misc]
    """Multiset classifier for tables, text, sets and images, with the scikit-learn API.

    The targets hold one multiset per example, in one of three forms; `predict` returns the same form:

    - a list of lists of labels, ``[["cat", "cat", "dog"], []]``; labels are strings or numbers
    - a list of counts by label, ``[Counter(cat=2, dog=1), {}]``
    - a matrix of counts (n, C), as a NumPy array, DataFrame or tensor; a list of lists is never read as a matrix

    X is one of these:

    - a table (n, features) of numbers, or a DataFrame that may also have columns of text and of categories
    - images (n, channels, height, width), uint8 or floats from 0 to 1
    - a list of strings
    - a list of arrays (N, D), whose N may differ: sets of vectors, or sequences with ``encoder="sequence"``

    Features are standardised internally; images are used as they are.

    Args:
        objective: Name of the training objective, of the paper or later work. None: ``"counts"``, a count head; or
            ``"multi"`` if a policy or END is requested, or if images are too small for a count head.
        policy: Policy that emits the labels, for objectives that use one; None: ConvLSTM for images, LSTM for vectors.
        stop: Stopping mechanism; None: ``"fixed"`` if all training multisets have the same size, else ``"policy"``.
        min_size: Minimum size of a predicted multiset; None: that of the training data.
        max_size: Maximum size of a predicted multiset; None: that of the training data.
        encoder: Encoder of the inputs; None: by the kind of X. ``"sequence"`` reads a list of arrays in order.
        units: Widths of the encoder's linear layers, for vectors; for text, sets and sequences the number of its layers
            and their width.
        channels: Channels of the encoder's convolutions, for images. None: the paper's, or one convolution fewer for a
            finer feature map.
        hidden: Channels or units of the policy's layers. Objectives without a policy use a head with about as many
            weights (`ModelConfig.hidden`).
        layers: Number of layers of the policy.
        epochs: Number of training epochs; None: more for fewer examples.
        batch_size: Training batch size; None: smaller for few examples.
        lr: Peak learning rate.
        validation_fraction: Fraction of the examples held out to select the best epoch. 0: select it on the training
            examples.
        samples: Number of rollouts per example in `predict_proba`.
        random_state: Seed of the weights, the order of the examples, the validation split and the rollouts.

    Attributes:
        classes_: Sorted labels; for a matrix, the column names or, if it has none, the column indices.
        min_size_: Minimum size of a predicted multiset.
        max_size_: Maximum size of a predicted multiset.
        predictor_: The trained `Predictor`, which can be saved.
        history_: One entry per epoch: training loss, and exact match and F1 on the validation examples.
        n_features_in_: Number of features of a vector, columns of a DataFrame, or channels of an image; 1 for text.

    Example:
        >>> X = [[0, 1], [1, 0], [2, 1]] * 20
        >>> Y = [["cat"], ["dog"], ["cat", "dog", "dog"]] * 20
        >>> model = MultisetClassifier(epochs=30, lr=0.01, random_state=0).fit(X, Y)
        >>> model.predict([[2, 1], [0, 1]])
        [['cat', 'dog', 'dog'], ['cat']]
        >>> model.score(X, Y)
        1.0
        >>> model.predict_proba([[2, 1]]).shape  # (n, C, max_size_ + 1): probability of 0, 1, 2 or 3 of each class
        (1, 2, 4)
    """

    def __init__(
        self,
        *,
        policy: PolicyName | None = None,
        objective: str | None = None,
        stop: Stop | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        encoder: str | None = None,
        units: tuple[int, ...] = (128, 128),
        channels: tuple[int, ...] | None = None,
        hidden: int = 32,
        layers: int = 1,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: int | float = 3e-3,
        validation_fraction: int | float = 0.15,
        samples: int = 200,
        random_state: Any = None,
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.stop = stop
        self.min_size = min_size
        self.max_size = max_size
        self.encoder = encoder
        self.units = units
        self.channels = channels
        self.hidden = hidden
        self.layers = layers
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.samples = samples
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        # A row of a target matrix is one multiset, so the matrix always has two dimensions.
        tags.target_tags.single_output, tags.target_tags.multi_output = False, True
        return tags

    def fit(self, X: Any, y: Any) -> MultisetClassifier:
        """Train the classifier on inputs X and one multiset per example, y, in one of their forms."""
        inputs = self._inputs(X, first=True)
        targets = _read(y)
        check_consistent_length(inputs, targets.counts)
        sizes = targets.counts.sum(1)
        self._form: Form = targets.form
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.classes_ = _array(targets.classes)
        self.max_size_ = max(1, int(sizes.max())) if self.max_size is None else int(self.max_size)
        least = int(sizes.min())
        self.min_size_ = min(least, self.max_size_) if self.min_size is None else int(self.min_size)
        check(self.min_size_ <= least, "min_size", f"at most {least}, the size of the smallest multiset", self.min_size)
        stop = resolve_stop(self.stop, self.min_size_, self.max_size_)

        labels = to_labels(torch.from_numpy(targets.counts)).numpy()
        examples = Examples(inputs, labels, tuple(map(str, targets.classes)), tokens=self._tokens)
        self._shape = input_shape(examples)
        train, validation = self._split(examples)
        with torch.random.fork_rng(devices=[]):  # leave PyTorch's global generator untouched
            torch.manual_seed(self._seed)
            self._train(train, validation, stop)
        return self

    def predict(self, X: Any) -> list[list[Any]] | list[Counter[Any]] | Int64[np.ndarray, "n c"]:
        """Predict multisets greedily, in the form of the `y` that was passed to `fit`."""
        counts = self._predict(X)
        if self._form == "matrix":
            return counts
        names = self.classes_.tolist()
        rows = [Counter({name: n for name, n in zip(names, row, strict=True) if n}) for row in counts.tolist()]
        return rows if self._form == "counters" else [[*row.elements()] for row in rows]

    @available_if(lambda self: self._probabilistic())  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n c k"]:
        """Return the probability of each count of each class: (n, C, max_size_ + 1), where the last axis sums to 1.

        For a policy these are relative frequencies over `samples` rollouts, with labels and stopping drawn from the
        model. All examples use the same random numbers, from `random_state`, so the result for one example does not
        depend on the others. For the objectives ``"counts"``, ``"hungarian"`` and ``"power"`` the probabilities are
        exact. The method is not available for models without probabilities, such as those of the objectives
        ``"one-step"`` and ``"ridge"``.
        """
        check_is_fitted(self)
        check(self.samples >= 1, "samples", "at least 1", self.samples)
        inputs, predictor = self._inputs(X), self.predictor_
        rows = max(1, _ROWS // self.samples)
        shares = []
        for x in _batches(inputs, rows):
            generator = torch.Generator().manual_seed(self._seed)  # the same random numbers for all batches
            shares.append(predictor.count_probabilities(x, samples=self.samples, generator=generator))
        return torch.cat(shares).numpy()

    def score(self, X: Any, y: Any) -> float:
        """Return the exact match: the fraction of examples whose multiset is predicted correctly.

        The true multisets y may have any of the three forms. Columns of a matrix are matched to `classes_` by name if
        the names agree, else by position.
        """
        counts, true = self._predict(X), _read(y)
        check_consistent_length(counts, true.counts)
        if true.form == "matrix" and {*true.classes} != {*self.classes_.tolist()}:
            check(true.counts.shape[1] == counts.shape[1], "y", f"{counts.shape[1]} columns wide", true.counts.shape)
            return float((counts == true.counts).all(1).mean())
        # A multiset with a label that was not in the training data counts as wrong.
        place = {name: i for i, name in enumerate(self.classes_.tolist())}
        known = np.array([name in place for name in true.classes], dtype=bool)
        wanted = np.zeros_like(counts)
        wanted[:, [place[name] for name in true.classes if name in place]] = true.counts[:, known]
        return float(((counts == wanted).all(1) & (true.counts[:, ~known] == 0).all(1)).mean())

    def _probabilistic(self) -> bool:
        """Return whether the model has probabilities: the fitted one or, before `fit`, the one to be fitted."""
        if hasattr(self, "predictor_"):
            return self.predictor_.probabilistic
        head = head_class(ObjectiveConfig(self.objective)) if self.objective in OBJECTIVES else None
        return head is None or head.probabilistic

    def _inputs(self, X: Any, *, first: bool = False) -> Inputs:
        """Validate X and convert it to the network's input."""
        if not first:
            check_is_fitted(self)
        read = read_in_memory(X, columns=() if first else self._columns)
        if first:
            self._tokens: TokenKind | None = None if read is None else read.tokens
            self._columns: tuple[Column, ...] = () if read is None else read.columns
        if read is not None:
            return self._in_memory(read, first)
        check(first or not (self._tokens or self._columns), "X", "of the kind passed to fit", type(X).__name__)
        inputs = validate_data(self, X, reset=first, allow_nd=True)
        what = "a table (n, features) or images (n, channels, height, width)"
        check(inputs.ndim in (2, 4), "X", what, inputs.shape)
        if not first:
            check(
                inputs.shape[1:] == self._shape,
                "X",
                f"of the shape passed to fit, {self._shape} per example",
                inputs.shape,
            )
        if inputs.ndim == 4 and inputs.dtype == np.uint8:
            return np.asarray(inputs)
        with np.errstate(over="ignore"):
            numbers: np.ndarray = inputs.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError("X holds numbers that are too large for float32: rescale them")
        return numbers

    def _in_memory(self, read: InMemory, first: bool) -> Inputs:
        """Return text, vectors or encoded columns, if they are of the kind passed to `fit`."""
        check(len(read.inputs) >= 1, "the length of X", "at least 1", len(read.inputs))
        warn_of_cut(getattr(read.inputs, "cut", 0))
        width = read.inputs[np.array([0])].shape[-1]
        if first:
            self.n_features_in_ = len(read.columns) or (1 if read.tokens == "text" else width - 1)
            return read.inputs
        same = read.tokens == self._tokens and width == self._shape[-1]
        check(same, "X", f"of the kind passed to fit, with {self.n_features_in_} features", read.tokens or "a table")
        return read.inputs

    def _split(self, examples: Examples) -> tuple[Examples, Examples]:
        """Split the examples into training examples and those that select the best epoch."""
        share = self.validation_fraction
        check(0 <= share < 1, "validation_fraction", "at least 0 and below 1", share)
        held_out = int(len(examples) * share)
        order = np.random.default_rng(self._seed).permutation(len(examples))
        return examples.subset(order[held_out:]), examples.subset(order[:held_out] if held_out else order)

    def _train(self, train: Examples, validation: Examples, stop: Stop) -> None:
        model = ModelConfig(
            channels=None if self.channels is None else tuple(map(int, self.channels)),
            units=tuple(map(int, self.units)),
            policy=self.policy,
            encoder=self.encoder,
            hidden=int(self.hidden),
            layers=int(self.layers),
            stop=stop,
        )
        objective = ObjectiveConfig(objective=self.objective)
        if self.objective is None:
            objective, model, _ = resolve_objective(objective, model, self._shape, self.max_size_)
        model, objective = resolve_kinds(model, objective, self._shape, tokens=train.tokens)
        predictor = build_predictor(
            model,
            objective,
            shape=self._shape,
            classes=train.classes,
            min_size=self.min_size_,
            max_size=self.max_size_,
            stop=stop,
        )
        fit_encoder(predictor, train)
        criterion = build_objective(objective, predictor, seed=self._seed)
        epochs, size = (None if number is None else int(number) for number in (self.epochs, self.batch_size))
        optim = OptimConfig(epochs, size, float(self.lr))
        with TemporaryDirectory() as folder:
            if criterion.closed_form:
                progress = solve(predictor, train, validation, folder)
            else:
                progress = fit(
                    predictor, criterion, train, validation, optim, folder, seed=self._seed, fabric=local_fabric()
                )
            self.predictor_ = Predictor.load(Path(folder, BEST))
        self.history_ = progress.history

    def _predict(self, X: Any) -> Int64[np.ndarray, "n c"]:
        check_is_fitted(self)
        with torch.inference_mode():
            return torch.cat([self.predictor_.predict(x) for x in _batches(self._inputs(X), 256)]).numpy()


def _batches(inputs: Inputs, size: int) -> Iterator[Tensor]:
    for start in range(0, len(inputs), size):
        yield torch.from_numpy(np.ascontiguousarray(inputs[np.arange(start, min(start + size, len(inputs)))]))


def _read(y: Any) -> Targets:
    if y is None:
        raise ValueError("MultisetClassifier requires y to be passed, but the target y is None")
    if getattr(y, "ndim", 1) >= 2:
        return _read_matrix(y)
    y = list(y)
    rows = [_read_row(row, i) for i, row in enumerate(y)]
    try:
        classes = sorted({label for row in rows for label in row})
    except TypeError as error:
        raise ValueError(f"y mixes labels that cannot be sorted ({error}): use only strings or only numbers") from None
    if not classes:
        raise ValueError(
            "y has no labels, so its classes are unknown: pass at least one label, or a matrix of counts (n, C)"
        )
    counts = np.array([[row[label] for label in classes] for row in rows], dtype=np.int64)
    counters = all(isinstance(row, Mapping) for row in y)
    return Targets("counters" if counters else "lists", classes, counts)


def _read_matrix(y: Any) -> Targets:
    names = [*y.columns] if hasattr(y, "columns") else None
    numbers = check_array(y, input_name="y", ensure_min_samples=0)
    if (numbers < 0).any() or (numbers % 1 != 0).any():
        raise ValueError("y must hold counts, but some entries are negative or fractional")
    return Targets("matrix", names or [*range(numbers.shape[1])], numbers.astype(np.int64))


def _read_row(row: Any, i: int) -> Counter[Any]:
    if isinstance(row, str | bytes) or not isinstance(row, Iterable):
        raise ValueError(
            f"y must hold a list of labels, a Counter or a row of counts for each example, but y[{i}] is {row!r}"
        )
    counts = Counter(row)
    wrong = [name for name, count in counts.items() if count < 0 or count % 1 != 0]
    check(not wrong, f"the counts in y[{i}]", "non-negative integers", dict(counts))
    plain = {name: name.item() if isinstance(name, np.generic) else name for name in counts}
    return Counter({plain[name]: int(count) for name, count in counts.items()})


def _array(names: Sequence[Any]) -> Shaped[np.ndarray, " c"]:
    array = np.array(names)
    if array.ndim == 1:
        return array
    apart = np.empty(len(names), dtype=object)  # np.array would turn tuples into a matrix
    apart[:] = names
    return apart
