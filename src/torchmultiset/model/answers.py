"""Predictions as Python objects: class names with their counts, the probability, and the alternatives."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Shaped

__all__ = ["Answer", "Answers"]

_SHOWN = 20  # answers that a notebook shows
_SIDE = 120  # pixels of a picture in a notebook


class Answer(Counter[str]):
    """Predicted multiset of one input: a `collections.Counter` from class name to count.

    A class that does not occur has the count 0, and ``total()`` is the number of labels. In a notebook, the answer is
    displayed with the picture, the counts and the confidence.

    Args:
        counts: Class name -> count.
        proba: Probability of exactly this multiset; None if the model has no probabilities.
        name: Name of the input.
        top: Function that returns the k most probable multisets.
        picture: Function that returns the pixels of the input, if it is an image.

    Example:
        >>> answer = Answer({"cat": 2, "dog": 1}, proba=0.75)
        >>> answer, answer["cat"], answer["bird"], answer.total(), answer.proba
        (Answer({'cat': 2, 'dog': 1}), 2, 0, 3, 0.75)
        >>> answer == {"dog": 1, "cat": 2}
        True
    """

    proba: float | None
    """Probability of exactly this multiset; None if the model has no probabilities."""
    name: str
    """Path of the file or name of the row; empty for an input without a name."""

    def __init__(
        self,
        counts: Mapping[str, int] | Iterable[str] = (),
        *,
        proba: float | None = None,
        name: str = "",
        top: Callable[[int], list[Answer]] | None = None,
        picture: Callable[[], Shaped[np.ndarray, "c h w"]] | None = None,
    ) -> None:
        super().__init__(counts)
        self.proba = proba
        self.name = name
        self._top = top
        self._picture = picture

    def top(self, k: int = 5) -> list[Answer]:
        """Return the k most probable multisets, each with its probability, best first.

        Raises:
            ValueError: The model has no probabilities, or the answer was copied or unpickled.
        """
        if self._top is None:
            raise ValueError("this answer is a copy without its model: call top(k) on the answer of `predict`")
        return self._top(k)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Answer, dict(self), proba=self.proba, name=self.name), ()

    def _repr_html_(self) -> str:
        """Return the picture, the counts and the confidence for a notebook."""
        return f'<table style="text-align:left">{self._row()}</table>'

    def _row(self) -> str:
        counts = ", ".join(f"{count} &times; {escape(name)}" for name, count in self.items()) or "nothing"
        bar = (
            "" if self.proba is None else f'<br><progress max="1" value="{self.proba:.4f}"></progress> {self.proba:.1%}'
        )
        name = f"<br><small>{escape(self.name)}</small>" if self.name else ""
        return f"<tr><td>{self._image()}</td><td><b>{counts}</b>{bar}{name}</td></tr>"

    def _image(self) -> str:
        if self._picture is None:
            return ""
        from PIL import Image

        pixels, file = self._picture(), io.BytesIO()
        if pixels.dtype != np.uint8:
            pixels = np.rint(255 * pixels.clip(0, 1)).astype(np.uint8)
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
        source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return f'<img src="{source}" width="{_SIDE}" alt="{escape(self.name) or "input"}">'


class Answers(list[Answer]):
    """Predicted multisets of several inputs: a list of `Answer`, displayed as a table in a notebook."""

    def _repr_html_(self) -> str:
        """Return a table of the first answers for a notebook."""
        more = f"<p>and {len(self) - _SHOWN:,} more</p>" if len(self) > _SHOWN else ""
        rows = "".join(answer._row() for answer in self[:_SHOWN])
        return f'<table style="text-align:left">{rows}</table>{more}'
