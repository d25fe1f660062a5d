"""The whole model: encoder, policy, heads and the way to stop, in one module that predicts, saves and loads."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from torchmultiset import __version__
from torchmultiset._checks import check, check_one_of
from torchmultiset.distributions import Belief, Ranked
from torchmultiset.encoders import ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.heads import (
    CellCounts,
    CountTable,
    OneStep,
    PoissonCounts,
    PowerMultiset,
    Readout,
    RegressedCounts,
    Slots,
    StopHead,
    ValueHead,
)
from torchmultiset.model.config import Stop
from torchmultiset.model.serialization import DESCRIPTION, describe, make, read_description, read_saved, write_saved
from torchmultiset.model.shipped import locate
from torchmultiset.multiset import from_labels, to_labels
from torchmultiset.policies import ConvLSTMPolicy, CountState, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import Choose, Step, greedy, rollout, until_end, until_size, until_stop
from torchmultiset.search import Search

__all__ = ["Output", "Prediction", "Predictor", "read_description"]

ENCODERS: Mapping[str, type[nn.Module]] = {c.__name__: c for c in (ConvEncoder, MLPEncoder, PretrainedEncoder)}
POLICIES: Mapping[str, type[nn.Module]] = {
    c.__name__: c
    for c in (
        *(ConvLSTMPolicy, LSTMPolicy, FeedForwardPolicy, TransformerPolicy),
        *(CellCounts, CountTable, PoissonCounts, RegressedCounts, Slots, PowerMultiset, OneStep),
    )
}


class Output(NamedTuple):
    """Everything that a loss may need; B examples, T steps, C classes (C + 1 with END), D features."""

    logits: Float[Tensor, "b t c"]
    """Scores, each before its label was named; of a readout, what it says, in a shape of its own."""
    features: Float[Tensor, "b t d"]
    """What they were read from; nothing for a readout."""
    labels: Int64[Tensor, "b t"]
    """Labels that were named; none for a readout."""
    stop: Float[Tensor, "b t"] | None = None
    """Scores of stopping, with ``stop="policy"``."""
    value: Float[Tensor, "b t"] | None = None
    """Expected reward-to-go, if the predictor has a baseline."""


class Prediction(NamedTuple):
    """Predicted multisets, and how they came about."""

    counts: Int64[Tensor, "b c"]
    sequence: Int64[Tensor, "b t"]
    """Labels in the order in which they were named, -1 after the last; of a readout, in ascending order."""
    confidence: Float[Tensor, " b"]
    """Product of the probabilities of all choices made, stopping included: how sure the policy was of this sequence. Of
    a readout, the probability of the multiset; NaN if it does not know."""
    probabilities: Float[Tensor, "b t c"]
    """Distribution over the labels at each step. Of a readout, how probable at least 1, 2, ... of each class are; or,
    if it gives no probabilities, the share of each class among the labels."""


class Predictor(nn.Module):
    """Maps inputs to multisets of class labels.

    Args:
        encoder: Maps inputs to a memory; any module.
        policy: A policy for that memory, or a `Readout`. With ``stop="end"`` it has one class more than `classes`.
        classes: Names of the classes, C of them.
        max_size: Size of the largest multiset. No prediction is larger, but those of a `OneStep` and of
            `RegressedCounts`: each class is rounded by itself, as in the paper, which may come to more.
        stop: ``"fixed"``: all multisets have `max_size` labels. ``"policy"``: a stop head says when to stop.
            ``"end"``: the policy names END. A readout has neither: ``"policy"`` leaves the size to it.
        baseline: Whether there is a value head, for REINFORCE.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder
        >>> from torchmultiset.policies import LSTMPolicy
        >>> _ = torch.manual_seed(0)
        >>> predictor = Predictor(MLPEncoder(7), LSTMPolicy(2, memory=128), classes=["cat", "dog"], max_size=3)
        >>> predictor.predict(torch.rand(4, 7)).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        encoder: nn.Module,
        policy: nn.Module,
        classes: Sequence[str],
        *,
        max_size: int,
        stop: Stop = "policy",
        baseline: bool = False,
    ) -> None:
        super().__init__()
        check_one_of("stop", stop, get_args(Stop))
        check(max_size >= 1, "max_size", "at least 1", max_size)
        check(len(set(classes)) == len(classes) >= 1, "classes", "different names, at least one", list(classes))
        wanted = len(classes) + (stop == "end")
        what = f"one of {wanted} classes{', END included' if stop == 'end' else ''}"
        check(_declared(policy, "num_classes") == wanted, "policy", what, policy.num_classes)
        self.sequential = not isinstance(policy, Readout)
        """Whether labels are named one after another."""
        self.probabilistic = not isinstance(policy, Readout) or policy.probabilistic
        """Whether it knows how probable a multiset is."""
        if not self.sequential:
            check(stop != "end", "stop", "'fixed' or 'policy' for a readout, which names no END", stop)
            check(not baseline, "baseline", "False for a readout, which REINFORCE cannot teach", baseline)
        self.encoder = encoder
        self.policy = policy
        self.classes = tuple(classes)
        self.max_size = operator.index(max_size)
        self.stop = stop
        self.stop_head = StopHead(_declared(policy, "features")) if stop == "policy" and self.sequential else None
        self.value_head = ValueHead(_declared(policy, "features")) if baseline else None
        self.record: dict[str, Any] = {}
        """What was saved with it."""

    @property
    def steps(self) -> int:
        """How many labels a rollout names: one more than the largest multiset has, unless all have as many."""
        return self.max_size if self.stop == "fixed" else self.max_size + 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Sizes of the smallest and of the largest multiset that can be predicted."""
        return self.max_size if self.stop == "fixed" else 0, self.max_size

    def forward(
        self,
        x: Shaped[Tensor, "b ..."],
        choose: Choose = greedy,
        *,
        early: bool = False,
        at: Int64[Tensor, "b s c"] | None = None,
    ) -> Output:
        """Encode, roll out, and read the heads; or let a readout say what it has to say.

        Args:
            x: Inputs; images (B, channels, H, W) as uint8 or float in [0, 1].
            choose: How to name a label from the scores.
            early: Whether the rollout may end as soon as all examples have stopped.
            at: No rollout: what the policy says where these labels have been named, S multisets (B, S, C) for each
                input. For a policy that sees only counts.
        """
        return self._decode(self.encoder(x), choose, early=early, at=at)

    def _decode(self, memory: Tensor, choose: Choose, *, early: bool, at: Tensor | None = None) -> Output:
        if not self.sequential:
            scores: Tensor = self.policy(memory)
            return Output(scores, scores[..., :0], _no_labels(scores))
        if at is None:
            until = self._finished if early and self.stop != "fixed" else None
            logits, features, labels = rollout(self.policy, memory, choose, self.steps, until=until)  # type: ignore[arg-type]
        else:
            logits, features = _where_named(self.policy, memory, at)
            labels = _no_labels(logits)
        return Output(
            logits,
            features,
            labels,
            stop=None if self.stop_head is None else self.stop_head(features),
            value=None if self.value_head is None else self.value_head(features),
        )

    @torch.no_grad()
    def predict(self, x: Shaped[Tensor, "b ..."]) -> Int64[Tensor, "b c"]:
        """Predicted counts (B, C), decoded greedily."""
        with self.evaluating():
            return self.counts(self.forward(x, early=True))

    @torch.no_grad()
    def predict_labels(self, x: Shaped[Tensor, "b ..."]) -> list[list[str]]:
        """Predicted multisets as lists of class names, in the order of the classes."""
        rows = to_labels(self.predict(x)).tolist()
        return [[self.classes[label] for label in row if label >= 0] for row in rows]

    @torch.no_grad()
    def explain(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Predicted multisets with the sequence in which labels were named, confidence and distributions."""
        with self.evaluating():
            output = self.forward(x, early=True)
        counts = self.counts(output)
        if isinstance(self.policy, Readout):
            probabilities = self.policy.probabilities(output.logits, *self.sizes)
            confidence = torch.full_like(probabilities[:, 0, 0], torch.nan)
            if self.probabilistic:
                confidence = self.policy.believe(output.logits, *self.sizes).log_probability(counts).exp()
            return Prediction(counts, to_labels(counts), confidence.to(probabilities.dtype), probabilities)
        probabilities = output.logits.softmax(-1)
        kept = self._kept(output)
        chosen = probabilities.gather(2, output.labels[..., None]).squeeze(-1)
        confidence = torch.where(kept, chosen, 1.0).prod(-1)
        if output.stop is not None:
            ends = output.stop.sigmoid()
            confidence = confidence * torch.where(kept, 1 - ends, 1.0).prod(-1)
        else:
            ends = probabilities[..., -1]  # of END, where there is one
        if self.stop != "fixed":
            slot = kept.sum(-1, keepdim=True)
            # The last slot always ends, whatever anyone thinks of it.
            confidence = confidence * torch.where(slot < self.max_size, ends.gather(1, slot), 1.0).squeeze(-1)
        return Prediction(counts, output.labels.masked_fill(~kept, -1), confidence, probabilities)

    @torch.no_grad()
    def search(self, x: Shaped[Tensor, "b ..."], *, k: int = 5, beam: int = 32) -> Ranked:
        """The k most probable multisets: of a readout exactly; of a policy those that a beam search finds.

        The greedy answer of a policy is among those that the search looks at. What a readout predicts need not be its
        most probable multiset: `Slots` lets each slot say what it says most.

        Args:
            x: Inputs.
            k: How many multisets.
            beam: The most prefixes of one size to go on with. What is exact and what is estimated: see `search.Search`.

        Example:
            >>> from torchmultiset.encoders import MLPEncoder
            >>> from torchmultiset.policies import FeedForwardPolicy
            >>> policy = FeedForwardPolicy(2, memory=128)
            >>> predictor = Predictor(MLPEncoder(7), policy, classes=["cat", "dog"], max_size=3)
            >>> counts, log_probability = predictor.search(torch.rand(4, 7), k=10)  # there are no others
            >>> counts.shape, log_probability.exp().sum(1)
            (torch.Size([4, 10, 2]), tensor([1.0000, 1.0000, 1.0000, 1.0000], dtype=torch.float64))
        """
        with self.evaluating():
            if not self.sequential:
                return self.belief(x).ranked(k)
            search, memory = self._search(beam), self.encoder(x)
            return search.ranked(memory, k, among=self.counts(self._decode(memory, greedy, early=True)))

    @torch.no_grad()
    def log_probability(
        self, x: Shaped[Tensor, "b ..."], counts: Int64[Tensor, "b c"], *, beam: int = 32
    ) -> Float64[Tensor, " b"]:
        """Log-probability of a multiset of each input, over all orders of its labels: by this, `search` ranks.

        Args:
            x: Inputs.
            counts: The multisets, such as those that `predict` gives.
            beam: As for `search`.
        """
        with self.evaluating():
            if not self.sequential:
                return self.belief(x).log_probability(counts)
            return self._search(beam).log_probability(self.encoder(x), counts)

    @torch.no_grad()
    def belief(self, x: Shaped[Tensor, "b ..."]) -> Belief:
        """What a readout believes about each input: a distribution over multisets, with those of counts and sizes.

        Where it is known how many labels there are, say 3, ``belief(x).given_size(3).best()`` is the most probable
        multiset of as many.
        """
        check(not self.sequential, "policy", "a readout; of a policy see `search`", type(self.policy).__name__)
        if not self.probabilistic:
            raise ValueError(
                f"{type(self.policy).__name__} gives no probabilities of multisets: train with an objective that does,"
                " such as 'multi' or 'counts'"
            )
        with self.evaluating():
            assert isinstance(self.policy, Readout)
            return self.policy.believe(self.forward(x).logits, *self.sizes)

    def counts(self, output: Output) -> Int64[Tensor, "b c"]:
        """The counts (B, C) that an output of `forward` comes to."""
        if isinstance(self.policy, Readout):
            return self.policy.counts(output.logits, *self.sizes)
        return from_labels(output.labels, len(self.classes), where=self._kept(output))

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
            "stop": self.stop,
            "baseline": self.value_head is not None,
            "encoder": describe(self.encoder, ENCODERS),
            "policy": describe(self.policy, POLICIES),
        }
        write_saved(Path(folder), self.weights(), description, self.record if record is None else record)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the state dict as it is saved: tensors of their own, which safetensors wants, tied or not."""
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in self.state_dict().items()}

    @classmethod
    def load(
        cls, folder: str | Path, *, encoder: nn.Module | None = None, policy: nn.Module | None = None
    ) -> Predictor:
        """Read a predictor that `save` wrote; nothing in it is executed.

        Args:
            folder: Where it is; or the name of one that comes with the package, see `models`.
            encoder: Needed if the predictor was saved with an encoder of one's own: one of the same make, whose
                weights are then loaded.
            policy: The same for a policy of one's own.
        """
        folder = locate(folder)
        description, state = read_saved(folder)
        try:
            with torch.random.fork_rng(devices=[]):  # the random weights that modules are made with
                predictor = cls(
                    make(description["encoder"], ENCODERS, "encoder", folder) if encoder is None else encoder,
                    make(description["policy"], POLICIES, "policy", folder) if policy is None else policy,
                    description["classes"],
                    max_size=description["max_size"],
                    stop=description["stop"],
                    baseline=description["baseline"],
                )
            predictor.record = description["record"]
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

    def _kept(self, output: Output) -> Shaped[Tensor, "b t"]:
        """Mask (B, T) of the labels that belong to the prediction."""
        # The last slot ends; in a rollout that ended early it does so because all examples had stopped by then.
        if output.stop is not None:
            return until_stop(output.stop)
        if self.stop == "end":
            return until_end(output.labels, len(self.classes))
        size = torch.full(output.labels.shape[:1], self.max_size, device=output.labels.device)
        return until_size(size, output.labels.shape[1])

    def _search(self, beam: int) -> Search:
        end = self.stop == "end"
        return Search(self.policy, len(self.classes), self.max_size, beam, self.stop_head, end)  # type: ignore[arg-type]

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

    def _finished(self, step: Step, labels: Tensor) -> Tensor:
        if self.stop_head is None:
            return labels == len(self.classes)
        done: Tensor = self.stop_head(step.features) > 0
        return done


def _no_labels(scores: Tensor) -> Int64[Tensor, "b 0"]:
    return torch.zeros(scores.shape[0], 0, dtype=torch.int64, device=scores.device)


def _declared(policy: nn.Module, name: str) -> int:
    """A number that a policy, maybe one of the user's own, has to tell of itself."""
    try:
        return operator.index(getattr(policy, name))
    except (AttributeError, TypeError):
        what = type(policy).__name__
        raise TypeError(f"policy must have a whole number `{name}`, see Policy, but {what} has none") from None


def _where_named(policy: nn.Module, memory: Tensor, at: Int64[Tensor, "b s c"]) -> tuple[Tensor, Tensor]:
    """Scores and features (B, S, ...) of a policy where these labels have been named."""
    state = policy.start(memory)  # type: ignore[operator]
    what = "one that sees only counts: feed-forward or transformer"
    check(isinstance(state, CountState), "policy", what, type(policy).__name__)
    rows = torch.arange(len(at), device=at.device).repeat_interleave(at.shape[1])
    state = policy.select(state, rows)._replace(named=at.flatten(0, 1))  # type: ignore[operator]
    step, _ = policy.step(state, None)  # type: ignore[operator]
    return step.logits.unflatten(0, at.shape[:2]), step.features.unflatten(0, at.shape[:2])
