"""The server under load and abuse: good and bad requests from many clients, raw bytes on real sockets."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from campaign.formats import by_structure
from campaign.kinds import KINDS
from campaign.mutate import by_bytes

__all__ = ["abuse"]

CLIENTS = 32
_ANSWERS = (0, 200, 307, 400, 404, 405, 411, 413, 414, 415, 421, 422, 431, 501)
"""Answers to a request that may be damaged in any way: anything but an error of the server."""
_SERVE = """
import sys
from torchmultiset.page import server
from torchmultiset.page.watching import PageModel
rate = server.Rate(number=int(sys.argv[2])) if len(sys.argv) > 2 else None
server.serve([PageModel.open(sys.argv[1])], "127.0.0.1", 0, rate=rate, ready=lambda url: print(url, flush=True))
"""
_ATTACK = """async () => {
    const violated = [];
    document.addEventListener("securitypolicyviolation", event => violated.push(event.effectiveDirective));
    const script = document.createElement("script");
    script.textContent = "window.ran = 1";
    document.head.append(script);
    await fetch("http://127.0.0.1:9/").catch(() => 0);
    new Image().src = "http://127.0.0.1:9/x.png";
    await new Promise(done => setTimeout(done, 500));
    return violated;
}"""


@contextlib.contextmanager
def _serving(model: Path, *rate: int) -> Iterator[tuple[int, int, Path]]:
    """Serve in a process of its own, optionally with another rate limit; yield port, process id and log."""
    log = model.parent / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-c", _SERVE, str(model), *map(str, rate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, cwd=model.parent, text=True)
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2]), process.pid, log
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            process.stdout.close()


def _picture(rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    pixels = np.frombuffer(rng.randbytes(20 * 20 * 3), dtype=np.uint8).reshape(20, 20, 3)
    Image.fromarray(pixels).save(buffer, rng.choice(("PNG", "JPEG")))
    return buffer.getvalue()


def _request(body: bytes, target: str, *, kind: str = "image/png", host: str = "127.0.0.1") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def exchange(
    port: int, request: bytes, *, parts: int = 1, half: bool = False, seconds: float = 60
) -> tuple[int, bytes]:
    """Send a request, in several parts or only its first half, and return status and answer; 0 if there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            size = max(1, len(request) // parts)
            for start in range(0, len(request) // (2 if half else 1), size):
                connection.sendall(request[start : start + size])
                if parts > 1:
                    time.sleep(0.05)
            if half:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while block := connection.recv(1 << 16):
                answer += block
        except (ConnectionError, TimeoutError, BrokenPipeError):
            return 0, b""
    found = re.match(rb"(?:HTTP/1\.1 100 Continue\r\n\r\n)*HTTP/1\.\d (\d+)", answer)
    return (int(found[1]) if found else 0), answer


def bad_request(rng: random.Random, model: str) -> tuple[str, bytes, dict[str, Any], tuple[int, ...]]:
    """Return a kind of abuse, its request, how to send it, and the answers that are right."""
    picture, target = _picture(rng), f"/api/predict?model={model}"
    paths = "/../../../etc/passwd /%2e%2e/%2e%2e/etc/passwd /..%2f..%2fpredictor.json /samples/../../server.py"
    get = f"GET {rng.choice(paths.split())} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    valid = _request(picture, target)
    oversized = re.sub(rb"Length: \d+", b"Length: 99999999", valid)
    choices: list[tuple[str, bytes, dict[str, Any], tuple[int, ...]]] = [
        ("oversized", oversized, {}, (413,)),
        ("slow", valid, {"parts": 20}, (200,)),
        ("truncated", valid, {"half": True}, (0, 400)),
        ("not an image", _request(rng.randbytes(500), target), {}, (422,)),
        ("wrong content type", _request(picture, target, kind="text/html"), {}, (415,)),
        ("path trick", get, {}, (400, 404)),
        ("other origin", _request(picture, target, host="evil.example"), {}, (421,)),
        ("unknown model", _request(picture, "/api/predict?model=../../x"), {}, (404,)),
        ("damaged image", _request(by_bytes(picture, rng), target), {}, (200, 422)),
        ("damaged request", by_structure("x.http")(valid, rng), {"seconds": 5}, _ANSWERS),
    ]  # fmt: skip
    return rng.choice(choices)


def _memory(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


def _load(port: int, pid: int, requests: int, seed: int, model: str) -> tuple[Counter[str], list[str], list[float]]:
    """Send requests from all clients at once, half of them good."""
    counts, failures, memory, lock = Counter[str](), list[str](), list[float](), threading.Lock()
    numbers = iter(range(requests))

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            rng = random.Random(f"{seed} {number}")
            if number % 2:
                kind, request, how, right = bad_request(rng, model)
            else:
                good = _request(_picture(rng), f"/api/predict?model={model}")
                kind, request, how, right = "good", good, {}, (200,)
            status, answer = exchange(port, request, **how)
            secret = b"root:x:0" in answer or b"description_sha256" in answer
            with lock:
                counts[kind] += 1
                if status not in right:
                    failures.append(f"{kind}: answer {status}, not {' or '.join(map(str, right))}")
                if secret:
                    failures.append(f"{kind}: a file outside of the folder was served")
                if number % 50 == 0:
                    memory.append(_memory(pid))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts, failures, memory


def _damaged_requests(port: int, number: int, seed: int, model: str) -> tuple[Counter[str], list[str]]:
    """Send mutations of a valid request; the server may refuse each, but must not fail."""
    valid = _request(_picture(random.Random(seed)), f"/api/predict?model={model}")

    def send(case: int) -> tuple[int, bytes]:
        rng = random.Random(f"{seed} http {case}")
        mutate = by_structure("x.http") if case % 2 else by_bytes
        return exchange(port, mutate(valid, rng), seconds=5)  # some wait for more, which never comes

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(send, range(number)))
    counts = Counter("read" if status == 200 else "refused" if status else "no answer" for status, _ in answers)
    failures = [
        f"damaged request {case}: answer {status}"
        for case, (status, answer) in enumerate(answers)
        if status not in _ANSWERS or b"root:x:0" in answer
    ]
    return counts, failures


def _default_rate(model: Path) -> tuple[dict[str, int], list[str]]:
    """Send 70 predictions in a row: the default limit answers 60 of them."""
    with _serving(model) as (port, _, _):
        picture = _request(_picture(random.Random(0)), f"/api/predict?model={model}")
        answers = Counter(exchange(port, picture)[0] for _ in range(70))
    wrong = [] if answers == {200: 60, 429: 10} else [f"default rate limit: {dict(answers)}"]
    return {str(status): number for status, number in answers.items()}, wrong


def _browser(model: Path) -> tuple[str, list[str]]:
    """Open the page in a real browser: the headers are there, and they are enforced."""
    executable = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "skipped: playwright is not installed", []
    if executable is None:
        return "skipped: chromium is not installed", []
    failures = []
    wanted = ("content-security-policy", "cross-origin-opener-policy", "referrer-policy", "x-content-type-options")
    with _serving(model) as (port, _, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        answer = page.goto(f"http://127.0.0.1:{port}/")
        assert answer is not None
        failures += [f"browser: no header {name}" for name in wanted if name not in answer.headers]
        # Neither a script in the page nor another address gets past the policy, and the browser says so.
        here = (f"http://127.0.0.1:{port}/", "data:")
        failures += [f"browser: asked for {url}" for url in asked if not url.startswith(here)]
        violated = page.evaluate(_ATTACK)
        for directive in ("script-src-elem", "connect-src", "img-src"):
            if directive not in violated:
                failures.append(f"browser: {directive} was not enforced")
        browser.close()
    return "checked", failures


def _loopback(port: int) -> list[str]:
    """Return a failure for each other address of this machine under which the server answers."""
    found = []
    with contextlib.suppress(OSError):
        for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
            if not str(address).startswith("127."):
                with contextlib.suppress(OSError), socket.create_connection((str(address), port), timeout=1):
                    found.append(f"the server answers at {address}")
    return found


def abuse(root: Path, requests: int, seed: int, *, browser: bool = True) -> dict[str, Any]:
    """Serve a small model, and send good and bad requests."""
    root.mkdir(exist_ok=True)
    KINDS["array (.npy)"].build(root)
    model = root / "model"
    start = time.monotonic()
    with _serving(model, 10**9) as (port, pid, log):
        _load(port, pid, CLIENTS * 2, seed + 1, str(model))  # warm up: caches and threads take memory once
        before = _memory(pid)
        counts, failures, memory = _load(port, pid, requests, seed, str(model))
        after = _memory(pid)
        damaged, wrong = _damaged_requests(port, requests, seed, str(model))
        failures += wrong
        failures += _loopback(port)
        errors = log.read_text()
    seconds = time.monotonic() - start
    if "Traceback" in errors:
        failures.append(f"the server logged an exception: {errors.strip().splitlines()[-1][:200]}")
    if after > before + 60:
        failures.append(f"memory grew from {before:.0f} to {after:.0f} MB")
    answers, wrong = _default_rate(model)
    failures += wrong
    shown, wrong = _browser(model) if browser else ("left out", [])
    return {
        "tried": sum(counts.values()) + sum(damaged.values()), "clients": CLIENTS, "seed": seed,
        "requests": dict(counts), "damaged requests": dict(damaged),
        "seconds": round(seconds, 1),
        "megabytes": {"before": round(before), "after": round(after), "most": round(max(memory, default=after))},
        "default rate": answers, "browser": shown, "failures": failures + wrong,
    }  # fmt: skip
