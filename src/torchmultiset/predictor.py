"""The whole model: encoder, policy, heads and the way to stop, in one module that predicts, saves and loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from torchmultiset._checks import check, check_one_of
from torchmultiset._saved import DESCRIPTION, describe, make, read_description, read_saved, write_saved
from torchmultiset.config import Stop
from torchmultiset.encoders import ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.heads import SizeHead, StopHead, ValueHead
from torchmultiset.models import locate
from torchmultiset.multiset import from_labels, to_labels
from torchmultiset.policies import (
    ConvLSTMPolicy,
    FeedForwardPolicy,
    LSTMPolicy,
    OneStep,
    TransformerPolicy,
    round_counts,
)
from torchmultiset.rollout import Choose, Step, greedy, rollout
from torchmultiset.search import Ranked, Search
from torchmultiset.termination import until_end, until_size, until_stop

__all__ = ["Output", "Prediction", "Predictor", "read_description"]

ENCODERS: Mapping[str, type[nn.Module]] = {c.__name__: c for c in (ConvEncoder, MLPEncoder, PretrainedEncoder)}
POLICIES: Mapping[str, type[nn.Module]] = {
    c.__name__: c for c in (ConvLSTMPolicy, LSTMPolicy, FeedForwardPolicy, TransformerPolicy, OneStep)
}


class Output(NamedTuple):
    """Everything that a loss may need; B examples, T steps, C classes (C + 1 with END), D features."""

    logits: Float[Tensor, "b t c"]
    """Scores, each before its label was named; for a one-step model T is 1."""
    features: Float[Tensor, "b t d"]
    labels: Int64[Tensor, "b t"]
    """Labels that were named; for a one-step model, which names none, the most probable one."""
    stop: Float[Tensor, "b t"] | None = None
    """Scores of stopping, with ``stop="policy"``."""
    value: Float[Tensor, "b t"] | None = None
    """Expected reward-to-go, if the predictor has a baseline."""
    size: Float[Tensor, " b"] | None = None
    """Expected size, of a one-step model."""


class Prediction(NamedTuple):
    """Predicted multisets, and how they came about."""

    counts: Int64[Tensor, "b c"]
    sequence: Int64[Tensor, "b t"]
    """Labels in the order in which they were named, -1 after the last; for a one-step model, in ascending order."""
    confidence: Float[Tensor, " b"]
    """Product of the probabilities of all choices made, stopping included: how sure the policy was of this sequence.
    NaN for a one-step model."""
    probabilities: Float[Tensor, "b t c"]
    """Distribution over the labels at each step."""


class Predictor(nn.Module):
    """Maps inputs to multisets of class labels.

    Args:
        encoder: Maps inputs to a memory; any module.
        policy: A policy for that memory, or a `OneStep`. With ``stop="end"`` it has one class more than `classes`.
        classes: Names of the classes, C of them.
        max_size: Size of the largest multiset. No prediction is larger, but that of a `OneStep`: the shares of the
            classes times a predicted size, each rounded by itself as in the paper, may come to more.
        stop: ``"fixed"``: all multisets have `max_size` labels. ``"policy"``: a stop head says when to stop.
            ``"end"``: the policy names END. A `OneStep` predicts the size itself and takes no notice of the first two.
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
        check(bool(policy.num_classes == wanted), "policy", what, policy.num_classes)
        self.one_step = isinstance(policy, OneStep)
        if self.one_step:
            check(stop != "end", "stop", "'fixed' or 'policy' for a one-step model, which names no END", stop)
            check(not baseline, "baseline", "False for a one-step model, which REINFORCE cannot teach", baseline)
        self.encoder = encoder
        self.policy = policy
        self.classes = tuple(classes)
        self.max_size = max_size
        self.stop = stop
        width = policy.features
        assert isinstance(width, int)
        self.stop_head = StopHead(width) if stop == "policy" and not self.one_step else None
        self.value_head = ValueHead(width) if baseline else None
        self.size_head = SizeHead(width) if self.one_step else None
        self.record: dict[str, Any] = {}
        """What was saved with it."""

    @property
    def steps(self) -> int:
        """How many labels a rollout names: one more than the largest multiset has, unless all have as many."""
        return self.max_size if self.stop == "fixed" else self.max_size + 1

    def forward(self, x: Shaped[Tensor, "b ..."], choose: Choose = greedy, *, early: bool = False) -> Output:
        """Encode, roll out, and read the heads.

        Args:
            x: Inputs; images (B, channels, H, W) as uint8 or float in [0, 1].
            choose: How to name a label from the scores.
            early: Whether the rollout may end as soon as all examples have stopped.
        """
        return self._decode(self.encoder(x), choose, early=early)

    def _decode(self, memory: Tensor, choose: Choose, *, early: bool) -> Output:
        if self.size_head is not None:
            logits, features = self.policy(memory)
            return Output(
                logits[:, None], features[:, None], logits.argmax(-1, keepdim=True), size=self.size_head(features)
            )
        until = self._finished if early and self.stop != "fixed" else None
        logits, features, labels = rollout(self.policy, memory, choose, self.steps, until=until)  # type: ignore[arg-type]
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
        with self._evaluating():
            return self.counts(self.forward(x, early=True))

    @torch.no_grad()
    def predict_labels(self, x: Shaped[Tensor, "b ..."]) -> list[list[str]]:
        """Predicted multisets as lists of class names, in the order of the classes."""
        rows = to_labels(self.predict(x)).tolist()
        return [[self.classes[label] for label in row if label >= 0] for row in rows]

    @torch.no_grad()
    def explain(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Predicted multisets with the sequence in which labels were named, confidence and distributions."""
        with self._evaluating():
            output = self.forward(x, early=True)
        counts = self.counts(output)
        probabilities = output.logits.softmax(-1)
        if self.one_step:
            unknown = torch.full((len(counts),), torch.nan, device=counts.device)
            return Prediction(counts, to_labels(counts), unknown, probabilities)
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
        """The k most probable multisets that a beam search finds, greedy's answer among those it looks at.

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
        search = self._search(beam)
        with self._evaluating():
            memory = self.encoder(x)
            return search.best(memory, k, among=self.counts(self._decode(memory, greedy, early=True)))

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
        search = self._search(beam)
        with self._evaluating():
            return search.log_probability(self.encoder(x), counts)

    def counts(self, output: Output) -> Int64[Tensor, "b c"]:
        """The counts (B, C) that an output of `forward` comes to."""
        if output.size is not None:
            return round_counts(output.logits[:, 0].softmax(-1) * output.size[:, None])
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
        from torchmultiset import __version__  # the package imports this module

        # Copies, because safetensors refuses tensors that share memory, such as tied weights.
        state = {name: value.clone(memory_format=torch.contiguous_format) for name, value in self.state_dict().items()}
        description = {
            "torchmultiset": __version__,
            "classes": self.classes,
            "max_size": self.max_size,
            "stop": self.stop,
            "baseline": self.value_head is not None,
            "encoder": describe(self.encoder, ENCODERS),
            "policy": describe(self.policy, POLICIES),
        }
        write_saved(Path(folder), state, description, self.record if record is None else record)

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
        if self.one_step:
            raise ValueError(
                "a one-step model gives no probabilities of multisets, because it names no labels one after another:"
                " train one with another objective, such as 'multi'"
            )
        end = self.stop == "end"
        return Search(self.policy, len(self.classes), self.max_size, beam, self.stop_head, end)  # type: ignore[arg-type]

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
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
