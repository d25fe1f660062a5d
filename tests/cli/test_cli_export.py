from __future__ import annotations

import contextlib
import io
import json
import sys

import numpy as np
import pytest
import torch
from command_line import Run, cells, runner
from jaxtyping import config

from torchmultiset._install import pip_install
from torchmultiset.cli import export as command
from torchmultiset.cli import main
from torchmultiset.encoders import MLPEncoder
from torchmultiset.export import open_onnx
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import LSTMPolicy

pytestmark = [pytest.mark.usefixtures("without_shape_hook"), pytest.mark.slow]


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


def make_predictor(seed: int = 0) -> Predictor:
    torch.manual_seed(seed)
    predictor = Predictor(MLPEncoder(5, (32,)), LSTMPolicy(3, 32, hidden=16), ("a", "b", "c"), max_size=2)
    with torch.no_grad():
        for weight in predictor.parameters():
            weight.mul_(3)
    predictor.record = {"input": {"shape": [5], "dtype": "float32", "exif": False}}
    return predictor.eval()


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """The working directory, with a run whose model can be exported."""
    monkeypatch.chdir(tmp_path)
    make_predictor().save(tmp_path / "runs" / "tiny" / "model")
    return tmp_path


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> tuple[list[str], bytes]:
    """Output lines of an export, and the content of the exported file."""
    pytest.importorskip("onnxruntime")
    folder, output, before = tmp_path_factory.mktemp("real"), io.StringIO(), config.jaxtyping_disable
    make_predictor().save(folder / "model")
    config.update("jaxtyping_disable", True)  # shape checks would turn symbolic shapes into numbers
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        assert main(["export", "model", "--format", "onnx", "--out", "tiny.onnx", "--number", "100"]) == 0
    config.update("jaxtyping_disable", before)
    assert sorted(path.name for path in folder.iterdir()) == ["model", "tiny.onnx"]
    return [line.rstrip() for line in output.getvalue().splitlines()], (folder / "tiny.onnx").read_bytes()


@pytest.fixture
def quick(monkeypatch, real) -> None:
    """Replace the export, which takes seconds, by the exported file of `real`."""
    monkeypatch.setattr(command, "to_onnx", lambda predictor: real[1])


def test_help_has_examples_in_80_columns(run):
    code, lines, err = run("export", "--help")
    assert (code, err) == (0, "")
    text = " ".join(" ".join(lines).split())
    for name in ("MODEL", "--format", "--out", "--data", "--number", "multiset export runs/demo"):
        assert name in text
    assert max(map(len, lines)) <= 80


def test_the_file_predicts_as_in_pytorch_and_its_size_and_speed_are_reported(real):
    lines, content = real
    x = np.random.default_rng(3).normal(size=(50, 5)).astype(np.float32)
    (counts,) = open_onnx(content).run(["counts"], {"inputs": x})
    assert np.array_equal(counts, make_predictor().predict(torch.from_numpy(x)).numpy())
    assert max(map(len, lines)) <= 80
    assert lines[0] == "tiny.onnx agrees with PyTorch on all 100 random inputs."
    shown = [line.replace("ONNX Runtime", "ONNX") for line in lines]
    for name, size in (
        ("PyTorch", sum(value.nbytes for value in make_predictor().state_dict().values())),
        ("ONNX", len(content)),
    ):
        row = cells(shown, name)
        assert row[0] == f"{size / 1e6:.2f} MB"
        assert [cell.split()[1] for cell in row[1:]] == ["ms", "ms"]


@pytest.mark.usefixtures("quick")
def test_the_printed_example_runs(run, cwd):
    import onnxruntime

    _, lines, _ = run("export", "runs/tiny/model", "--number", 1)
    assert lines[0].startswith("tiny.onnx ")
    names = {"onnxruntime": onnxruntime, "json": json, "x": np.ones((4, 5), np.float32)}
    exec("\n".join(line.strip() for line in lines if line.startswith("  ") and " = " in line), names)
    assert names["classes"] == ["a", "b", "c"]
    assert names["counts"].shape == (4, 3)
    assert np.array_equal((names["sequence"] >= 0).sum(1), names["counts"].sum(1))


@pytest.mark.usefixtures("quick")
def test_predictions_are_compared_on_the_given_data(run, cwd):
    np.save("x.npy", np.ones((7, 5)))
    rows = ["a,b,c,d,e,labels,split", *(f"{i},2,3,4,5,a;b,{'train' if i else 'test'}" for i in range(5))]
    (cwd / "t.csv").write_text("\n".join(rows))
    _, lines, err = run("export", "runs/tiny", "--data", "x.npy", "--out", "one.onnx")
    assert err == ""
    assert lines[:2] == [
        "one.onnx agrees with PyTorch on all 7 inputs.",
        "Distinct predicted multisets: 1.",
    ]
    _, lines, _ = run("export", "runs/tiny", "--data", "t.csv", "--out", "two.onnx")
    assert "agrees with PyTorch on 1 input." in lines[0]
    _, lines, _ = run("export", "runs/tiny", "--data", "t.csv", "--split", "all", "--number", 4, "--out", "three.onnx")
    assert "agrees with PyTorch on all 4 inputs." in lines[0]


@pytest.mark.parametrize(
    ("tokens", "code", "message"),
    [
        ("runs/tiny --out model.txt", 2, 'must have extension "onnx"'),
        ("runs/tiny --format onx", 2, 'Did you mean "onnx"'),
        ("runs/tiny --number 0", 2, "Must be >= 1"),
        ("runs/none", 1, "there is no model runs/none"),
        ("runs/tiny --out taken.onnx", 1, "taken.onnx already exists: delete it, or choose another name"),
        ("runs/tiny --data none.npy", 1, "there is no file or folder none.npy"),
        ("runs/tiny --data wrong.npy", 1, "this model reads inputs of shape 5"),
        ("silent", 1, "the model's record does not describe its inputs"),
    ],
)
def test_errors_are_reported_in_one_line_and_nothing_is_written(run, cwd, tokens, code, message):
    make_predictor().save(cwd / "silent", record={})
    (cwd / "taken.onnx").write_text("mine")
    np.save("wrong.npy", np.zeros((2, 7)))
    before = sorted(cwd.rglob("*"))
    found, lines, err = run("export", *tokens.split())
    assert found == code
    assert message in err
    assert "Traceback" not in err
    assert lines == []
    assert sorted(cwd.rglob("*")) == before
    assert (cwd / "taken.onnx").read_text() == "mine"


@pytest.mark.usefixtures("quick")
def test_a_file_with_different_predictions_is_not_written(run, cwd):
    make_predictor(7).save(cwd / "other")
    code, lines, err = run("export", "other")
    assert (code, lines) == (1, [])
    assert "of 250 inputs differently from PyTorch, so it was not written" in err
    assert not [*cwd.glob("*.onnx*")]


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_the_error_has_the_install_command(run, cwd, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, lines, err = run("export", "runs/tiny")
    assert (code, lines) == (1, [])
    assert err == f"multiset: exporting needs ONNX packages: {pip_install('onnx')}\n"
    assert [path.name for path in cwd.iterdir()] == ["runs"]
