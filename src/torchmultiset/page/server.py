"""Web server of the demo page: static files, the list of models, and predictions.

The server makes no outgoing requests, and its Content-Security-Policy keeps the page from making any.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect

from torchmultiset.page.watching import PageModel, UnfitImageError

__all__ = ["LOOPBACK", "MAX_BYTES", "Rate", "create_app", "serve"]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_BYTES = 10_000_000
"""Maximum size of an image file."""
_AT_A_TIME = 2  # concurrent predictions; further requests wait
_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class Rate:
    """Rate limiter for the requests of each client.

    Args:
        number: Maximum number of requests per time window.
        seconds: Length of the time window.
        clock: Function that returns the time in seconds.

    Example:
        >>> rate = Rate(number=1, seconds=10, clock=lambda: 100.0)
        >>> rate.wait("one client"), rate.wait("one client"), rate.wait("another client")
        (0.0, 10.0, 0.0)
    """

    def __init__(
        self, number: int = 60, seconds: int | float = 60, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.number = number
        self.seconds = seconds
        self.clock = clock
        self._requests: dict[str, deque[float]] = {}

    def wait(self, client: str) -> float:
        """Register a request of a client; return 0 if it is allowed, else the seconds until the next one is."""
        now = self.clock()
        if len(self._requests) > 1000:
            self._requests = {key: times for key, times in self._requests.items() if times[-1] > now - self.seconds}
        times = self._requests.setdefault(client, deque())
        while times and times[0] <= now - self.seconds:
            times.popleft()
        if len(times) >= self.number:
            return times[0] + self.seconds - now
        times.append(now)
        return 0.0


def create_app(
    models: Sequence[PageModel],
    *,
    hosts: frozenset[str] | None = LOOPBACK,
    rate: Rate | None = None,
    page: bool = True,
) -> FastAPI:
    """Create the page and its HTTP API as an ASGI application.

    Args:
        models: Models to choose from, at least one; the first is selected initially.
        hosts: Host names under which the page is served; None: any. Listing only its own names protects it from DNS
            rebinding by other sites.
        rate: Limit on the predictions of each client; None: 60 per minute.
        page: Whether to serve the page, and not only the API.
    """
    offered = {model.name: model for model in models}
    first = next(iter(offered))
    allowed = Rate() if rate is None else rate
    slots = asyncio.Semaphore(_AT_A_TIME)
    app = FastAPI(openapi_url=None)  # FastAPI's documentation pages load scripts from other hosts

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if hosts is not None and request.url.hostname not in hosts:
            response: Response = JSONResponse({"detail": "The page is not served under this host name."}, 421)
        else:
            response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/api/models")
    async def describe() -> dict[str, Any]:
        return {"max_bytes": MAX_BYTES, "models": [model.describe() for model in offered.values()]}

    @app.get("/api/sample")
    async def sample(model: str, index: int) -> Response:
        if model not in offered or not 0 <= index < len(offered[model].own):
            raise HTTPException(404, "There is no such sample.")
        return Response(offered[model].sample(index), media_type="image/png")

    @app.post("/api/predict")
    async def predict(request: Request, model: str = first) -> dict[str, Any]:
        if model not in offered:
            fix = "Reload the page to list the available models." if page else "GET /api/models lists the models."
            raise HTTPException(404, f"There is no model {model} here. {fix}")
        wait = allowed.wait(request.client.host if request.client else "")
        if wait:
            seconds = math.ceil(wait)
            message = f"Too many requests. Try again in {seconds} second{'s' * (seconds > 1)}."
            raise HTTPException(429, message, {"Retry-After": str(seconds)})
        image = await _image(request)
        try:
            async with slots:
                return await run_in_threadpool(offered[model].watch, image)
        except UnfitImageError as error:
            raise HTTPException(422, str(error)) from None

    if page:
        app.mount("/", StaticFiles(directory=_STATIC, html=True))
    return app


def serve(
    models: Sequence[PageModel],
    host: str,
    port: int,
    *,
    ready: Callable[[str], object],
    rate: Rate | None = None,
    page: bool = True,
) -> None:
    """Serve the page and its HTTP API until Ctrl-C.

    Args:
        models: As for `create_app`.
        host: Address to listen on.
        port: Port to listen on; 0: any free port.
        ready: Called with the URL once the port is open.
        rate: As for `create_app`.
        page: As for `create_app`.
    """
    app = create_app(models, hosts=LOOPBACK if host in LOOPBACK else None, rate=rate, page=page)
    with _listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}")
        config = uvicorn.Config(app, log_level="warning", server_header=False, lifespan="off", ws="none")
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = f"{error.strerror or error}. Choose another port with --port; 0 picks a free one"
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from None


async def _image(request: Request) -> bytes:
    # Other sites cannot send these types without a CORS preflight request.
    kind = request.headers.get("content-type", "")
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(415, "The content type is not that of an image. Choose an image file.")
    too_large = HTTPException(413, f"This file is too large. The limit is {MAX_BYTES // 1_000_000} MB.")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BYTES:
        raise too_large
    image = bytearray()
    try:
        async for chunk in request.stream():
            image += chunk
            if len(image) > MAX_BYTES:
                raise too_large
    except ClientDisconnect:
        raise HTTPException(400, "The upload was interrupted. Try again.") from None
    return bytes(image)
