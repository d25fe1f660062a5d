"""The tools behind `make oldest`, and their record."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def tool(monkeypatch):
    """Import a tool by name."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


def test_the_record_has_the_declared_bounds_and_all_checks_passed(tool):
    oldest = tool("oldest")
    declared = oldest.lower_bounds(PROJECT, oldest.EXTRAS)
    assert len(declared) > len(PROJECT["dependencies"])
    record = json.loads((ROOT / "results" / "oldest.json").read_text())
    assert record["claimed"] == declared, "a lower bound has moved: run `make oldest`"
    assert record["outcome"] == "passed"
    assert {*record["checks"]} == {*tool("check_oldest").CHECKS}
    assert {*record["checks"].values()} == {"passed"}
    assert {*record["installed"]} == {*declared}
    for name, version in record["installed"].items():
        assert oldest.release(version) >= oldest.release(declared[name])
    for name in {*record["versions"]} & {*declared}:
        assert record["versions"][name].split("+")[0] == record["installed"][name]


@pytest.mark.parametrize("line", ["torch", "torch==2.7", "torch<3", "torch>=2.7; python_version < '3'"])
def test_a_dependency_without_a_plain_lower_bound_is_reported(tool, line):
    with pytest.raises(ValueError, match="has no lower bound: write it as name>=version"):
        tool("oldest").lower_bounds({"dependencies": [line], "optional-dependencies": {}}, ())


def test_the_oldest_available_version_is_chosen(tool):
    oldest = tool("oldest").oldest
    offered = ["2.10.1", "2.9.0", "2.7.1", "2.7.0", "2.6.3"]
    assert [oldest(lower, offered) for lower in ("2.7", "2.7.1", "2.8", "2.10", "2")] == [
        "2.7.0", "2.7.1", "2.9.0", "2.10.1", "2.6.3",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no version 3 or later, only 2\.10\.1, "):
        oldest("3", offered)


@pytest.mark.parametrize("check", ["losses", "metrics", "import"])
def test_the_checks_pass_in_this_environment(tool, check):
    tool("check_oldest").CHECKS[check]()
