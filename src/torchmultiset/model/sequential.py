"""Models with a policy, which emits one label at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from torchmultiset._arguments import declared
from torchmultiset._checks import check
from torchmultiset._memory import Memory, batch_size, repeat_memory
from torchmultiset.distributions import Ranked
from torchmultiset.heads import StopHead, ValueHead
from torchmultiset.metrics import step_entropy
from torchmultiset.model.outputs import Decoding, Prediction, SequentialOutput, StepScores
from torchmultiset.model.predictor import BEAM, Predictor
from torchmultiset.model.registry import POLICIES
from torchmultiset.model.serialization import describe_module
from torchmultiset.multiset import from_labels
from torchmultiset.policies import CountState
from torchmultiset.rollout import Choose, Step, greedy, rollout, until_end, until_size, until_stop
from torchmultiset.search import Search

__all__ = ["SequentialPredictor"]


class SequentialPredictor(Predictor):
    """Predictor with an encoder, a policy, and stop and value heads. `Predictor` documents the arguments."""

    probabilistic = True

    def _add(self, module: nn.Module, baseline: bool) -> None:
        self.policy = module
        self.stop_head = StopHead(declared(module, "features")) if self.stop == "policy" else None
        self.value_head = ValueHead(declared(module, "features")) if baseline else None

    @property
    def module(self) -> nn.Module:
        """Policy of the model."""
        return self.policy

    @property
    def steps(self) -> int:
        """Number of steps of a rollout: `max_size`, plus one for the decision to stop unless the size is fixed."""
        return self.max_size if self.stop == "fixed" else self.max_size + 1

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """Decoding methods that the model supports: a search needs a policy that selects states."""
        return ("greedy", "search") if self.probabilistic and hasattr(self.policy, "select") else ("greedy",)

    def forward(self, x: Shaped[Tensor, "b ..."], choose: Choose = greedy, *, early: bool = False) -> SequentialOutput:
        """Encode the inputs, roll out the policy, and apply the stop and value heads.

        Args:
            x: Inputs; images (B, channels, H, W) as uint8 or float in [0, 1].
            choose: Function that chooses a label from the scores.
            early: Whether the rollout may end as soon as all examples have stopped.
        """
        return self._roll_out(self.encoder(x), choose, early=early)

    def rollout(self, x: Shaped[Tensor, "b ..."], choose: Choose, *, repeats: int = 1) -> SequentialOutput:
        """Roll out the policy for training.

        Args:
            x: Inputs.
            choose: Function that chooses a label from the scores.
            repeats: Number of rollouts per input, in consecutive rows; each input is encoded once.
        """
        memory = self.encoder(x)
        return self._roll_out(memory if repeats == 1 else repeat_memory(memory, repeats), choose, early=False)

    def _roll_out(self, memory: Memory, choose: Choose, *, early: bool) -> SequentialOutput:
        until = self._until_stopped() if early and self.stop != "fixed" else None
        if self.end and self.min_size > 0:
            choose = _not_before(self.min_size, choose)
        logits, features, labels = rollout(self.policy, memory, choose, self.steps, until=until)  # type: ignore[arg-type]
        slots = torch.arange(logits.shape[1], device=logits.device)
        value = None if self.value_head is None else self.value_head(features)
        logits, stop = self._scores(logits, features, too_small=(slots < self.min_size)[None])
        return SequentialOutput(logits, features, labels, stop, value)

    def at(self, x: Shaped[Tensor, "b ..."], emitted: Int64[Tensor, "b s c"]) -> StepScores:
        """Compute the scores of a policy that sees only counts after the given labels, without a rollout.

        Args:
            x: Inputs.
            emitted: Counts (B, S, C) of S multisets of emitted labels per input.
        """
        memory = self.encoder(x)
        state = self.policy.start(memory)  # type: ignore[operator]
        what = "one that sees only counts: feed-forward or transformer"
        check(isinstance(state, CountState), "policy", what, self.kind)
        rows = torch.arange(len(emitted), device=emitted.device).repeat_interleave(emitted.shape[1])
        state = self.policy.select(state, rows)._replace(named=emitted.flatten(0, 1))  # type: ignore[operator]
        step, _ = self.policy.step(state, None)  # type: ignore[operator]
        logits, features = (part.unflatten(0, emitted.shape[:2]) for part in step)
        return self._scores(logits, features, too_small=emitted.sum(-1) < self.min_size)

    def _scores(self, logits: Tensor, features: Tensor, *, too_small: Tensor) -> StepScores:
        """Apply the stop head; where too few labels were emitted, rule out stopping and END."""
        stop = None if self.stop_head is None else self.stop_head(features)
        if self.min_size > 0 and self.stop != "fixed":
            stop = None if stop is None else stop.masked_fill(too_small, -torch.inf)
            if self.end:
                logits = torch.where(too_small[..., None], _without_end(logits), logits)
        return StepScores(logits, stop)

    def counts(self, output: SequentialOutput) -> Int64[Tensor, "b c"]:
        """Return the counts (B, C) of the labels that a rollout emitted before it stopped."""
        return from_labels(output.labels, len(self.classes), where=self._kept(output))

    def decode(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Return the prediction, with the distribution at each step of greedy decoding but without confidence."""
        memory = self.encoder(x)
        prediction = self._explained(self._roll_out(memory, greedy, early=True))
        if self.decoding == "greedy":
            return prediction
        ranked = self._search(BEAM).ranked(memory, 1, among=prediction.counts)
        return prediction._replace(counts=ranked.counts[:, 0])

    def _explained(self, output: SequentialOutput) -> Prediction:
        return Prediction(
            self.counts(output),
            output.logits.softmax(-1),
            "steps",
            step_entropy(output.logits),
            sequence=output.labels.masked_fill(~self._kept(output), -1),
            stop=None if output.stop is None else output.stop.sigmoid(),
        )

    def _decode_and_rank(self, x: Shaped[Tensor, "b ..."], k: int, beam: int) -> tuple[Prediction, Ranked | None]:
        memory = self.encoder(x)
        prediction = self._explained(self._roll_out(memory, greedy, early=True))
        if k:
            return prediction, self._search(beam).ranked(memory, k, among=prediction.counts)
        if self.searchable:
            confidence = self._search(beam).log_probability(memory, prediction.counts).exp()
        else:
            confidence = prediction.counts.new_full(prediction.counts.shape[:1], torch.nan, dtype=torch.float64)
        return prediction._replace(confidence=confidence), None

    @torch.no_grad()
    def search(self, x: Shaped[Tensor, "b ..."], *, k: int = 5, beam: int = 32) -> Ranked:
        """Return the k most probable multisets found by beam search; see `Predictor.search`."""
        with self.evaluating():
            memory, search = self.encoder(x), self._search(beam)
            return search.ranked(memory, k, among=self.counts(self._roll_out(memory, greedy, early=True)))

    @torch.no_grad()
    def log_probability(
        self, x: Shaped[Tensor, "b ..."], counts: Int64[Tensor, "b c"], *, beam: int = 32
    ) -> Float64[Tensor, " b"]:
        """Return the log-probability of one multiset per input; see `Predictor.log_probability`."""
        with self.evaluating():
            return self._search(beam).log_probability(self.encoder(x), counts)

    def exact_beam(self, size: int) -> int:
        """Return the maximum number of prefixes of one size; with `counts_only`, orders of the same labels are one."""
        counts_only = getattr(self.policy, "counts_only", False)
        return math.comb(size, size // 2) if counts_only else math.factorial(size)

    @torch.no_grad()
    def count_probabilities(
        self, x: Shaped[Tensor, "b ..."], *, samples: int, generator: torch.Generator
    ) -> Float64[Tensor, "b c m"]:
        """Return the relative frequency of each count of each class over sampled rollouts."""
        labels, stops = torch.rand(2, samples, self.steps, generator=generator, dtype=torch.float64)
        with self.evaluating():
            memory = self.encoder(x)
            n = batch_size(memory)
            output = self._roll_out(repeat_memory(memory, samples), _invert_cdf(labels.repeat(n, 1)), early=False)
            if output.stop is not None:  # replace probabilities by sampled decisions
                drawn = stops.repeat(n, 1).to(output.stop.device) < output.stop.double().sigmoid()
                output = output._replace(stop=torch.where(drawn, 1.0, -1.0))
            counts = self.counts(output).view(n, samples, -1)
        return one_hot(counts, self.max_size + 1).double().mean(1)

    def graph_outputs(self, x: Shaped[Tensor, "b ..."]) -> dict[str, Tensor]:
        """Return counts, the sequence of labels, and probabilities.

        Raises:
            ValueError: `decoding` is ``"search"``, which cannot be exported.
        """
        what = "'greedy' for an exported graph, which cannot search: set predictor.decoding = 'greedy'"
        check(self.decoding == "greedy", "decoding", what, self.decoding)
        found = self._explained(self.forward(x))
        assert found.sequence is not None
        return {"counts": found.counts, "sequence": found.sequence, "probabilities": found.probabilities}

    def _description(self) -> dict[str, Any]:
        return {"policy": describe_module(self.policy, POLICIES.classes), "baseline": self.value_head is not None}

    def _kept(self, output: SequentialOutput) -> Shaped[Tensor, "b t"]:
        """Return the mask (B, T) of the labels that belong to the prediction."""
        # The last step counts as a stop; a rollout ends early only after all examples have stopped.
        if output.stop is not None:
            return until_stop(output.stop)
        if self.end:
            return until_end(output.labels, len(self.classes))
        size = torch.full(output.labels.shape[:1], self.max_size, device=output.labels.device)
        return until_size(size, output.labels.shape[1])

    def _search(self, beam: int) -> Search:
        return Search(self.policy, len(self.classes), self.max_size, beam, self.stop_head, self.end, self.min_size)  # type: ignore[arg-type]

    def _until_stopped(self) -> Callable[[Step, Tensor], Tensor]:
        """Return a function that decides which examples stop at each step of one rollout."""
        slots = count()

        def stopped(step: Step, labels: Tensor) -> Tensor:
            if next(slots) < self.min_size:
                return torch.zeros_like(labels, dtype=torch.bool)
            if self.stop_head is None:
                return labels == len(self.classes)
            done: Tensor = self.stop_head(step.features) > 0
            return done

        return stopped


def _not_before(size: int, choose: Choose) -> Choose:
    """Return a strategy that rules out END, the last class, until `size` labels have been emitted."""

    def limited(t: int, logits: Tensor, named: Tensor) -> Tensor:
        return choose(t, _without_end(logits) if t < size else logits, named)

    return limited


def _without_end(logits: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
    return pad(logits[..., :-1], (0, 1), value=-torch.inf)


def _invert_cdf(draws: Float64[Tensor, "n t"]) -> Choose:
    """Return a strategy that samples labels by inverting the cumulative distribution at numbers in [0, 1)."""

    def choose(t: int, logits: Tensor, named: Tensor) -> Tensor:  # noqa: ARG001
        edges = logits.double().softmax(-1).cumsum(-1)
        drawn = draws[:, t].to(logits.device)[:, None] * edges[:, -1:]
        return torch.searchsorted(edges, drawn, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)

    return choose
