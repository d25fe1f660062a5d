"""Downloads from a server on the loopback interface that misbehaves in many ways."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchmultiset._files import file_sha256
from torchmultiset.data._download import DownloadError, cache_folder, download

CONTENT = random.Random(0).randbytes(300_000)
HALF = len(CONTENT) // 2
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Calls the method named by the last part of the path."""

    server: Mirror

    def do_GET(self) -> None:
        behaviour = self.path.strip("/")
        requested = self.headers.get("Range")
        self.server.requests.append((behaviour, requested))
        start = int(re.fullmatch(r"bytes=(\d+)-", requested)[1]) if requested else 0
        getattr(self, behaviour)(start)

    def respond(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def rest(self, start: int, share: float) -> None:
        """Announce everything from `start` on, and send that share of it."""
        if start >= len(CONTENT):
            return self.respond(416, b"", length=0, Content_Range=f"bytes */{len(CONTENT)}")
        rest = CONTENT[start:]
        sent = rest[: int(share * len(rest))]
        where = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        if start:
            return self.respond(206, sent, length=len(rest), Content_Range=where)
        return self.respond(200, sent, length=len(rest))

    def good(self, start: int) -> None:
        self.rest(start, 1)

    def slow(self, start: int) -> None:
        self.server.closing.wait(0.5)
        self.rest(start, 1)

    def truncates(self, start: int) -> None:
        self.rest(start, 0.5)

    def stalls(self, start: int) -> None:
        self.rest(start, 0.5)
        self.server.closing.wait(30)

    def silent(self, start: int) -> None:
        self.server.closing.wait(30)

    def drops(self, start: int) -> None:
        self.close_connection = True

    def ignores_range(self, start: int) -> None:
        self.respond(200, CONTENT, length=len(CONTENT))

    def wrong_range(self, start: int) -> None:
        if not start:
            return self.truncates(start)
        where = f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"
        return self.respond(206, CONTENT, length=len(CONTENT), Content_Range=where)

    def wrong_bytes(self, start: int) -> None:
        self.respond(200, CONTENT[::-1], length=len(CONTENT))

    def no_length(self, start: int) -> None:
        self.respond(200, CONTENT)

    def missing(self, start: int) -> None:
        self.respond(404, b"<html>not here</html>")

    def busy(self, start: int) -> None:
        self.respond(503, b"later")

    def log_message(self, *args: object) -> None:
        pass


class Mirror(ThreadingHTTPServer):
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[tuple[str, str | None]] = []
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def urls(self, *behaviours: str) -> list[str]:
        return [f"http://127.0.0.1:{self.server_port}/{behaviour}" for behaviour in behaviours]

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, *args: object) -> None:
        pass  # clients that disconnect are expected


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Mirror()
    yield server
    server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "file.bin"


@pytest.fixture
def part(path: Path) -> Path:
    path.parent.mkdir()
    return path.with_name("file.bin.part")


Fetch = Callable[..., Path]


@pytest.fixture
def fetch(mirror: Mirror, path: Path) -> Fetch:
    def call(*behaviours: str, timeout: float = 5.0, rounds: int = 1, progress: bool = False) -> Path:
        urls = mirror.urls(*behaviours)
        return download(urls, path, sha256=SHA256, timeout=timeout, rounds=rounds, pause=0.0, progress=progress)

    return call


def leftovers(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()} - {"file.bin.lock"}


@pytest.mark.parametrize("behaviour", ["good", "no_length", "ignores_range"])
def test_the_file_is_downloaded_completely(fetch: Fetch, path: Path, behaviour: str) -> None:
    assert fetch(behaviour) == path
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == {"file.bin"}


def test_an_existing_file_is_not_downloaded_again(fetch: Fetch, mirror: Mirror, path: Path) -> None:
    fetch("good")
    fetch("missing")
    assert mirror.requests == [("good", None)]


def test_a_damaged_file_is_replaced(fetch: Fetch, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    fetch("good")
    assert path.read_bytes() == CONTENT


def test_a_damaged_file_is_kept_until_the_download_succeeds(fetch: Fetch, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    with pytest.raises(DownloadError):
        fetch("truncates")
    assert path.read_bytes() == b"damaged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("missing", "returned HTTP 404"),
        ("busy", "returned HTTP 503"),
        ("wrong_bytes", "a different SHA-256"),
        ("truncates", f"closed the connection after {HALF} of {len(CONTENT)} bytes"),
        ("silent", "sent nothing for 1 s"),
        ("stalls", "sent nothing for 1 s"),
        ("drops", "closed connection without response"),
    ],
)
def test_a_bad_mirror_is_reported_and_the_next_one_is_used(
    fetch: Fetch, mirror: Mirror, path: Path, behaviour: str, problem: str
) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch(behaviour, timeout=1.0)
    message = str(caught.value)
    assert f"{mirror.urls(behaviour)[0]}: " in message
    assert problem in message
    assert f"save it as {path} (SHA-256 {SHA256})" in message
    assert not path.exists()

    fetch(behaviour, "good", timeout=1.0)
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == {"file.bin"}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["truncates", "stalls"])
def test_the_next_mirror_resumes_the_download(fetch: Fetch, mirror: Mirror, path: Path, behaviour: str) -> None:
    fetch(behaviour, "good", timeout=1.0)
    assert mirror.requests == [(behaviour, None), ("good", f"bytes={HALF}-")]
    assert path.read_bytes() == CONTENT


