"""``multiset demo``: a local page on which one watches a model name labels."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from torchmultiset.models import NAMES

__all__ = ["app"]

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
    models: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    /,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
) -> None:
    """Open a page on which one draws or drops a picture and watches a model name one label after another.

    Args:
        models: Folders of models or of runs, or names of models that come with the package; by default all of those.
        host: Address to listen at. The default is for this computer only; "0.0.0.0" lets in all that can reach it.
        port: Port to listen at; 0 takes any that is free.
    """
    from torchmultiset.page import server  # needs an extra

    if host not in server.LOOPBACK:
        print(f"Everyone who can reach {host} can use the page.")
    server.serve(models or NAMES, host, port, ready=_tell)


def _tell(url: str) -> None:
    print(f"The page is at {url}. Ctrl-C ends it.", flush=True)
