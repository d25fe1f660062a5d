"""The steps under "Add it to the library" are followed in a copy of the repository, so that missing steps fail."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from pet_table import write_pets

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HOWTO = ROOT / "docs" / "howto"
COPIED = ("src", "tests", "tools", "docs", "pyproject.toml", "README.md")
# A `-k` expression for tests that depend on the registry, and the files with these tests.
CASES = "missing-mass or presence or bag or spectrum or refused or regist or choice or built"
TESTS = ("test_docs.py", "test_package.py", "test_pooling.py", "model/test_build.py", "encoders/test_token_encoders.py")
# Page -> table of the registry to which its line is added.
PAGES = {"policy": "POLICIES", "encoder": "ENCODERS", "head": "HEADS"}
LINE = re.compile(r'^    ("\S+": "(torchmultiset\S+):(\w+)",)$', re.M)


def page(name: str) -> str:
    return (HOWTO / f"add-a{'n' * (name == 'encoder')}-{name}.md").read_text()


def whole_file(name: str) -> tuple[str, str]:
    """Return the path and the content of the file that a page shows."""
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", page(name), re.M | re.S)]
    (code,) = (block for block in blocks if block.startswith("# src/torchmultiset/"))
    return code.partition("\n")[0].removeprefix("# "), code


def examples(name: str) -> str:
    """Return the code of the examples of a page."""
    lines = re.findall(r"^ *(?:>>>|\.\.\.)(?: (.*))?$", page(name), re.M)
    return "\n".join(lines)


def class_file(name: str, cls: str) -> str:
    """Return a module with a class of a page, the methods of its second version, and their imports."""
    code = examples(name)
    nodes = ast.parse(code).body
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def text(node: ast.stmt) -> str:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return "\n".join(code.splitlines()[first - 1 : node.end_lineno])

    body = [text(classes[cls])]
    for other in classes.values():
        if cls in [base.id for base in other.bases if isinstance(base, ast.Name)]:
            body += [text(part) for part in other.body]
            body.insert(0, "from torchmultiset._arguments import recorded\n@recorded")
    words = set(re.findall(r"\w+", body[-1] + body[0] + text(classes[cls])))
    imports = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom) and words & {alias.name for alias in node.names}
    ]
    return "\n".join([*dict.fromkeys(imports), *body]) + "\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A copy of the repository with the loss, policy, encoder, head and data set of the pages."""
    root = tmp_path_factory.mktemp("library")
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "static")
    for path in ROOT.glob("[!.]*"):
        if path.name not in COPIED:
            (root / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, root / path.name, ignore=ignored)
        else:
            shutil.copy(path, root)
    source = root / "src"
    registry = source / "torchmultiset" / "model" / "registry.py"

    def register(table: str, line: str) -> None:
        before = registry.read_text()
        after = re.sub(rf'(^{table} = Registry\(\n    "\w+",\n    {{\n)', rf"\1        {line}\n", before, flags=re.M)
        assert after != before
        registry.write_text(after)

    def add(table: str, line: str, module: str, code: str) -> None:
        path = source.joinpath(*module.split(".")).with_suffix(".py")
        assert not path.exists()
        path.write_text(code)
        register(table, line)

    path, code = whole_file("data-set")
    assert not (root / path).exists()
    (root / path).write_text(code)
    (line,) = re.findall(r"```markdown\n *(.*)\n *```", page("data-set"))
    with (root / "docs" / "api" / "data.md").open("a") as reference:
        reference.write(f"\n{line}\n")
    path, code = whole_file("loss")
    ((line, module, _),) = LINE.findall(page("loss"))
    assert path == f"src/{module.replace('.', '/')}.py"
    add("OBJECTIVES", line, module, code)
    for name, table in PAGES.items():
        for line, module, cls in LINE.findall(page(name)):
            add("OBJECTIVES" if "objectives" in module else table, line, module, class_file(name, cls))
    return root


def test_the_tests_that_read_the_registry_pass(library):
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-k", CASES, "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(library / "src")}
    tests = [f"tests/{name}" for name in TESTS]
    done = subprocess.run([*command, *tests], capture_output=True, text=True, cwd=library, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.fixture
def multiset(library, tmp_path):
    """The command line of the extended package."""

    def run(*tokens: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torchmultiset", *map(str, tokens)]
        environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(library / "src")}
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
        )

    return run


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (
            ("--objective", "missing-mass", "--mass-weight", 2, "--policy", "bag", "--hidden", 8),
            {"objective": "missing-mass", "mass_weight": 2.0, "policy": "bag"},
        ),
        (
            ("--objective", "presence", "--encoder", "spectrum", "--units", 8),
            {"objective": "presence", "encoder": "spectrum"},
        ),
    ],
)
def test_the_command_line_trains_with_the_additions(multiset, tmp_path, flags, settings):
    write_pets(tmp_path)
    done = multiset("train", "pets.csv", *flags, "--epochs", 1, "--batch-size", 16, "--out", "run")
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert {name: config[name] for name in settings} == settings
    evaluated = multiset("evaluate", "run", "pets.csv")  # loads the added classes with the saved model
    assert evaluated.returncode == 0, evaluated.stderr


def test_the_bound_and_the_help_of_a_setting_come_from_its_field(multiset):
    wrong = multiset("train", "pets.csv", "--objective", "missing-mass", "--mass-weight", "-1")
    assert wrong.returncode != 0
    assert "mass_weight must be at least 0, but is -1" in " ".join(wrong.stderr.split())
    shown = " ".join(re.sub(r"[│\s]+", " ", multiset("train", "--help-all").stdout).split())
    assert "For missing-mass: weight of the wasted probability." in shown


def test_a_data_set_is_written_and_trained_on(library, multiset, tmp_path):
    write = "from torchmultiset.data.bars import write_bars; print(*write_bars('bars', train=70)['test'].counts.sum(0))"
    environment = os.environ | {"PYTHONPATH": str(library / "src")}
    for _ in range(2):  # the second call reads the written folder
        written = subprocess.run(
            [sys.executable, "-c", write], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert written.returncode == 0, written.stderr
        assert all(3 < int(count) < 27 for count in written.stdout.split())
    done = multiset("train", "bars", "--objective", "counts", "--epochs", 1, "--channels", 4, 8, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["test"]["overall"]["examples"] == 10
