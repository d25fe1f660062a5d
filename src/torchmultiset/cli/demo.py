"""``multiset demo``: a local page that shows step by step how a model predicts labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from torchmultiset.model.shipped import NAMES
from torchmultiset.page.watching import PageModel

__all__ = ["app"]

_RUNS = Path("runs")  # default output folder of `multiset train`

app = App(
    name="demo",
    help_epilogue="""\
Examples:

- `multiset demo`
- `multiset demo runs/demo mnist-multi-4 --port 8080`
""",
)


@app.default
def demo(
    models: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    /,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
) -> None:
    """Serve a local page on which you drop or draw an image and watch a model predict its labels one by one.

    Args:
        models: Folders of models or of training runs, or names of models that ship with the package. Default: all
            shipped models, and all finished runs in runs/ that read images; skipped runs are reported with the reason.
        host: Address to listen on. The default serves this computer only; "0.0.0.0" serves the whole network.
        port: Port to listen on; 0 picks a free one.
    """
    from torchmultiset.page import server  # needs the extra `page`

    if host not in server.LOOPBACK:
        print(f"Anyone who can reach {host} can use the page.")
    opened = [PageModel.open(name) for name in dict.fromkeys(models or NAMES)]
    if not models:
        opened += _finished_runs()
    server.serve(opened, host, port, ready=_announce)


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


def _announce(url: str) -> None:
    print(f"The page is at {url}. Press Ctrl-C to stop.", flush=True)
