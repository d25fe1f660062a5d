"""Models with a one-shot head, which outputs the whole multiset in one pass."""

from __future__ import annotations

from typing import Any, get_args

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn
from torch.nn.functional import pad

from torchmultiset._checks import check
from torchmultiset._memory import Memory
from torchmultiset.distributions import Belief, Ranked, best_by_f1
from torchmultiset.encoders.optional import missing_cells
from torchmultiset.heads import OneShotHead
from torchmultiset.heads._base import probability_of_at_least
from torchmultiset.model.outputs import Decoding, Prediction
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import HEADS
from torchmultiset.model.serialization import describe_module

__all__ = ["OneShotPredictor"]


class OneShotPredictor(Predictor):
    """Predictor with an encoder and a `OneShotHead`. `Predictor` documents the arguments.

    Example:
        >>> from torchmultiset.encoders import MLPEncoder
        >>> from torchmultiset.heads import CountTable
        >>> head = CountTable(2, memory=128, most=3)
        >>> predictor = Predictor(MLPEncoder(7), head, classes=["cat", "dog"], max_size=3)
        >>> type(predictor).__name__, predictor.belief(torch.rand(4, 7)).count_probabilities().shape
        ('OneShotPredictor', torch.Size([4, 2, 4]))
    """

    head: OneShotHead

    def _add(self, module: nn.Module, baseline: bool) -> None:
        check(self.stop != "end", "stop", "'fixed' or 'policy' for a one-shot head, which emits no END", self.stop)
        check(not baseline, "baseline", "False for a one-shot head, which REINFORCE cannot train", baseline)
        assert isinstance(module, OneShotHead)
        for_sizes = getattr(module, "sizes", None)
        what = f"built for the predictor's sizes, {self.sizes}"
        check(for_sizes is None or tuple(for_sizes) == self.sizes, "head", what, for_sizes)
        self.head = module
        self.probabilistic = module.probabilistic

    @property
    def module(self) -> nn.Module:
        """Head of the model."""
        return self.head

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        """Decoding methods that the model supports: all if its head has probabilities."""
        return get_args(Decoding) if self.probabilistic else ("greedy",)

    def forward(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b n k"]:
        """Compute the scores of the head, in the shape that its loss expects."""
        scores: Tensor = self.head(self.encoder(x))
        return scores

    scores = forward

    def decode(self, x: Shaped[Tensor, "b ..."]) -> Prediction:
        """Return the prediction, with the distribution of the count of each class but without confidence."""
        return self._explained(self.forward(x))

    def _predicted(self, x: Shaped[Tensor, "b ..."]) -> Int64[Tensor, "b c"]:
        return self._counts(self.forward(x))

    def _explained(self, scores: Tensor) -> Prediction:
        counts = self._counts(scores)
        if not self.probabilistic:
            shares = self.head.probabilities(scores, *self.sizes)
            return Prediction(counts, shares, "shares", torch.special.entr(shares).sum(-1))
        belief = self.head.believe(scores, *self.sizes)
        exactly = belief.count_probabilities()
        probabilities = probability_of_at_least(exactly).to(scores.dtype)
        entropy = torch.special.entr(exactly).sum((1, 2)).to(scores.dtype)
        each = entropy[:, None].expand(probabilities.shape[:2])
        return Prediction(counts, probabilities, "at least", each, belief=belief)

    def _decode_and_rank(self, x: Shaped[Tensor, "b ..."], k: int, beam: int) -> tuple[Prediction, Ranked | None]:  # noqa: ARG002
        memory = self.encoder(x)
        scores = self.head(memory)
        prediction = self._explained(scores)._replace(places=self._places(x, memory, scores))
        belief = prediction.belief
        if belief is None:
            self._refuse(k > 0)
            nan = prediction.counts.new_full(prediction.counts.shape[:1], torch.nan, dtype=torch.float64)
            return prediction._replace(confidence=nan), None
        confidence = belief.log_probability(prediction.counts).exp()
        return prediction._replace(confidence=confidence), belief.ranked(k) if k else None

    @torch.no_grad()
    def belief(self, x: Shaped[Tensor, "b ..."]) -> Belief:
        """Return the distribution over multisets; see `Predictor.belief`."""
        self._refuse(not self.probabilistic)
        with self.evaluating():
            return self.head.believe(self.forward(x), *self.sizes)

    @torch.no_grad()
    def places(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b c h w"] | None:
        """Return the probability that each position of the encoder's map counts as each class; see `Predictor`.

        If the map covers only the middle of an image, zeros surround it.
        """
        with self.evaluating():
            memory = self.encoder(x)
            return self._places(x, memory, self.head(memory))

    def _places(self, x: Tensor, memory: Memory, scores: Tensor) -> Float[Tensor, "b c h w"] | None:
        counted = self.head.counted_places(scores)
        if counted is None or not isinstance(memory, Tensor) or memory.ndim != 4:
            return None
        places = counted.transpose(1, 2).reshape(len(memory), -1, *memory.shape[2:])
        return pad(places, missing_cells(self.encoder, x.shape))

    def log_probability(
        self,
        x: Shaped[Tensor, "b ..."],
        counts: Int64[Tensor, "b c"],
        *,
        beam: int = 32,  # noqa: ARG002
    ) -> Float64[Tensor, " b"]:
        """Return the exact log-probability of one multiset per input."""
        return self.belief(x).log_probability(counts)

    def search(self, x: Shaped[Tensor, "b ..."], *, k: int = 5, beam: int = 32) -> Ranked:  # noqa: ARG002
        """Return the k most probable multisets; exact."""
        return self.belief(x).ranked(k)

    def exact_beam(self, size: int) -> int:  # noqa: ARG002
        """Return 1: a head does not search."""
        return 1

    def count_probabilities(
        self,
        x: Shaped[Tensor, "b ..."],
        *,
        samples: int,  # noqa: ARG002
        generator: torch.Generator,  # noqa: ARG002
    ) -> Float64[Tensor, "b c m"]:
        """Return the exact probability of each count of each class."""
        return self.belief(x).count_probabilities()

    def graph_outputs(self, x: Shaped[Tensor, "b ..."]) -> dict[str, Tensor]:
        """Return counts and probabilities."""
        scores = self.forward(x)
        return {
            "counts": self._counts(scores),
            "probabilities": self.head.probabilities(scores, *self.sizes),
        }

    def _counts(self, scores: Tensor) -> Int64[Tensor, "b c"]:
        """Return the multisets that the decoding method predicts."""
        if self.decoding == "greedy":
            return self.head.counts(scores, *self.sizes)
        belief = self.head.believe(scores, *self.sizes)
        return belief.best() if self.decoding == "search" else best_by_f1(belief, *self.sizes)

    def _description(self) -> dict[str, Any]:
        return {"head": describe_module(self.head, HEADS.classes)}

    def _refuse(self, wanted: bool) -> None:
        """Raise a ValueError if `wanted`: the head gives no probabilities of multisets."""
        if wanted:
            raise ValueError(
                f"{self.kind} has no probabilities of multisets: train with an objective that has them, such as 'multi'"
                " or 'counts'"
            )
