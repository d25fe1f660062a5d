"""The cells of the notebook run in order, without Jupyter, and give the results that its text describes."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def code_cells(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_hook")
def test_the_cells_run_in_order(tmp_path, monkeypatch, capsys):
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text())
    shutil.copy(EXAMPLES / "digits.png", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [run(cell, names) for cell in code_cells(notebook)]
    counts, (sevens, labels, proba), best, _, _, packed, _, (undecided, good) = shown
    assert counts == {"7": 2, "4": 1}
    assert (sevens, labels) == (2, 3)
    assert 0.9 < proba <= 1
    assert best[0][0] == {"7": 2, "4": 1}
    assert packed == {"ticket": 3, "room": 2, "snack": 2}
    assert good < undecided
    assert "missing before step 2: {'cat': 1, 'dog': 1, 'cow': 0}" in capsys.readouterr().out
    assert (tmp_path / "runs" / "trips" / "model").is_dir()


def test_the_notebook_is_stored_without_outputs():
    cells = json.loads((EXAMPLES / "first_steps.ipynb").read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
