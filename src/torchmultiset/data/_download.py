"""Download a file whose SHA-256 is known: from the first mirror that works, resumed, and never half there."""

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

Report = Callable[[int, int | None], None]
"""Told the bytes that are there and, where known, the bytes that there will be."""


class DownloadError(OSError):
    """No mirror gave the file. The message says what each of them did."""


class _MirrorError(Exception):
    """What one mirror did wrong; `final` if it would do the same again."""

    def __init__(self, problem: str, *, final: bool = False) -> None:
        super().__init__(problem)
        self.final = final


class _NothingToResume(Exception):
    """HTTP 416: the part is at least as long as the file, and yet is not the file."""


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
    """Have the file with this checksum at `path`: download it unless it is there.

    The bytes go to ``<path>.part``, which is renamed once its checksum is right, so `path` is the whole file or
    is not touched. After a failure or a kill the part stays, and the next call resumes it. Processes that want
    the same file wait for each other (``<path>.lock``).

    Args:
        urls: The mirrors, tried in this order.
        path: Where the file goes; its folder is made. A file there with another checksum is replaced.
        sha256: The file's SHA-256, in hexadecimal.
        timeout: Seconds without a byte from a mirror before the next one is tried.
        progress: Show a progress bar on standard error.
        rounds: How often to go through the mirrors. One that has not got the file is asked only once.
        pause: Seconds to wait before the second round; twice as long before the third, and so on.

    Returns:
        `path`.

    Raises:
        DownloadError: If no mirror gave the file.
    """
    check(not isinstance(urls, str) and len(urls) > 0, "urls", "a list of at least one URL", urls)
    path = Path(path)
    if _has(path, sha256):
        return path
    from filelock import FileLock  # every PyTorch brings it

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        # Another process may have fetched it while this one waited.
        if not _has(path, sha256):
            part = path.with_name(path.name + ".part")
            # A kill between the last byte and the renaming leaves a part that is whole.
            if not _has(part, sha256):
                with _bar(path.name, progress) as report:
                    _from_any(urls, path, part, sha256, timeout, report, rounds=rounds, pause=pause)
            part.replace(path)
    return path


def cache_folder(name: str) -> Path:
    """The folder for files that can be fetched again: ``torchmultiset/<name>`` in the user's cache.

    That is ``$XDG_CACHE_HOME`` where it is set, and otherwise what the platform uses, such as ``~/.cache``.
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
    report: Report,
    *,
    rounds: int,
    pause: float,
) -> None:
    """Fill `part` with the right bytes from one of the mirrors, or raise."""
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
        + "\n".join(dict.fromkeys(problems))  # the same again in a later round is no news
        + "\nTry again later (what has arrived is kept), or get the file by other means and save it as "
        f"{path} (SHA-256 {sha256})."
    )


def _from_one(url: str, part: Path, sha256: str, timeout: float, report: Report) -> None:
    """Fill `part` with the right bytes from this mirror, or raise."""
    resumed = part.exists()
    with suppress(_NothingToResume):
        _fetch(url, part, timeout, report)
    if _has(part, sha256):
        return
    part.unlink()
    if not resumed:
        raise _MirrorError("sent bytes with another SHA-256 than the file's", final=True)
    # The wrong bytes may have been those that were there before.
    _from_one(url, part, sha256, timeout, report)


def _fetch(url: str, part: Path, timeout: float, report: Report) -> None:
    """Ask for what `part` does not hold yet and append it; begin anew if the mirror does not resume."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "torchmultiset"} | ({"Range": f"bytes={have}-"} if have else {})
    with _open(Request(url, headers=headers), timeout) as response:
        resuming = response.status == 206
        if not resuming:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _MirrorError("sent another range of bytes than it was asked for", final=True)
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
            # 408 and 429 mean "later"; the other 4xx mean that asking again is no use.
            final = 400 <= error.code < 500 and error.code not in (408, 429)
            raise _MirrorError(f"answered HTTP {error.code} {error.reason}", final=final) from None


def _read(response: HTTPResponse, timeout: float) -> bytes:
    with _network(timeout):
        # read1 hands over what has come; read would lose it if the rest does not.
        return response.read1(_BLOCK)


@contextmanager
def _network(timeout: float) -> Iterator[None]:
    """Turn what can go wrong on the way to a mirror into a _MirrorError; a full disk stays what it is."""
    try:
        yield
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _MirrorError(f"sent nothing for {timeout:g} s") from None
        raise _MirrorError(str(cause) or type(cause).__name__) from None


@contextmanager
def _bar(name: str, shown: bool) -> Iterator[Report]:
    if not shown:
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
