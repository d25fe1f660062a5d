"""Settings of all tests. The import hook, which enforces shapes, is installed before the package is imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

install_import_hook("torchmultiset", "beartype.beartype")
torch.set_num_threads(1)

# Background jobs of a shell ignore Ctrl-C, and so would the processes that they start: restore the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that failures are reproducible.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("house")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
PAGE = Path(__file__).parent / "page"


def unless_ci(report: Report, path: Path) -> Report:
    """Turn skipped tests of the page into failures if CI=true; the message has the missing package."""
    if os.environ.get("CI") == "true" and report.skipped and PAGE in path.parents:
        _, _, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{path.name} must not be skipped where CI=true: {reason.removeprefix('Skipped: ')}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return unless_ci((yield), item.path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return unless_ci((yield), collector.path)


@pytest.fixture(scope="session", autouse=True)
def figures_of_runs_are_left_out(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs draw no figures, except in tests that use `figures_of_runs`."""
    if not any(item.get_closest_marker("slow") for item in request.session.items):  # no test trains
        yield
        return
    from run_figures import left_out

    with left_out():
        yield


@pytest.fixture
def figures_of_runs() -> Iterator[None]:
    """Draw the figures of runs."""
    from run_figures import drawn

    with drawn():
        yield


@pytest.fixture
def without_shape_hook() -> Iterator[None]:
    """Switch off the shape checks of the tests, so that errors are those that users see."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
