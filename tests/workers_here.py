"""Workers of a sweep that train in this process, because new processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from torchmultiset.pipeline.sweep import Workers
from torchmultiset.pipeline.workers import Job, work


class _Crew:
    """Executes each job when it is submitted."""

    def submit(self, job: Job) -> Future[Any]:
        future: Future[Any] = Future()
        work(job)
        future.set_result(None)
        return future

    def stop(self, name: str) -> None:
        raise AssertionError(f"{name} has already ended")


@contextmanager
def workers_here() -> Iterator[None]:
    """Make sweeps train in this process."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "crew", lambda _: nullcontext(_Crew()))
        yield
    torch.set_num_threads(threads)
