"""The first commands of a new user: the overview, a sample, CSV output, the doctor."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch
from command_line import Run, runner
from PIL import Image

from torchmultiset import _install
from torchmultiset.cli import doctor
from torchmultiset.data.load import load_data
from torchmultiset.data.manifest import read_manifest
from torchmultiset.data.shapes import SHAPES, write_shapes


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Run:
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch)


def test_commands_are_grouped_by_purpose(run):
    _, lines, _ = run("--help")
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("╭─"):
            title = line.split()[1]
        elif line.startswith("│ ") and line[2] not in " -":
            found.setdefault(title, []).append(line.split()[1])
    assert found == {
        "Start": ["data", "train", "predict", "demo", "doctor"],
        "Inspect": ["evaluate", "compare"],
        "Deploy": ["export", "serve"],
        "Research": ["sweep"],
    }


def test_a_sample_is_ready_to_train(run, tmp_path):
    code, lines, err = run("data", "sample", "shapes")
    assert (code, err) == (0, "")
    assert lines[0] == "shapes holds 60 pictures of shapes, and labels.csv, which lists them."
    assert "  multiset train shapes" in lines
    splits = load_data(tmp_path / "shapes", check_inputs=True)
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 42, "validation": 6, "test": 12}
    assert splits["train"].classes == tuple(sorted(SHAPES))
    sizes = {int(size) for examples in splits.values() for size in examples.counts.sum(1)}
    assert sizes == {1, 2, 3, 4}
    code, _, err = run("data", "sample", "shapes")
    assert (code, err) == (1, "multiset: shapes already exists: choose another folder\n")


def test_samples_are_reproducible_and_show_their_labels(tmp_path):
    first, again = write_shapes(tmp_path / "a", number=6), write_shapes(tmp_path / "b", number=6)
    assert first.read_bytes() == again.read_bytes()
    for image in sorted(first.parent.glob("*.png")):
        assert image.read_bytes() == (again.parent / image.name).read_bytes()
    other = write_shapes(tmp_path / "c", number=6, seed=1)
    assert other.read_bytes() != first.read_bytes()
    for row in csv.DictReader(io.StringIO(first.read_text())):
        pixels = np.asarray(Image.open(first.parent / row["image"])).astype(int)
        labels = {part.split(":")[0] for part in row["labels"].split(";")}
        for shape, colour in SHAPES.items():
            rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
            assert ((abs(pixels - rgb).max(-1) < 6).sum() > 40) == (shape in labels)


@pytest.mark.slow
def test_csv_output_can_be_read_as_a_table_of_labels(run, tmp_path):
    from page_models import SIDE, predictor, save

    save(predictor("counts"), tmp_path / "model")
    (tmp_path / "new").mkdir()
    for i in range(3):
        Image.fromarray(np.full((SIDE, SIDE), 60 * i, np.uint8)).save(tmp_path / "new" / f"{i}.png")
    (tmp_path / "new" / "labels.csv").write_text("image,labels\n0.png,apple:2\n1.png,pear\n2.png,\n")
    code, lines, err = run("predict", "model", "new/0.png", "new/1.png", "--csv")
    assert (code, err) == (0, "")
    rows = [*csv.DictReader(lines)]
    assert [*rows[0]] == ["input", "labels", "confidence"]
    assert [row["input"] for row in rows] == ["new/0.png", "new/1.png"]
    assert all(0 < float(row["confidence"]) <= 1 for row in rows)
    (tmp_path / "again.csv").write_text("\n".join(lines).replace("input", "image").replace("confidence", "#sure"))
    again = read_manifest(tmp_path / "again.csv", fractions=(1, 0, 0), classes=("apple", "pear", "plum"))
    assert len(again["train"]) == 2
    _, lines, _ = run("predict", "model", "new", "--csv", "--min-confidence", "1")
    rows = [*csv.DictReader(lines)]
    assert [*rows[0]] == ["input", "labels", "confidence", "truth", "right", "abstained"]
    assert [row["truth"] for row in rows] == ["apple:2", "pear:1", ""]
    assert all(row["abstained"] == "True" and row["labels"] == row["right"] == "" for row in rows)
    for flag in ("--json", "--best=2", "--coverage=0.9"):
        code, lines, err = run("predict", "model", "new", "--csv", flag)
        assert (code, lines) == (1, [])
        assert f"--csv and {flag.split('=')[0]} cannot be combined" in err


@pytest.mark.slow
def test_the_doctor_reports_packages_devices_and_a_self_test(run, monkeypatch):
    code, lines, err = run("doctor")
    assert (code, err) == (0, "")
    text = "\n".join(lines)
    assert f"PyTorch {torch.__version__}" in text
    assert all(extra in text for extra in doctor._EXTRAS)
    (row,) = (line.split() for line in lines if line.startswith("cpu"))
    assert row[1] == "passed"
    assert float(row[2]) >= 0.95  # the self-test requires 0.9
    monkeypatch.setattr(doctor, "self_test", lambda device: ("it is too hot", 0.0, 1.0))
    monkeypatch.setattr(doctor, "find_spec", lambda module: None)
    code, lines, err = run("doctor")
    assert (code, err) == (1, "multiset: the self-test failed. cpu: it is too hot\n")
    assert sum("pip install" in line for line in lines) == len(doctor._EXTRAS)


def test_the_doctor_lists_every_extra():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*doctor._EXTRAS} == {*project["optional-dependencies"]} - {"coco", "docs", "dev"}


@pytest.mark.slow
def test_the_self_test_fails_if_predictions_differ_from_the_cpu(monkeypatch):
    real, calls = doctor.evaluate, []

    def wrong(predictor, examples):
        calls.append(1)
        found = real(predictor, examples)
        return found._replace(counts=found.counts + (len(calls) == 1))

    monkeypatch.setattr(doctor, "evaluate", wrong)
    problem, _, _ = doctor.self_test(torch.device("cpu"), epochs=1)
    assert problem == "100.0% of its predictions differ from those of the CPU"


def test_install_hints_use_the_source_of_the_installed_package(tmp_path, monkeypatch):
    clone = _install._clone()[1]
    assert clone is not None
    monkeypatch.chdir(tmp_path)
    assert _install.pip_install("page") == f'pip install -e "{clone}[page]"'
    monkeypatch.chdir(clone)
    assert _install.pip_install("page") == 'pip install -e ".[page]"'
    monkeypatch.setattr(_install, "_clone", lambda: (False, clone))
    assert _install.pip_install("page") == 'pip install ".[page]"'
    monkeypatch.setattr(_install, "_clone", lambda: (False, None))
    assert _install.pip_install("page") == 'pip install "torchmultiset[page]"'


@pytest.mark.parametrize(
    ("about", "expected"),
    [('{"url": "file://%s", "dir_info": {}}', True), ('{"url": "https://x.org/a.whl"}', False), (None, False)],
)
def test_the_folder_of_a_local_installation_is_known(monkeypatch, tmp_path, about, expected):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return about % tmp_path if about and "%" in about else about

    monkeypatch.setattr(_install, "__file__", str(tmp_path / "site" / "torchmultiset" / "_install.py"))
    monkeypatch.setattr(_install, "distribution", lambda name: Installed())
    assert _install._clone() == (False, tmp_path if expected else None)


@pytest.mark.slow
def test_a_backbone_for_a_table_is_refused_without_a_download(run, tmp_path):
    rows = "".join(f"{i},a;b\n" for i in range(20))
    (tmp_path / "t.csv").write_text(f"weight,labels\n{rows}")
    code, _, err = run("train", "t.csv", "--backbone", "resnet34")
    assert code == 1
    assert err == "multiset: a backbone reads images, but t.csv is a table: remove --backbone resnet34\n"
