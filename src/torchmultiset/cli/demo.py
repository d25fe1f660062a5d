"""``multiset demo``: a local page on which one watches a model name labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from torchmultiset.model.shipped import NAMES
from torchmultiset.page.watching import PageModel

__all__ = ["app"]

_RUNS = Path("runs")  # where `multiset train` puts them

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
    """Open a page on which one draws or drops a picture and watches a model name one label after another.

    Args:
        models: Folders of models or of runs, or names of models that come with the package. If none is given, all that
            come with the package, and all finished runs in runs/ that read images; a line says what is skipped and why.
        host: Address to listen at. The default is for this computer only; "0.0.0.0" lets in all that can reach it.
        port: Port to listen at; 0 takes any that is free.
    """
    from torchmultiset.page import server  # needs an extra

    if host not in server.LOOPBACK:
        print(f"Everyone who can reach {host} can use the page.")
    opened = [PageModel.open(name) for name in dict.fromkeys(models or NAMES)]
    if not models:
        opened += _finished_runs()
    server.serve(opened, host, port, ready=_tell)


def _finished_runs() -> list[PageModel]:
    """The models in runs/ that the page can show; of each other folder there, a line says why not."""
    opened = []
    for folder in sorted(_RUNS.glob("*/")):
        try:
            opened.append(PageModel.open(str(folder)))
        except Exception as error:  # damaged files make it raise nearly anything
            reason = str(error).partition("\n")[0].removeprefix(f"{folder}: ")
            print(f"multiset: skipped {folder}: {reason}", file=sys.stderr)
    return opened


def _tell(url: str) -> None:
    print(f"The page is at {url}. Ctrl-C ends it.", flush=True)
