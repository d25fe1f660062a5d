"""Figures of runs. To draw them takes longer than to train, so the tests leave them out unless they are about them."""

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
