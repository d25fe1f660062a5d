"""A real browser for pages, and a list of the problems in it."""

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
    """Headless Chromium."""
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


def watch(page: Any, problems: list[str], *, within: str) -> None:
    """Record errors, and requests to other addresses than `within` and data URLs."""
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    allowed = (within, "data:")
    page.on("request", lambda request: None if request.url.startswith(allowed) else problems.append(request.url))
