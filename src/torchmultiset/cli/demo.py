"""``multiset demo``: a local page that shows what a model predicts; ``multiset serve``: its HTTP API alone."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from torchmultiset.model.shipped import NAMES
from torchmultiset.page.watching import PageModel

__all__ = ["demo_app", "serve_app"]

_RUNS = Path("runs")  # default output folder of `multiset train`

demo_app = App(
    name="demo",
    help_epilogue="""\
Examples:

- `multiset demo`
- `multiset demo runs/demo mnist-multi-4 --port 8080`
""",
)
serve_app = App(
    name="serve",
    help_epilogue="""\
Examples:

- `multiset serve runs/pets`
- `curl http://127.0.0.1:8000/api/models`
- `curl -H "Content-Type: image/png" --data-binary @cat.png
  http://127.0.0.1:8000/api/predict`
""",
)

_Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]


@demo_app.default
def _demo(
    models: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    /,
    *,
    host: str = "127.0.0.1",
    port: _Port = 8000,
    open_: Annotated[bool, Parameter("--open")] = True,
) -> None:
    """Serve a local page on which you drop or draw an image and see what a model predicts, and why.

    Args:
        models: Folders of models or of training runs, or names of models that ship with the package. Default: all
            shipped models, and all finished runs in runs/ that read images; skipped runs are reported with the reason.
        host: Address to listen on. The default serves this computer only; "0.0.0.0" serves the whole network.
        port: Port to listen on; 0 picks a free one.
        open_: Open the page in a browser, if this computer has a display.
    """
    from torchmultiset.page import server  # needs the extra `page`

    def ready(url: str) -> None:
        print(f"The page is at {url}. Press Ctrl-C to stop.", flush=True)
        if open_ and _has_windows():
            webbrowser.open(url)

    _warn_others(host)
    opened = [PageModel.open(name) for name in dict.fromkeys(models or NAMES)]
    if not models:
        opened += _finished_runs()
    server.serve(opened, host, port, ready=ready)


@serve_app.default
def _serve(
    models: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    host: str = "127.0.0.1",
    port: _Port = 8000,
    per_minute: Annotated[int, Parameter(validator=Number(gte=1))] = 60,
) -> None:
    """Serve models over HTTP, without the page: send an image, receive JSON.

    `POST /api/predict?model=NAME` with the bytes of an image file returns the answer, its probability and the most
    probable multisets; without a model, the first one predicts. `GET /api/models` lists the models.

    Args:
        models: Folders of models or of training runs, or names of models that ship with the package.
        host: Address to listen on. The default serves this computer only; "0.0.0.0" serves the whole network.
        port: Port to listen on; 0 picks a free one.
        per_minute: Maximum number of predictions per minute for each client; further requests get the status 429.
    """
    from torchmultiset.page import server  # needs the extra `page`

    def ready(url: str) -> None:
        print(f"The API is at {url}/api. Press Ctrl-C to stop.", flush=True)

    _warn_others(host)
    opened = [PageModel.open(name) for name in dict.fromkeys(models)]
    server.serve(opened, host, port, ready=ready, rate=server.Rate(per_minute), page=False)


def _warn_others(host: str) -> None:
    from torchmultiset.page import server

    if host not in server.LOOPBACK:
        print("The server is reachable from the network without authentication.")


def _has_windows() -> bool:
    """Return whether a browser can open a window; a text browser would hide the server's output."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _finished_runs() -> list[PageModel]:
    """Open the models in runs/ that the page can show; print why other folders are skipped."""
    opened = []
    for folder in sorted(_RUNS.glob("*/")):
        try:
            opened.append(PageModel.open(str(folder)))
        except Exception as error:  # damaged files can raise almost any exception
            reason = str(error).partition("\n")[0].removeprefix(f"{folder}: ")
            print(f"multiset: skipped {folder}: {reason}", file=sys.stderr)
    return opened