def test_each_retry_resumes_the_download(fetch: Fetch, mirror: Mirror, part: Path) -> None:
    with pytest.raises(DownloadError):
        fetch("truncates", rounds=3)
    assert [requested for _, requested in mirror.requests] == [None, "bytes=150000-", "bytes=225000-"]
    assert part.read_bytes() == CONTENT[:262_500]


def test_a_mirror_without_the_file_is_requested_once(fetch: Fetch, mirror: Mirror) -> None:
    with pytest.raises(DownloadError):
        fetch("missing", "wrong_bytes", "busy", rounds=3)
    assert [behaviour for behaviour, _ in mirror.requests] == ["missing", "wrong_bytes", "busy", "busy", "busy"]


def test_later_rounds_wait_longer(mirror: Mirror, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(DownloadError):
        download(mirror.urls("busy"), path, sha256=SHA256, rounds=3, pause=0.5)
    assert waits == [0.5, 1.0]


def test_a_server_that_ignores_ranges_sends_the_file_from_the_start(
    fetch: Fetch, mirror: Mirror, path: Path, part: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part.write_bytes(CONTENT[:100_000])
    fetch("ignores_range", progress=True)
    assert mirror.requests == [("ignores_range", "bytes=100000-")]
    assert path.read_bytes() == CONTENT
    assert "300.0/300.0 kB" in capsys.readouterr().err


def test_a_server_that_sends_another_range_is_abandoned(fetch: Fetch, mirror: Mirror, path: Path, part: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    fetch("wrong_range", "good")
    assert mirror.requests == [("wrong_range", "bytes=1000-"), ("good", "bytes=1000-")]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "wrong", [b"x" * 1000, b"x" * len(CONTENT), b"x" * 400_000, b""], ids=["short", "full", "too long", "empty"]
)
def test_a_wrong_partial_download_is_deleted(fetch: Fetch, path: Path, part: Path, wrong: bytes) -> None:
    part.write_bytes(wrong)
    fetch("good")
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == {"file.bin"}


def test_a_complete_partial_file_is_only_renamed(fetch: Fetch, mirror: Mirror, path: Path, part: Path) -> None:
    part.write_bytes(CONTENT)
    fetch("good")
    assert mirror.requests == []
    assert path.read_bytes() == CONTENT


def test_a_download_resumes_after_the_server_was_down(fetch: Fetch, mirror: Mirror, path: Path) -> None:
    with pytest.raises(DownloadError, match="closed the connection"):
        fetch("truncates")
    mirror.close()
    with pytest.raises(DownloadError, match="refused"):
        fetch("good")
    again = Mirror(mirror.server_port)
    try:
        fetch("good")
        assert again.requests == [("good", f"bytes={HALF}-")]
    finally:
        again.close()
    assert path.read_bytes() == CONTENT


@pytest.mark.slow
def test_a_killed_download_is_resumed(fetch: Fetch, mirror: Mirror, path: Path, part: Path) -> None:
    code = (
        "import sys; from torchmultiset.data._download import download; "
        "download(sys.argv[1:2], sys.argv[2], sha256=sys.argv[3])"
    )
    source = str(Path(sys.modules["torchmultiset"].__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-c", code, *mirror.urls("stalls"), str(path), SHA256],
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size >= 100_000) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    had = part.stat().st_size
    assert 100_000 <= had <= HALF
    assert not path.exists()

    fetch("good")
    assert mirror.requests[-1] == ("good", f"bytes={had}-")
    assert path.read_bytes() == CONTENT


def test_concurrent_downloads_request_the_file_once(fetch: Fetch, mirror: Mirror, path: Path) -> None:
    together = threading.Barrier(4)

    def fetch_together(_: int) -> Path:
        together.wait(30)
        return fetch("slow")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fetch_together, range(4))) == [path] * 4
    assert mirror.requests == [("slow", None)]
    assert path.read_bytes() == CONTENT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full, a disk that is always full")
def test_a_full_disk_is_not_blamed_on_a_mirror(fetch: Fetch, mirror: Mirror, part: Path) -> None:
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        fetch("good", "good", rounds=3)
    assert not isinstance(caught.value, DownloadError)
    assert len(mirror.requests) == 1


def test_progress_is_shown_only_if_requested(fetch: Fetch, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch("good")
    assert capsys.readouterr() == ("", "")
    path.unlink()
    fetch("good", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "file.bin" in err
    assert "300.0/300.0 kB" in err


@pytest.mark.parametrize("urls", ["http://127.0.0.1/one", []])
def test_urls_must_be_a_list(path: Path, urls: object) -> None:
    with pytest.raises(ValueError, match="urls must be a list of at least one URL"):
        download(urls, path, sha256=SHA256)


def test_file_sha256_matches_the_published_example(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # the example of FIPS 180-2
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "home/.cache"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg"),
        ("darwin", {}, "home/Library/Caches"),
        ("darwin", {"XDG_CACHE_HOME": "xdg"}, "xdg"),
        ("win32", {"LOCALAPPDATA": "local"}, "local"),
        ("win32", {}, "home/AppData/Local"),
    ],
)
def test_the_cache_folder_depends_on_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert cache_folder("mnist") == Path(folder, "torchmultiset", "mnist")
