"""Shapes are enforced in every test: the import hook comes before the first import of the package."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

install_import_hook("torchmultiset", "beartype.beartype")
torch.set_num_threads(1)

# A shell lets what it starts in the background ignore Ctrl-C, and that is inherited; our children are to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure is a fact about the code, never about the day.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("house")


@pytest.fixture
def without_shape_hook() -> Iterator[None]:
    """Switch the shape checks of the tests off, to see the errors that a user sees."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
