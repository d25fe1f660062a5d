"""A model on the demo page: its description, its inputs, and the steps of its predictions."""

from __future__ import annotations

import base64
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from torchmultiset.data.images import UnreadableImageError
from torchmultiset.distributions import Belief
from torchmultiset.model.inputs import InputKind, input_kind, open_inputs, open_model, reads
from torchmultiset.model.outputs import Prediction, Rows
from torchmultiset.model.predictor import Predictor
from torchmultiset.page.hints import hints
from torchmultiset.page.samples import OwnSample, brightness_of, fitting, image_file, own_samples

__all__ = ["MAX_PIXELS", "PageModel", "UnfitImageError"]

MAX_PIXELS = 25_000_000
"""Maximum width times height of an image: enough for phone photographs, small enough for memory."""
# Only some of Pillow's formats: some of its other decoders start external programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_BARS = 12  # classes that get a bar
_VISIBLE = 0.005  # minimum probability of a count that gets a column
_DARK = 100  # brightness below which the training data is light on dark
_BEST = 5  # most probable multisets to list
_BEAM = 32  # wide, because there is only one image


class UnfitImageError(ValueError):
    """An upload that is not a usable image; the message is shown on the page."""


@dataclass(frozen=True, eq=False)
class PageModel:
    """A model that reads images, with the name under which it was opened."""

    name: str
    predictor: Predictor
    kind: InputKind
    own: tuple[OwnSample, ...] = ()
    """Samples from the training run's data, if it still exists."""
    brightness: float | None = None
    """Mean of the pixels of the samples, from 0 to 255; None without samples."""

    @classmethod
    def open(cls, name: str) -> PageModel:
        """Load a model.

        Raises:
            ValueError: The model does not read images, or its record does not describe its inputs.
            OSError: There is no such model.
        """
        predictor = open_model(name)
        try:
            kind = input_kind(predictor)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not kind.of_images:
            raise ValueError(f"{name}: it reads {reads(predictor)}, not images: use `multiset predict` instead")
        own = own_samples(name, predictor, kind)
        return cls(name, predictor, kind, own, brightness_of(predictor, kind, own))

    def describe(self) -> dict[str, Any]:
        """Return what the page shows about the model, and its sample images."""
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
            "kind": "policy" if predictor.steps else "counts" if predictor.probabilistic else "shares",
            "dark": self.brightness is not None and self.brightness < _DARK,
            "from_own_data": bool(self.own),
            "samples": [
                {"file": f"samples/{sample.file}", "labels": sample.labels} for sample in fitting(predictor, self.kind)
            ]
            or [
                {"file": f"api/sample?model={quote(self.name, safe='')}&index={i}", "labels": sample.labels}
                for i, sample in enumerate(self.own)
            ],
        }

    def watch(self, image: bytes) -> dict[str, Any]:
        """Predict the multiset of an image, with every step of the prediction.

        Args:
            image: Content of an image file.

        Returns:
            A dictionary for JSON. ``classes``: classes with a bar; ``others``: number of the other classes. ``steps``:
            for each step the probabilities of ``classes`` and, as ``rest``, of the others; the entropy in nats; as
            ``named`` the emitted label, an index into ``classes`` or None; and, with a stop head, as ``stop`` the
            probability of stopping before it. A one-shot head has one step: the probability that each class occurs,
            and the entropy of all counts. ``counts``: for a one-shot head with probabilities, those of 0, 1, 2, ... of
            each class. ``places``: rows of a map with the probability that each place was counted, if the model
            counts places. ``hints``: sentences on how the image differs from the training data. ``ends``: why the
            sequence ends. ``answer``: classes with their counts.
            ``probability``: that of the answer, None for a model without probabilities. ``best``: the most probable
            multisets. ``seen``: the image as the model sees it.

        Raises:
            UnfitImageError: The file is not an image, is too large, or is damaged.
        """
        pixels = self._read(image)
        x = torch.from_numpy(pixels)
        prediction = self.predictor.explain(x, beam=_BEAM)
        counts = prediction.counts[0]
        ends = self._ending(int(counts.sum()))
        steps = self._steps(prediction, int(counts.sum()), ends)
        return {
            **steps,
            "counts": self._counts(prediction.belief, steps["classes"]),
            "places": _places(prediction.places),
            "hints": hints(image, pixels[0], self.brightness),
            "ends": ends,
            "answer": self._named(counts),
            **self._probable(x, prediction),
            "seen": _data_url(pixels[0]),
        }

    def _read(self, image: bytes) -> Shaped[np.ndarray, "1 c h w"]:
        """Read the image in the same way as `multiset predict`."""
        _refuse_unfit(image)
        with tempfile.TemporaryDirectory(prefix="multiset-") as folder:
            file = Path(folder, "image")
            file.write_bytes(image)
            try:
                (source,) = open_inputs(self.predictor, [str(file)])
                return np.ascontiguousarray(source.inputs[np.array([0])])
            except UnreadableImageError:
                raise UnfitImageError("This image is incomplete or damaged. Save it again as PNG or JPEG.") from None

    def _counts(self, belief: Belief | None, shown: list[str]) -> list[list[float]]:
        """Return the distribution over 0, 1, 2, ... of each class with a bar; nothing for a policy."""
        if belief is None:
            return []
        chances = belief.count_probabilities()[0]
        likely = [m for m in range(chances.shape[1]) if float(chances[:, m].max()) >= _VISIBLE]
        rows = [chances[self.predictor.classes.index(name), : max(2, *likely) + 1] for name in shown]
        return [[round(p, 4) for p in row.tolist()] for row in rows]

    def sample(self, index: int) -> bytes:
        """Return a sample from the model's own data as a PNG file."""
        return self.own[index].image

    def _ending(self, size: int) -> str:
        if not self.predictor.steps:
            return "at once"
        if self.predictor.stop == "fixed":
            return "fixed"
        return "full" if size == self.predictor.max_size else self.predictor.stop

    def _steps(self, prediction: Prediction, size: int, ends: str) -> dict[str, Any]:
        """Return the steps up to the last one, with bars for the most probable classes."""
        names = [*self.predictor.classes, *["END"] * self.predictor.end]
        labels: list[int] = []
        rows = 1
        if prediction.sequence is not None:
            labels = prediction.sequence[0, :size].tolist() + [len(self.predictor.classes)] * (ends == "end")
            rows = size + (ends != "fixed")
        probabilities = prediction.probabilities[0, :rows].clamp(0, 1)
        # Keep the highest bars, and those of all emitted labels.
        height = probabilities.amax(0).index_fill(0, torch.tensor(labels, dtype=torch.int64), 2.0)
        shown = sorted(height.argsort(descending=True, stable=True)[: max(_BARS, len(set(labels)))].tolist())
        return {
            "classes": [names[label] for label in shown],
            "others": len(names) - len(shown),
            "steps": [
                {
                    "probabilities": [round(float(row[label]), 4) for label in shown],
                    "rest": round(_rest(row, shown, prediction.rows), 4) if len(shown) < len(names) else 0.0,
                    "entropy": round(float(prediction.entropy[0, t]), 4),
                    "named": shown.index(labels[t]) if t < len(labels) else None,
                    "stop": None if prediction.stop is None else round(float(prediction.stop[0, t]), 4),
                }
                for t, row in enumerate(probabilities)
            ],
        }

    def _probable(self, x: Tensor, prediction: Prediction) -> dict[str, Any]:
        """Return the probability of the answer and the most probable multisets, if the model has probabilities."""
        if not self.predictor.probabilistic:
            return {"probability": None, "best": []}
        assert prediction.confidence is not None
        belief = prediction.belief
        found = self.predictor.search(x, k=_BEST, beam=_BEAM) if belief is None else belief.ranked(_BEST)
        answer, (counts, log_probability) = prediction.counts[0], found
        best = [
            {"multiset": self._named(row), "probability": _short(p), "answer": torch.equal(row, answer)}
            for row, p in zip(counts[0], log_probability[0].exp().tolist(), strict=True)
            if p > 0
        ]
        return {"probability": _short(float(prediction.confidence[0])), "best": best}

    def _named(self, counts: Int64[Tensor, " c"]) -> list[tuple[str, int]]:
        return [(name, count) for name, count in zip(self.predictor.classes, counts.tolist(), strict=True) if count]


