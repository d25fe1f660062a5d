"""`Predictor`, the common interface of all models.

There are two kinds. `SequentialPredictor` has a policy, which emits one label at a time; `OneShotPredictor` has a head,
which outputs a distribution over whole multisets. ``Predictor(encoder, policy_or_head, ...)`` and `Predictor.load`
create the right kind, and all other code uses only the methods of `Predictor`.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, overload

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from torchmultiset import __version__
from torchmultiset._arguments import declared
from torchmultiset._checks import check, check_one_of
from torchmultiset.distributions import Belief, Ranked
from torchmultiset.heads import OneShotHead
from torchmultiset.model.outputs import Decoding, Prediction, SequentialOutput, StepScores
from torchmultiset.model.registry import ENCODERS, HEADS, POLICIES
from torchmultiset.model.serialization import DESCRIPTION, SAVE_AGAIN, describe_module, make, read_saved, write_saved
from torchmultiset.model.shipped import locate
from torchmultiset.rollout import Choose

__all__ = ["BEAM", "Predictor", "Stop"]

Stop: TypeAlias = Literal["fixed", "policy", "end"]
"""Stopping mechanism: a fixed size, a stop head, or an END class."""

BEAM = 8
"""Default beam width. It covers all orders of up to three labels; wider beams are slow on a CPU for ten labels."""

_PAIRS = "train a policy with an objective such as 'multi', and a head with its own, such as 'counts' for a count head"


class Predictor(nn.Module):
    """Maps inputs to multisets of class labels.

    Args:
        encoder: Maps inputs to a memory; any module.
        module: A policy or a `OneShotHead` for that memory. With ``stop="end"`` a policy has one class more than
            `classes`.
        classes: Names of the classes, C of them.
        max_size: Size of the largest multiset. No prediction is larger.
        stop: ``"fixed"``: all multisets have `max_size` labels. ``"policy"``: a stop head decides when to stop.
            ``"end"``: the policy emits END. A one-shot head has neither; with ``"policy"`` it predicts the size itself.
        baseline: Whether to add a value head, for REINFORCE.
        min_size: Size of the smallest multiset. No prediction is smaller: a policy cannot stop before it has emitted
            that many labels, in training or prediction, and a head assigns probability 0 to smaller multisets. None: 0,
            or `max_size` with ``stop="fixed"``.
        decoding: How multisets are predicted, see `Decoding`. The attribute can be changed later, and is saved.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder
        >>> from torchmultiset.policies import LSTMPolicy
        >>> _ = torch.manual_seed(0)
        >>> predictor = Predictor(MLPEncoder(7), LSTMPolicy(2, memory=128), classes=["cat", "dog"], max_size=3)
        >>> predictor.predict(torch.rand(4, 7)).shape
        torch.Size([4, 2])
    """

    probabilistic: bool
    """Whether the model assigns probabilities to multisets."""

    def __new__(cls, _encoder: Any = None, module: Any = None, *_: Any, **__: Any) -> Predictor:
        """Choose the kind of predictor by the type of the module."""
        if cls is Predictor:
            from torchmultiset.model.one_shot import OneShotPredictor
            from torchmultiset.model.sequential import SequentialPredictor

            cls = OneShotPredictor if isinstance(module, OneShotHead) else SequentialPredictor
        return super().__new__(cls)

    def __init__(
        self,
        encoder: nn.Module,
        module: nn.Module,
        classes: Sequence[str],
        *,
        max_size: int,
        stop: Stop = "policy",
        baseline: bool = False,
        min_size: int | None = None,
        decoding: Decoding = "greedy",
    ) -> None:
        super().__init__()
        check_one_of("stop", stop, get_args(Stop))
        check(max_size >= 1, "max_size", "at least 1", max_size)
        check(len(set(classes)) == len(classes) >= 1, "classes", "different names, at least one", list(classes))
        wanted = len(classes) + (stop == "end")
        what = f"one of {wanted} classes{', END included' if stop == 'end' else ''}"
        check(declared(module, "num_classes") == wanted, "policy", what, module.num_classes)
        self.encoder = encoder
        self.classes = tuple(classes)
        self.max_size = operator.index(max_size)
        self.stop = stop
        default = self.max_size if stop == "fixed" else 0
        self.min_size = default if min_size is None else operator.index(min_size)
        check(0 <= self.min_size <= max_size, "min_size", f"from 0 to max_size = {max_size}", min_size)
        one = f"max_size = {max_size} or None with stop 'fixed'"
        check(stop != "fixed" or self.min_size == max_size, "min_size", one, min_size)
        self.record: dict[str, Any] = {}
        """Additional data saved with the model, such as its config and scores."""
        self._add(module, baseline)
        self.decoding = decoding

    @property
    def decoding(self) -> Decoding:
        """Decoding method, one of `decodings`."""
        return self._decoding

    @decoding.setter
    def decoding(self, value: Decoding) -> None:
        check_one_of("decoding", value, get_args(Decoding))
        supported = " or ".join(map(repr, self.decodings))
        check(value in self.decodings, "decoding", f"{supported} for {self.kind}, which supports no other", value)
        self._decoding: Decoding = value

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """Decoding methods that the model supports."""
        raise NotImplementedError

    @property
    def searchable(self) -> bool:
        """Whether the model can search for the most probable multisets."""
        return "search" in self.decodings

    def _add(self, module: nn.Module, baseline: bool) -> None:
        """Register the policy or head, and create its stop and value heads."""
        raise NotImplementedError

    @property
    def module(self) -> nn.Module:
        """Policy or head of the model."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """Class name of the policy or head."""
        return type(self.module).__name__

    @property
    def steps(self) -> int:
        """Number of steps of a rollout; 0 for a one-shot head."""
        return 0

    @property
    def end(self) -> bool:
        """Whether the policy has an END class, with label C."""
        return self.stop == "end"

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes of the smallest and the largest multiset that can be predicted."""
        return self.min_size, self.max_size

    def rollout(self, x: Shaped[Tensor, "b ..."], choose: Choose, *, repeats: int = 1) -> SequentialOutput:  # noqa: ARG002
        """Roll out the policy for training; see `SequentialPredictor.rollout`. A one-shot head raises a ValueError."""
        raise ValueError(f"{self.kind} is a one-shot head, which does not emit labels one at a time: {_PAIRS}")

    def at(self, x: Shaped[Tensor, "b ..."], emitted: Int64[Tensor, "b s c"]) -> StepScores:  # noqa: ARG002
        """Compute the policy's scores after the given labels; see `SequentialPredictor.at`."""
        raise ValueError(f"{self.kind} is a one-shot head, which does not emit labels one at a time: {_PAIRS}")

    def scores(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b n k"]:  # noqa: ARG002
        """Compute the scores of the head for training; see `OneShotPredictor.forward`."""
        raise ValueError(f"{self.kind} is a policy, not a one-shot head: {_PAIRS}")

    def decode(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Return the prediction of one forward pass, without confidence. It is differentiable."""
        raise NotImplementedError

    def _predicted(self, x: Shaped[Tensor, "b ..."]) -> Int64[Tensor, "b c"]:
        """Return the counts of `decode`; overridden if they take less time alone."""
        return self.decode(x).counts

    def _decode_and_rank(self, x: Shaped[Tensor, "b ..."], k: int, beam: int) -> tuple[Prediction, Ranked | None]:
        """Decode with confidence, and search for the k most probable multisets if k > 0; inputs are encoded once."""
        raise NotImplementedError

    def log_probability(
        self, x: Shaped[Tensor, "b ..."], counts: Int64[Tensor, "b c"], *, beam: int = 32
    ) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input, summed over all orders of its labels.

        `search` ranks multisets by it.
        """
        raise NotImplementedError

    def search(self, x: Shaped[Tensor, "b ..."], *, k: int = 5, beam: int = 32) -> Ranked:
        """Return the k most probable multisets: exact for a head, found by beam search for a policy.

        The search always includes the greedy prediction of a policy. The prediction of a head need not be its most
        probable multiset: `Slots`, for example, predicts the most probable class of each slot.

        Args:
            x: Inputs.
            k: Number of multisets.
            beam: Beam width: the maximum number of prefixes of one size to extend. `search.Search` documents what is
                exact and what is estimated.

        Example:
            >>> from torchmultiset.encoders import MLPEncoder
            >>> from torchmultiset.policies import FeedForwardPolicy
            >>> policy = FeedForwardPolicy(2, memory=128)
            >>> predictor = Predictor(MLPEncoder(7), policy, classes=["cat", "dog"], max_size=3)
            >>> counts, log_probability = predictor.search(torch.rand(4, 7), k=10)  # all of them
            >>> counts.shape, log_probability.exp().sum(1)
            (torch.Size([4, 10, 2]), tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64))
        """
        raise NotImplementedError

    def exact_beam(self, size: int) -> int:
        """Return the beam width with which multisets of up to `size` labels are scored exactly."""
        raise NotImplementedError

    def count_probabilities(
        self, x: Shaped[Tensor, "b ..."], *, samples: int, generator: torch.Generator
    ) -> Float64[Tensor, "b c m"]:
        """Return the probability of each count 0, 1, ..., `max_size` of each class.

        Exact for a head. For a policy, relative frequencies over rollouts in which labels and stopping are sampled. All
        inputs use the same random numbers, so the result for one input does not depend on the others.

        Args:
            x: Inputs.
            samples: Number of rollouts per input.
            generator: Source of random numbers.
        """
        raise NotImplementedError

    def places(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b c h w"] | None:  # noqa: ARG002
        """Return the probability that each position of the map counts as each class; None if there is no such map."""
        return None

    def graph_outputs(self, x: Shaped[Tensor, "b ..."]) -> dict[str, Tensor]:
        """Return the outputs of an exported graph by name: at least ``counts`` and ``probabilities``."""
        raise NotImplementedError

    def belief(self, x: Shaped[Tensor, "b ..."]) -> Belief:  # noqa: ARG002
        """Return the head's distribution over multisets for each input, with its marginals over counts and sizes.

        If the number of labels is known to be 3, ``belief(x).given_size(3).best()`` is the most probable multiset of
        that size.

        Raises:
            ValueError: The model has a policy, or a head without probabilities.
        """
        raise ValueError(f"{self.kind} is a policy, which has no distribution in closed form: use `search`")

    @overload
    def predict(self, x: Shaped[Tensor, "b ..."]) -> Int64[Tensor, "b c"]: ...
    @overload
    def predict(self, x: Any) -> Any: ...
    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Predict multisets with the method set in `decoding`.

        Args:
            x: A batch of inputs as a tensor, or any input that the model reads: a path, a folder, a Pillow image, a
                NumPy image (H, W) or (H, W, 3), uint8 or floats from 0 to 1, a DataFrame, or a list of these.

        Returns:
            Counts (B, C) for a tensor, else class names with counts: an `Answer`, or `Answers` for several inputs.
        """
        if not isinstance(x, Tensor):
            from torchmultiset.model.objects import predict_objects

            return predict_objects(self, x)
        with self.evaluating():
            return self._predicted(x)

    @torch.no_grad()
    def predict_labels(self, x: Any) -> list[list[str]]:
        """Predict multisets as lists of class names, one per input, in the order of the classes."""
        found = self.predict(x)
        if isinstance(found, Tensor):
            found = [Counter(dict(zip(self.classes, row, strict=True))) for row in found.tolist()]
        return [[*one.elements()] for one in (found if isinstance(found, list) else [found])]

    @torch.no_grad()
    def explain(self, x: Shaped[Tensor, "b ..."], *, best: int = 0, beam: int = BEAM) -> Prediction:
        """Predict multisets with confidence, distributions and, for a policy, the sequence of labels.

        Args:
            x: Inputs.
            best: Number of most probable multisets to search for; the first one is predicted. 0: predict with the
                method set in `decoding`.
            beam: Beam width of the search and of the confidence; a wider beam is more exact and slower.
        """
        with self.evaluating():
            prediction, ranked = self._decode_and_rank(x, max(best, int(self.decoding == "search")), beam)
        if ranked is None:
            return prediction
        counts, confidence = ranked.counts[:, 0], ranked.log_probability[:, 0].exp()
        return prediction._replace(counts=counts, confidence=confidence, best=ranked if best else None)

    def save(self, folder: str | Path, *, record: Mapping[str, Any] | None = None) -> None:
        """Save the predictor in a folder: weights as safetensors, everything else in ``predictor.json``.

        The name of the weights file contains the first digits of its SHA-256, which ``predictor.json`` refers to.
        Replacing ``predictor.json`` is atomic, so the folder always holds either the old or the new predictor.

        Args:
            folder: Folder to write to, created if necessary; an existing predictor is replaced. Only one process may
                write to it at a time.
            record: Additional JSON-serialisable data, such as the config and scores. None: the current `record`.
        """
        description = {
            "torchmultiset": __version__,
            "classes": self.classes,
            "max_size": self.max_size,
            "min_size": self.min_size,
            "stop": self.stop,
            "decoding": self.decoding,
            "encoder": describe_module(self.encoder, ENCODERS.classes),
            **self._description(),
        }
        write_saved(Path(folder), self.weights(), description, self.record if record is None else record)

    def _description(self) -> dict[str, Any]:
        """Return the part of ``predictor.json`` that describes the policy or head."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the state dict for saving; safetensors requires tensors that share no memory."""
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in self.state_dict().items()}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: nn.Module | None = None,
        policy: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> Predictor:
        """Load a predictor written by `save` or by a training run, without executing code from the folder.

        Args:
            folder: Folder of the predictor or of the run that trained it, name of an included model (see `shipped`), or
                address ``hf://owner/name``.
            encoder: Encoder with the same architecture, whose weights are replaced. Required if the predictor was saved
                with a custom encoder.
            policy: Likewise, for a custom policy.
            head: Likewise, for a custom head.
        """
        folder = locate(folder)
        description, state = read_saved(folder)
        try:
            with torch.random.fork_rng(devices=[]):  # modules are created with random weights
                if encoder is None:
                    encoder = make(description["encoder"], ENCODERS.classes, "encoder", folder)
                module = policy if head is None else head
                if module is None:  # format 1 stored heads under "policy", too
                    what = "head" if "head" in description else "policy"
                    module = make(description[what], POLICIES.classes | HEADS.classes, what, folder)
                predictor = Predictor(
                    encoder,
                    module,
                    description["classes"],
                    max_size=description["max_size"],
                    stop=description["stop"],
                    baseline="head" not in description and description["baseline"],
                    min_size=description.get("min_size"),
                    decoding=description.get("decoding", "greedy"),
                )
            predictor.record = description["record"]
            if description["format"] == 1 and isinstance(module, OneShotHead):
                state = {re.sub(r"^policy\.", "head.", name): value for name, value in state.items()}
        except (KeyError, TypeError, AttributeError, OverflowError, MemoryError, RuntimeError) as error:
            raise ValueError(f"{folder / DESCRIPTION} is damaged, {error!r}: {SAVE_AGAIN}") from error
        types = {value.dtype for value in state.values() if value.is_floating_point()}
        if len(types) == 1:  # it may have been saved in a precision other than the default
            predictor.to(types.pop())
        try:
            predictor.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"the weights in {folder} do not fit this encoder and policy: {error}") from error
        return predictor.eval()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode within a ``with`` block."""
        training = [module for module in self.modules() if module.training]  # excludes frozen encoders
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True
