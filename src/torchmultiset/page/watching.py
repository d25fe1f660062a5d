"""A model on the page: what it is, what it reads, and all that can be watched while it names labels."""

from __future__ import annotations

import base64
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from torchmultiset.data.images import UnreadableImageError
from torchmultiset.heads import Readout
from torchmultiset.metrics import step_entropy
from torchmultiset.model.predictor import Output, Predictor
from torchmultiset.page.samples import fitting
from torchmultiset.pipeline.inputs import InputKind, input_kind, open_inputs, open_model

__all__ = ["MAX_PIXELS", "PageModel", "UnfitImageError"]

MAX_PIXELS = 25_000_000
"""Of an image, width times height: what a phone takes, and far from what fills the memory."""
# Not all that Pillow knows: some of its other decoders start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_BARS = 12  # classes that the page has room for
_BEST = 5  # multisets that the page has room for


class UnfitImageError(ValueError):
    """What was given is no image that the page takes; the message is for the page."""


@dataclass(frozen=True, eq=False)
class PageModel:
    """A model that reads images, by the name that it was asked for with."""

    name: str
    predictor: Predictor
    kind: InputKind

    @classmethod
    def open(cls, name: str) -> PageModel:
        """Load a model.

        Raises:
            ValueError: It does not read images, or does not say what it reads.
            OSError: There is none.
        """
        predictor = open_model(name)
        try:
            kind = input_kind(predictor)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not kind.of_images:
            shape = " x ".join(map(str, kind.shape))
            raise ValueError(f"{name}: it reads inputs of shape {shape}, not images: `multiset predict` puts it to use")
        return cls(name, predictor, kind)

    def describe(self) -> dict[str, Any]:
        """What the page says about the model, and the samples for it."""
        predictor = self.predictor
        try:
            exact_match = float(predictor.record["metrics"]["test"]["overall"]["exact_match"])
        except (KeyError, TypeError, ValueError):
            exact_match = None
        return {
            "name": self.name,
            "classes": predictor.classes[:_BARS],
            "more_classes": max(len(predictor.classes) - _BARS, 0),
            "channels": self.kind.shape[0],
            "side": self.kind.shape[-1],
            "max_size": predictor.max_size,
            "fixed": predictor.stop == "fixed" and predictor.probabilistic,
            "exact_match": exact_match,
            "samples": [
                {"file": f"samples/{sample.file}", "labels": sample.labels} for sample in fitting(predictor, self.kind)
            ],
        }

    def watch(self, image: bytes) -> dict[str, Any]:
        """Let the model name the labels of an image, and tell everything about it.

        Args:
            image: A file.

        Returns:
            What JSON can hold. ``classes``: those that get bars. ``steps``: their probabilities (that of all ``others``
            together is ``rest``), the entropy in nats, the label that was named, a position in ``classes`` or None,
            and, with a stop head, the probability of stopping before it. A readout has one step: how probable it is
            that a class is there at all, and the entropies of the counts of all classes together. ``ends``: why there
            are no more. ``answer``: classes with their counts; ``probability`` of it, None for a model that does not
            know. ``best``: the most probable multisets. ``seen``: the image as the model sees it.

        Raises:
            UnfitImageError: It is not an image, is too large, or is damaged.
        """
        pixels = self._read(image)
        x = torch.from_numpy(pixels)
        with torch.no_grad():
            output = self.predictor(x, early=True)
        counts = self.predictor.counts(output)[0]
        ends = self._ending(int(counts.sum()))
        ranked = self._ranked(x) if self.predictor.probabilistic else []
        return {
            **self._steps(output, int(counts.sum()), ends),
            "ends": ends,
            "answer": self._named(counts),
            "probability": self._probability(x, counts, ranked) if self.predictor.probabilistic else None,
            "best": [
                {"multiset": self._named(other), "probability": probability, "answer": torch.equal(other, counts)}
                for other, probability in ranked
            ],
            "seen": _data_url(pixels[0]),
        }

    def _read(self, image: bytes) -> Shaped[np.ndarray, "1 c h w"]:
        """The image as `multiset predict` would read its file."""
        _refuse_unfit(image)
        with tempfile.TemporaryDirectory(prefix="multiset-") as folder:
            file = Path(folder, "image")
            file.write_bytes(image)
            try:
                (source,) = open_inputs(self.predictor, [str(file)])
                return np.ascontiguousarray(source.inputs[np.array([0])])
            except UnreadableImageError:
                raise UnfitImageError(
                    "This image cannot be read to its end. It may be damaged: save it again as PNG or JPEG."
                ) from None

    def _ending(self, size: int) -> str:
        if not self.predictor.sequential:
            return "at once"
        if self.predictor.stop == "fixed":
            return "fixed"
        return "full" if size == self.predictor.max_size else self.predictor.stop

    def _steps(self, output: Output, size: int, ends: str) -> dict[str, Any]:
        """Each step up to the one that ends it, with bars for the classes that matter most."""
        names = [*self.predictor.classes, *["END"] * (self.predictor.stop == "end")]
        labels = [] if ends == "at once" else output.labels[0, : size + (ends == "end")].tolist()
        probabilities, entropy = self._rows(output, size + (ends != "fixed"))
        # The highest bars, and those of all labels that were named.
        height = probabilities.amax(0).index_fill(0, torch.tensor(labels, dtype=torch.int64), 2.0)
        shown = sorted(height.argsort(descending=True, stable=True)[: max(_BARS, len(set(labels)))].tolist())
        return {
            "classes": [names[label] for label in shown],
            "others": len(names) - len(shown),
            "steps": [
                {
                    "probabilities": [round(float(row[label]), 4) for label in shown],
                    "rest": round(self._rest(row, shown), 4) if len(shown) < len(names) else 0.0,
                    "entropy": round(float(entropy[t]), 4),
                    "named": shown.index(labels[t]) if t < len(labels) else None,
                    "stop": None if output.stop is None else round(float(output.stop[0, t].sigmoid()), 4),
                }
                for t, row in enumerate(probabilities)
            ],
        }

    def _rows(self, output: Output, steps: int) -> tuple[Float[Tensor, "t c"], Float[Tensor, " t"]]:
        """The bars of each step, and how unsure the model is there."""
        policy, sizes = self.predictor.policy, self.predictor.sizes
        if not isinstance(policy, Readout):
            logits = output.logits[0, :steps]
            return logits.softmax(-1), step_entropy(logits)
        rows = policy.probabilities(output.logits, *sizes)[0, :1].clamp(0, 1)
        if not policy.probabilistic:
            return rows, torch.special.entr(rows).sum(-1)
        counts = policy.believe(output.logits, *sizes).count_probabilities()[:1]
        return rows, torch.special.entr(counts).sum((1, 2)).to(rows.dtype)

    def _rest(self, row: Float[Tensor, " c"], shown: list[int]) -> float:
        """How probable the labels are that have no bar: one of them, or, of a readout, that any of them is there."""
        if self.predictor.sequential or not self.predictor.probabilistic:
            return 1 - float(row[shown].sum())
        return 1 - float((1 - row).index_fill(0, torch.tensor(shown), 1.0).prod())

    def _ranked(self, x: Tensor) -> list[tuple[Int64[Tensor, " c"], float]]:
        """The most probable multisets, best first, with their probabilities."""
        counts, log_probability = self.predictor.search(x, k=_BEST)
        probability = log_probability[0].exp().tolist()
        return [(row, _short(p)) for row, p in zip(counts[0], probability, strict=True) if p > 0]

    def _probability(
        self, x: Tensor, counts: Int64[Tensor, " c"], ranked: list[tuple[Int64[Tensor, " c"], float]]
    ) -> float:
        """Of the answer: most often it is among the best, and need not be computed once more."""
        found = [probability for other, probability in ranked if torch.equal(other, counts)]
        return found[0] if found else _short(float(self.predictor.log_probability(x, counts[None]).exp()))

    def _named(self, counts: Int64[Tensor, " c"]) -> list[tuple[str, int]]:
        return [(name, count) for name, count in zip(self.predictor.classes, counts.tolist(), strict=True) if count]


def _refuse_unfit(image: bytes) -> None:
    """Look at the header only: what is no image, or too large, is not decoded."""
    try:
        with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pixels = MAX_PIXELS + 1
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise UnfitImageError(
            f"This is not an image that can be read here. What can: {', '.join(_FORMATS[:-1])} and {_FORMATS[-1]}."
        ) from None
    if pixels > MAX_PIXELS:
        raise UnfitImageError(
            f"This image has too many pixels. The page takes up to {MAX_PIXELS // 1_000_000} million: make it smaller."
        )


def _short(probability: float) -> float:
    return float(f"{probability:.4g}")


def _data_url(pixels: Shaped[np.ndarray, "c h w"]) -> str:
    grey = len(pixels) == 1
    file = io.BytesIO()
    # A photograph would be large as PNG.
    Image.fromarray(pixels[0] if grey else pixels.transpose(1, 2, 0)).save(file, "PNG" if grey else "JPEG")
    kind = "png" if grey else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
