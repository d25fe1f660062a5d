"""Switches for the figures of runs. Drawing takes longer than training, so only tests of the figures draw them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchmultiset.pipeline import finish

DRAW = finish._draw


@contextmanager
def left_out() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "_draw", lambda *_: None)
        yield


@contextmanager
def drawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "_draw", DRAW)
        yield
