"""Regression tests for the faults found by the campaign: messages about damaged files have the file and a remedy."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from command_line import runner

from campaign.damage import judge
from campaign.kinds import KINDS
from torchmultiset.pipeline.standings import read_standings


@pytest.fixture
def read(tmp_path, capsys, monkeypatch):
    """Build the files of a kind, damage one, read it; return the message, which must have the file and a remedy."""
    runner(capsys, monkeypatch)

    def run(kind, name, damage):
        KINDS[kind].build(tmp_path)
        file = tmp_path / name
        file.write_bytes(damage(file.read_bytes()))
        capsys.readouterr()
        code, out = KINDS[kind].run(tmp_path, file)
        message = capsys.readouterr().err
        assert judge(kind, file, code, out, message, "") == ("refused", ""), message
        return message

    return run


def changed(**values):
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


def without(key):
    return lambda data: json.dumps({name: value for name, value in json.loads(data).items() if name != key}).encode()


@pytest.mark.parametrize(
    ("kind", "name", "damage", "expected"),
    [
        ("table (CSV)", "table.csv", lambda data: data.replace(b"a,b", b"a,a", 1), "duplicate column 'a': rename one"),
        ("table (CSV)", "table.csv", lambda data: data.replace(b"a,b", b"a,", 1), "a column has no name: add one"),
        ("list of images (JSONL)", "list.jsonl", lambda data: data[:-9], "not JSON: .*: correct or remove the line"),
        ("list of images (JSONL)", "list.jsonl", lambda data: b"[" * 100_000, "nested too deeply: correct"),
        (
            "list of images (JSONL)",
            "list.jsonl",
            lambda data: data.replace(b"3.png", b"x.png"),
            "no file .*x.png: correct",
        ),
        (
            "list of arrays (JSONL, .npy)",
            "4.npy",
            lambda data: data[:-4] + b"\xff\xff\xff\x7f",
            "contains NaN.*: remove",
        ),
        (
            "COCO import",
            "images.json",
            lambda data: data.replace(b'category_id": 7', b'category_id": 9'),
            "correct or rem",
        ),
        (
            "COCO import",
            "images.json",
            lambda data: data.replace(b'"category_id": 7', b'"category_id": {}'),
            "correct or",
        ),
        (
            "COCO import",
            "images.json",
            lambda data: data.replace(b'"image_id": 2', b'"image_id": 99'),
            "correct or remove",
        ),
        *(
            (kind, name, lambda data, old=old: data.replace(old, b"a" * 300, 1), "there is no (image|folder|file) .*: ")
            for kind, name, old in (
                ("COCO import", "images.json", b"0.png"),
                ("YOLO import", "data.yaml", b"train/images"),
                ("list of images (JSONL)", "list.jsonl", b"3.png"),
            )
        ),
        ("COCO build", "images.json", lambda data: data.replace(b".png", b".gif"), "gif.*Correct their paths"),
        ("COCO build", "images.json", lambda data: data[:-9], "is not a JSON file: .* Replace it with a fresh copy"),
        (
            "COCO build",
            "test.json",
            lambda data: data.replace(b'category_id": 7', b'category_id": 9'),
            "Correct or rem",
        ),
        (
            "COCO build",
            "test.json",
            lambda data: data.replace(b"bbox", b"box", 1),
            "have no 'bbox'.* Add it, or remove",
        ),
        ("image", "images/a.png", lambda data: data[:99], "Save them again as PNG or JPEG, or remove them"),
        ("image", "images/zero.bmp", lambda data: data, "Save them again"),
        (
            "array (.npy)",
            "stack.npy",
            lambda data: data[:128] + b"\x00\x00\x80\x40" + data[132:],
            "float32 from .* to 4",
        ),
        (
            "digits (idx)",
            "t10k-labels-idx1-ubyte",
            lambda data: data[:8] + bytes(10),
            "replace MNIST's files of labels",
        ),
        ("ONNX backbone", "net.onnx", lambda data: data[:50], "export or copy it again"),
        pytest.param(
            "config (TOML)",
            "config.toml",
            lambda data: data + b"\nlr = = 3",
            "is not TOML: .* Correct it",
            marks=pytest.mark.slow,
        ),
        ("config (TOML)", "config.toml", lambda data: data + b"\nx = " + b"[" * 100_000, "is not TOML"),
        pytest.param(
            "config (TOML)",
            "config.toml",
            lambda data: re.sub(rb"units = .*", b"units = [9223372036854775807]", data),
            "choose smaller numbers for channels, units",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_damaged_files_are_refused_with_a_remedy(read, kind, name, damage, expected):
    assert re.search(expected, read(kind, name, damage), re.DOTALL)


@pytest.mark.parametrize("side", ["0", "9" * 30, "9" * 5000, "x"])
def test_an_invalid_annotated_size_of_an_image_is_ignored(tmp_path, capsys, monkeypatch, side):
    runner(capsys, monkeypatch)
    for name, file, width in (
        ("VOC import", "Annotations/i1.xml", "<width>40<"),
        ("COCO import", "images.json", '"width": 40'),
    ):
        folder = tmp_path / name
        folder.mkdir()
        KINDS[name].build(folder)
        text = (folder / file).read_text()
        assert width in text
        quoted = f'"{side}"' if side == "x" or len(side) > 4000 else side
        (folder / file).write_text(text.replace(width, width.replace("40", quoted if "COCO" in name else side)))
        assert KINDS[name].run(folder, folder / file)[0] == 0, capsys.readouterr().err


def test_an_array_without_dimensions_is_refused(read, tmp_path):
    def scalar(data):
        np.save(tmp_path / "scalar.npy", np.uint8(3))
        return (tmp_path / "scalar.npy").read_bytes()

    assert "have no dimensions: save them in that shape" in read("array (.npy)", "x.npy", scalar)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [without("data"), changed(data=3), changed(start=[]), lambda data: b"[]", lambda data: b"3"]
)
def test_a_damaged_record_of_a_run_is_refused(read, damage):
    assert "run.json is damaged" in read("run folder", "run/run.json", damage)


@pytest.mark.parametrize("content", ["[", "[3]", '[{"name": 1}]', "3", "[" * 100_000, '{"a": 1}'])
def test_a_damaged_leaderboard_is_refused(tmp_path, content):
    (tmp_path / "leaderboard.json").write_text(content)
    with pytest.raises(ValueError, match=r"leaderboard\.json is damaged .*: delete it"):
        read_standings(tmp_path)


@pytest.mark.slow
def test_valid_images_of_all_formats_are_read(tmp_path, capsys, monkeypatch):
    runner(capsys, monkeypatch)
    KINDS["image"].build(tmp_path)
    for file in sorted((tmp_path / "images").iterdir()):
        code, out = KINDS["image"].run(tmp_path, file)
        refused = file.name.startswith(("bomb", "zero"))
        assert code == refused, file.name
        assert refused or json.loads(out)["input"] == str(file)
