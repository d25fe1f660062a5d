"""A real browser for pages, and what goes wrong in them there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: the Debian package chromium")


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium without a window, until the block ends."""
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


def watch(page: Any, problems: list[str], *, within: str) -> None:
    """Note errors, and requests for what is neither within this address nor part of the page."""
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    here = (within, "data:")
    page.on("request", lambda asked: problems.append(asked.url) if not asked.url.startswith(here) else None)
