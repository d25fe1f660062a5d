"""The interface of all models: `Predictor`, and what it says about its predictions.

There are two kinds. `SequentialPredictor` has a policy, which emits one label after another; `OneShotPredictor` has a
head, which gives a distribution over whole multisets. ``Predictor(encoder, policy_or_head, ...)`` and `Predictor.load`
make the right one, and everything else uses the methods below.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from torchmultiset import __version__
from torchmultiset._checks import check, check_one_of
from torchmultiset.distributions import Belief, Ranked
from torchmultiset.heads import OneShotHead
from torchmultiset.model.outputs import Prediction, SequentialOutput
from torchmultiset.model.registry import ENCODERS, HEADS, POLICIES
from torchmultiset.model.serialization import DESCRIPTION, describe, make, read_description, read_saved, write_saved
from torchmultiset.model.shipped import locate
from torchmultiset.multiset import to_labels
from torchmultiset.rollout import Choose

__all__ = ["BEAM", "Decoding", "Predictor", "Stop", "read_description"]

Decoding: TypeAlias = Literal["greedy", "search"]
"""How a multiset is predicted: step by step (a head: by its own rule), or as the most probable one that is found."""
Stop: TypeAlias = Literal["fixed", "policy", "end"]
"""How a multiset ends: at a fixed size, where a stop head decides, or with an END class."""

BEAM = 8
"""Prefixes that a search follows by default: the orders of up to three labels are all followed. More take long on a CPU
where multisets have ten labels."""

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
            ``"end"``: the policy emits END. A head has neither: ``"policy"`` leaves the size to it.
        baseline: Whether there is a value head, for REINFORCE.
        min_size: Size of the smallest multiset. No prediction is smaller: a policy cannot stop before so many labels,
            in training or prediction, and a head gives smaller multisets no probability. None: 0, or `max_size` with
            ``stop="fixed"``.
        decoding: ``"greedy"``: a policy emits the most probable label at each step, a head predicts by its own rule,
            such as the class of each slot. ``"search"``: the most probable multiset, exactly for a head, by a beam
            search for a policy. It can be changed later, and is saved.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder
        >>> from torchmultiset.policies import LSTMPolicy
        >>> _ = torch.manual_seed(0)
        >>> predictor = Predictor(MLPEncoder(7), LSTMPolicy(2, memory=128), classes=["cat", "dog"], max_size=3)
        >>> predictor.predict(torch.rand(4, 7)).shape
        torch.Size([4, 2])
    """

    probabilistic: bool
    """Whether it knows how probable a multiset is."""

    def __new__(cls, _encoder: Any = None, module: Any = None, *_: Any, **__: Any) -> Predictor:
        """Choose the kind of predictor by the module that is given."""
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
        """What was saved with it."""
        self._add(module, baseline)
        self.decoding = decoding

    @property
    def decoding(self) -> Decoding:
        """How a multiset is predicted: ``"greedy"`` or ``"search"``."""
        return self._decoding

    @decoding.setter
    def decoding(self, value: Decoding) -> None:
        check_one_of("decoding", value, get_args(Decoding))
        able = self.probabilistic and (self.steps == 0 or callable(getattr(self.module, "select", None)))
        check(value == "greedy" or able, "decoding", f"'greedy' for {self.kind}, which cannot be searched", value)
        self._decoding: Decoding = value

    def _add(self, module: nn.Module, baseline: bool) -> None:
        """Take the policy or the head, and make what goes with it."""
        raise NotImplementedError

    @property
    def module(self) -> nn.Module:
        """Its policy or head."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """Name of the class of its policy or head."""
        return type(self.module).__name__

    @property
    def steps(self) -> int:
        """Length of a rollout of the policy; 0 for a head, which takes no steps."""
        return 0

    @property
    def end(self) -> bool:
        """Whether a policy has an END class, with label C."""
        return self.stop == "end"

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes of the smallest and of the largest multiset that can be predicted."""
        return self.min_size, self.max_size

    def rollout(self, x: Shaped[Tensor, "b ..."], choose: Choose, *, repeats: int = 1) -> SequentialOutput:  # noqa: ARG002
        """Execute the policy, for training; see `SequentialPredictor.forward`.

        Raises:
            ValueError: The model has a head.
        """
        raise ValueError(f"{self.kind} is a one-shot head, which emits no labels one after another: {_PAIRS}")

    def at(self, x: Shaped[Tensor, "b ..."], emitted: Int64[Tensor, "b s c"]) -> SequentialOutput:  # noqa: ARG002
        """Scores of a policy where these labels have been emitted; see `SequentialPredictor.at`."""
        raise ValueError(f"{self.kind} is a one-shot head, which emits no labels one after another: {_PAIRS}")

    def scores(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b n k"]:  # noqa: ARG002
        """Scores of the head, for training; see `OneShotPredictor.forward`.

        Raises:
            ValueError: The model has a policy.
        """
        raise ValueError(f"{self.kind} is a policy, and not a one-shot head: {_PAIRS}")

    def decode(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Predict, and say how: everything that one pass gives, but no confidence. Gradients flow."""
        raise NotImplementedError

    def _decode_and_rank(self, x: Shaped[Tensor, "b ..."], k: int, beam: int) -> tuple[Prediction, Ranked | None]:
        """`decode`, with confidence, and the k most probable multisets if k > 0; the input is encoded once."""
        raise NotImplementedError

    def log_probability(
        self, x: Shaped[Tensor, "b ..."], counts: Int64[Tensor, "b c"], *, beam: int = 32
    ) -> Float64[Tensor, " b"]:
        """Log-probability of a multiset of each input, over all orders of its labels: by this, `search` ranks.

        Args:
            x: Inputs.
            counts: The multisets, such as those that `predict` gives.
            beam: As for `search`.
        """
        raise NotImplementedError

    def search(self, x: Shaped[Tensor, "b ..."], *, k: int = 5, beam: int = 32) -> Ranked:
        """The k most probable multisets: of a head exactly; of a policy those that a beam search finds.

        The greedy answer of a policy is among those that the search looks at. What a head predicts need not be its most
        probable multiset: `Slots` takes the most probable class of each slot.

        Args:
            x: Inputs.
            k: How many multisets.
            beam: Largest number of prefixes of one size to extend. What is exact and what is estimated: see
                `search.Search`.

        Example:
            >>> from torchmultiset.encoders import MLPEncoder
            >>> from torchmultiset.policies import FeedForwardPolicy
            >>> policy = FeedForwardPolicy(2, memory=128)
            >>> predictor = Predictor(MLPEncoder(7), policy, classes=["cat", "dog"], max_size=3)
            >>> counts, log_probability = predictor.search(torch.rand(4, 7), k=10)  # there are no others
            >>> counts.shape, log_probability.exp().sum(1)
            (torch.Size([4, 10, 2]), tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64))
        """
        raise NotImplementedError

    def exact_beam(self, size: int) -> int:
        """The beam with which multisets of up to `size` labels are scored exactly."""
        raise NotImplementedError

    def count_probabilities(
        self, x: Shaped[Tensor, "b ..."], *, samples: int, generator: torch.Generator
    ) -> Float64[Tensor, "b c m"]:
        """How probable each count 0, 1, ..., `max_size` of each class is.

        Exact for a head. For a policy, shares of rollouts in which labels, and the place to stop, are sampled; all
        inputs are given the same random numbers, so that the result for one does not depend on the others.

        Args:
            x: Inputs.
            samples: How many rollouts.
            generator: Where their randomness comes from.
        """
        raise NotImplementedError

    def graph_outputs(self, x: Shaped[Tensor, "b ..."]) -> dict[str, Tensor]:
        """What an exported graph computes, by name: ``counts`` and ``probabilities`` at least."""
        raise NotImplementedError

    def belief(self, x: Shaped[Tensor, "b ..."]) -> Belief:  # noqa: ARG002
        """The distribution over multisets that a head gives for each input, with those of counts and sizes.

        Where it is known how many labels there are, say 3, ``belief(x).given_size(3).best()`` is the most probable
        multiset of that size.

        Raises:
            ValueError: The model has a policy, or a head without probabilities.
        """
        raise ValueError(f"{self.kind} is a policy and gives no distribution in closed form: use `search`")

    @torch.no_grad()
    def predict(self, x: Shaped[Tensor, "b ..."]) -> Int64[Tensor, "b c"]:
        """Predicted counts (B, C), decoded as `decoding` says."""
        with self.evaluating():
            return self.decode(x).counts

    @torch.no_grad()
    def predict_labels(self, x: Shaped[Tensor, "b ..."]) -> list[list[str]]:
        """Predicted multisets as lists of class names, in the order of the classes."""
        rows = to_labels(self.predict(x)).tolist()
        return [[self.classes[label] for label in row if label >= 0] for row in rows]

    @torch.no_grad()
    def explain(self, x: Shaped[Tensor, "b ..."], *, best: int = 0, beam: int = BEAM) -> Prediction:
        """Predicted multisets with confidence, distributions and, for a policy, the sequence of labels.

        Args:
            x: Inputs.
            best: Search for so many most probable multisets, and predict the first of them; 0: as `decoding` says.
            beam: As for `search`, which also gives the confidence. Wider is more exact and takes longer.
        """
        with self.evaluating():
            prediction, ranked = self._decode_and_rank(x, max(best, int(self.decoding == "search")), beam)
        if ranked is None:
            return prediction
        confidence = ranked.log_probability[:, 0].exp()
        shown = ranked if best else None
        return prediction._replace(counts=ranked.counts[:, 0], confidence=confidence, best=shown)

    def save(self, folder: str | Path, *, record: Mapping[str, Any] | None = None) -> None:
        """Write the predictor to a folder: weights as safetensors, and ``predictor.json`` with all the rest.

        The file of the weights has the beginning of their SHA-256 in its name, so ``predictor.json`` names it. Putting
        that in place replaces one predictor by another at once: a folder always holds the old one or the new one.

        Args:
            folder: Made if need be; a predictor that is there is replaced. One process at a time may write to it.
            record: What else to keep, such as how it was trained and how good it is; anything that JSON can hold.
                None: what it was loaded with.
        """
        description = {
            "torchmultiset": __version__,
            "classes": self.classes,
            "max_size": self.max_size,
            "min_size": self.min_size,
            "stop": self.stop,
            "decoding": self.decoding,
            "encoder": describe(self.encoder, ENCODERS.classes),
            **self._description(),
        }
        write_saved(Path(folder), self.weights(), description, self.record if record is None else record)

    def _description(self) -> dict[str, Any]:
        """What `save` writes about the policy or the head."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """A copy of the state dict as it is saved: tensors of their own, which safetensors wants, tied or not."""
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
        """Read a predictor that `save` wrote; nothing in it is executed.

        Args:
            folder: Where it is; or the name of one that comes with the package, see `shipped`.
            encoder: Needed if the predictor was saved with an encoder of one's own: one of the same make, whose
                weights are then loaded.
            policy: The same for a policy of one's own.
            head: The same for a head of one's own.
        """
        folder = locate(folder)
        description, state = read_saved(folder)
        try:
            with torch.random.fork_rng(devices=[]):  # the random weights that modules are made with
                if encoder is None:
                    encoder = make(description["encoder"], ENCODERS.classes, "encoder", folder)
                module = policy if head is None else head
                if module is None and "head" in description:
                    module = make(description["head"], HEADS.classes, "head", folder)
                elif module is None:  # format 1 called a head a policy, too
                    module = make(description["policy"], POLICIES.classes | HEADS.classes, "policy", folder)
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
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder / DESCRIPTION} is damaged: {error!r}") from error
        types = {value.dtype for value in state.values() if value.is_floating_point()}
        if len(types) == 1:  # it may have been saved in another precision than modules are made in
            predictor.to(types.pop())
        try:
            predictor.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"the weights in {folder} do not fit this encoder and policy: {error}") from error
        return predictor.eval()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In evaluation mode for a while: normalisation and dropout as for predictions."""
        # Module by module: some may be in evaluation mode for good, such as an encoder that is frozen.
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


def declared(module: nn.Module, name: str) -> int:
    """A number that a policy or a head, maybe one of the user's own, has to have as an attribute."""
    try:
        return operator.index(getattr(module, name))
    except (AttributeError, TypeError):
        what = type(module).__name__
        raise TypeError(f"policy must have a whole number `{name}`, see Policy, but {what} has none") from None
