"""Nothing executes: a static check that no file which a user can receive is unpickled, evaluated or imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDERS", "check_execution", "find_execution"]

FOLDERS = ("src", "paper", "benchmarks", "examples", "tools", "campaign")
_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "pickletools",
}  # fmt: skip
_CALLS = {"eval", "exec", "compile", "__import__"}
_ATTRIBUTES = {
    "yaml.load": "use a parser of plain values",
    "yaml.unsafe_load": "use a parser of plain values",
    "os.system": "use subprocess with a list of arguments",
    "os.popen": "use subprocess with a list of arguments",
    "pandas.read_pickle": "use CSV",
    "torch.jit.load": "it runs the program in the file",
    "torch.package.PackageImporter": "it runs the program in the file",
    "torch.hub.load": "it runs a program from the network",
}


def find_execution(source: str) -> Iterator[tuple[int, str]]:
    r"""Yield the line and a description of each call that could execute content of a file.

    Example:
        >>> list(find_execution("import torch\ntorch.load('model.pt')"))
        [(2, 'torch.load without weights_only=True')]
        >>> list(find_execution("torch.load('model.pt', weights_only=True)"))
        []
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            if name.partition(".")[0] in _MODULES:
                yield node.lineno, f"import of {name}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _call(node))


def _call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if isinstance(node.func, ast.Name) and name in _CALLS:
        yield name
    if name in _ATTRIBUTES:
        yield f"{name}: {_ATTRIBUTES[name]}"
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    if name in ("np.load", "numpy.load", "np.lib.format.read_array", "numpy.lib.format.read_array") and not _is(
        given.get("allow_pickle", ast.Constant(False)), False
    ):
        yield f"{name} with allow_pickle"
    if not _is(given.get("shell", ast.Constant(False)), False):
        yield f"{name} with shell=True"
    if not _is(given.get("trust_remote_code", ast.Constant(False)), False):
        yield f"{name} with trust_remote_code"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def check_execution(root: Path, folders: Sequence[str] = FOLDERS) -> dict[str, Any]:
    """Check all Python files of the project."""
    files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    failures = [
        {"file": file.relative_to(root).as_posix(), "line": line, "what": what}
        for file in files
        for line, what in find_execution(file.read_text(encoding="utf-8"))
    ]
    return {"files": len(files), "failures": failures}