def _places(places: Float[Tensor, "1 c h w"] | None) -> list[list[float]] | None:
    return None if places is None else [[round(p, 3) for p in row] for row in places[0].sum(0).tolist()]


def _rest(row: Float[Tensor, " c"], shown: list[int], rows: Rows) -> float:
    """Return the probability that a label without a bar is emitted or, for a one-shot head, occurs."""
    if rows == "at least":
        return 1 - float((1 - row).index_fill(0, torch.tensor(shown), 1.0).prod())
    return 1 - float(row[shown].sum())


def _refuse_unfit(image: bytes) -> None:
    """Check the header only, so that an unsupported or too large file is never decoded."""
    try:
        with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pixels = MAX_PIXELS + 1
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise UnfitImageError(
            f"This is not an image in a supported format: {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}."
        ) from None
    if pixels > MAX_PIXELS:
        raise UnfitImageError(
            f"This image has too many pixels. The limit is {MAX_PIXELS // 1_000_000} million: make it smaller."
        )


def _short(probability: float) -> float:
    return float(f"{probability:.4g}")


def _data_url(pixels: Shaped[np.ndarray, "c h w"]) -> str:
    kind = "png" if len(pixels) == 1 else "jpeg"  # a colour photograph would be large as PNG
    return f"data:image/{kind};base64,{base64.b64encode(image_file(pixels, kind)).decode()}"
