"""Atomic, resumable download of a file with a known SHA-256, with fallback to other mirrors."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from torchmultiset._checks import check
from torchmultiset._files import file_sha256

__all__ = ["DownloadError", "cache_folder", "download"]

_BLOCK = 1 << 16

DownloadProgress = Callable[[int, int | None], None]
"""Callback that receives the number of bytes downloaded and, if known, the total."""


class DownloadError(OSError):
    """Error raised when no mirror provides the file; the message lists the failure of each mirror."""


class _MirrorError(Exception):
    """Failure of one mirror; `final` if retrying is pointless."""

    def __init__(self, problem: str, *, final: bool = False) -> None:
        super().__init__(problem)
        self.final = final


class _NothingToResume(Exception):
    """HTTP 416: the partial file is at least as long as the file, but its checksum is wrong."""


def download(
    urls: Sequence[str],
    path: str | os.PathLike[str],
    *,
    sha256: str,
    timeout: float = 30.0,
    progress: bool = False,
    rounds: int = 3,
    pause: float = 1.0,
) -> Path:
    """Download a file, unless `path` already has the given checksum.

    Data is written to ``<path>.part`` and renamed once its checksum matches, so `path` is either complete or
    untouched. After a failure or a kill the partial file is kept, and the next call resumes it. Concurrent
    processes wait for each other (``<path>.lock``).

    Args:
        urls: URLs of the mirrors, in the order to try them.
        path: Destination; its folder is created. A file with a different checksum is replaced.
        sha256: SHA-256 of the file, in hexadecimal.
        timeout: Seconds without data from a mirror before the next one is tried.
        progress: Show a progress bar on standard error.
        rounds: Maximum number of passes over the mirrors. A mirror without the file is tried only once.
        pause: Seconds to wait before the second pass; the wait grows linearly with each further pass.

    Returns:
        `path`.

    Raises:
        DownloadError: No mirror provided the file.
    """
    check(not isinstance(urls, str) and len(urls) > 0, "urls", "a list of at least one URL", urls)
    path = Path(path)
    if _has(path, sha256):
        return path
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        # Another process may have fetched it while this one waited.
        if not _has(path, sha256):
            part = path.with_name(path.name + ".part")
            # A kill between the last byte and the rename leaves a complete partial file.
            if not _has(part, sha256):
                with _bar(path.name, progress) as report:
                    _from_any(urls, path, part, sha256, timeout, report, rounds=rounds, pause=pause)
            part.replace(path)
    return path


def cache_folder(name: str) -> Path:
    """Return the cache folder ``torchmultiset/<name>`` for downloaded files.

    The parent is ``$XDG_CACHE_HOME`` if set, else the platform's cache folder, such as ``~/.cache``.
    """
    if os.environ.get("XDG_CACHE_HOME"):
        caches = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path.home() / ".cache"
    return caches / "torchmultiset" / name


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


def _from_any(
    urls: Sequence[str],
    path: Path,
    part: Path,
    sha256: str,
    timeout: float,
    report: DownloadProgress,
    *,
    rounds: int,
    pause: float,
) -> None:
    """Download `part` from the first mirror that works, or raise."""
    mirrors = list(urls)
    problems = []
    for number in range(rounds):
        if number and mirrors:
            time.sleep(pause * number)
        for url in list(mirrors):
            try:
                return _from_one(url, part, sha256, timeout, report)
            except _MirrorError as error:
                problems.append(f"  {url}: {error}")
                if error.final:
                    mirrors.remove(url)
    raise DownloadError(
        f"could not download {path.name}:\n"
        + "\n".join(dict.fromkeys(problems))  # list each failure once, even if it recurs in a later pass
        + "\nTry again later (the download will resume), or obtain the file by other means and save it as "
        f"{path} (SHA-256 {sha256})."
    )


def _from_one(url: str, part: Path, sha256: str, timeout: float, report: DownloadProgress) -> None:
    """Download `part` from this mirror and verify its checksum, or raise."""
    resumed = part.exists()
    with suppress(_NothingToResume):
        _fetch(url, part, timeout, report)
    if _has(part, sha256):
        return
    part.unlink()
    if not resumed:
        raise _MirrorError("sent a file with a different SHA-256", final=True)
    # The wrong bytes may come from an earlier download: start over.
    _from_one(url, part, sha256, timeout, report)


def _fetch(url: str, part: Path, timeout: float, report: DownloadProgress) -> None:
    """Request the missing bytes and append them to `part`; start over if the mirror cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "torchmultiset"} | ({"Range": f"bytes={have}-"} if have else {})
    with _open(Request(url, headers=headers), timeout) as response:
        resuming = response.status == 206
        if not resuming:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _MirrorError("sent a different byte range than requested", final=True)
        total = None if response.length is None else have + response.length
        with part.open("ab" if resuming else "wb") as file:
            report(have, total)
            while block := _read(response, timeout):
                file.write(block)
                have += len(block)
                report(have, total)
    if total is not None and have < total:
        raise _MirrorError(f"closed the connection after {have} of {total} bytes")


def _open(request: Request, timeout: float) -> HTTPResponse:
    with _network(timeout):
        try:
            response: HTTPResponse = urlopen(request, timeout=timeout)
            return response
        except HTTPError as error:
            error.close()
            if error.code == 416 and request.has_header("Range"):
                raise _NothingToResume from None
            # 408 and 429 are temporary; the other 4xx errors are permanent.
            final = 400 <= error.code < 500 and error.code not in (408, 429)
            raise _MirrorError(f"returned HTTP {error.code} {error.reason}", final=final) from None


def _read(response: HTTPResponse, timeout: float) -> bytes:
    with _network(timeout):
        # read1 returns what has arrived; read would lose it if the connection then failed.
        return response.read1(_BLOCK)


@contextmanager
def _network(timeout: float) -> Iterator[None]:
    """Convert network errors to a _MirrorError; errors outside the block, such as a full disk, are unaffected."""
    try:
        yield
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _MirrorError(f"sent nothing for {timeout:g} s") from None
        raise _MirrorError(str(cause) or type(cause).__name__) from None


@contextmanager
def _bar(name: str, shown: bool) -> Iterator[DownloadProgress]:
    if not shown:
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
