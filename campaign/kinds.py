"""Kinds of valid input, and the command that reads each of them."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from campaign.pictures import write_pictures
from torchmultiset.cli import main
from torchmultiset.data import store
from torchmultiset.data.features import cache_features
from torchmultiset.encoders import ConvEncoder
from torchmultiset.heads import CellCounts
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict

__all__ = ["KINDS", "Kind", "Pool", "Reached", "command", "write_table"]

SIDE = 16
SETTINGS = rf"--\w+|\b({'|'.join(to_dict(RunConfig()))})\b"
CLASSES = ("cat", "dog", "owl")
BOXES = ([4, 2, 10, 6], [20, 3, 8, 9], [1, 1, 5, 5])


class Reached(Exception):
    """Raised in place of training: the settings were accepted."""


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        build: Writes valid files to a folder.
        files: Patterns of the files that are damaged.
        run: Reads the folder, given the damaged file; returns an exit code and what was read.
        checksum: Whether the files carry a checksum, so that damage must never change what is read.
        weight: Share of the damaged inputs; smaller where each takes longer.
        named: Pattern of what a message may name in place of the file, such as a setting of a config.
    """

    name: str
    build: Callable[[Path], object]
    files: tuple[str, ...]
    run: Callable[[Path, Path], tuple[int, str]]
    checksum: bool = False
    named: str = "a^"
    weight: int = 3


def command(*tokens: object) -> tuple[int, str]:
    """Run `multiset` in this process; return the exit code, and standard output without times."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main([str(token) for token in tokens])
    return code, out.getvalue()


def quietly(*tokens: object) -> None:
    """Run `multiset`, which must succeed."""
    errors = io.StringIO()
    with redirect_stderr(errors):
        code, _ = command(*tokens)
    if code:
        raise RuntimeError(f"multiset {' '.join(map(str, tokens))} failed: {errors.getvalue()}")


def write_table(folder: Path, examples: int = 24) -> Path:
    """Write a table of numbers and text with labels."""
    rng = np.random.default_rng(0)
    lines = ["a,b,kind,labels"]
    for counts in rng.integers(0, 3, (examples, 3)):
        labels = ";".join(name for name, count in zip(CLASSES, counts, strict=True) for _ in range(count))
        lines.append(f"{counts[0] + rng.normal() / 9:.3f},{counts[1]},{'xy'[counts[2] % 2]},{labels}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def _pictures(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (20, 40, 3), dtype=np.uint8)).save(folder / name)


def _jsonl(folder: Path) -> None:
    _pictures(folder, [f"{i}.png" for i in range(12)])
    np.save(folder / "extra.npy", np.zeros((2, 2), np.float32))
    lines = []
    for i in range(12):
        labels = [CLASSES[j % 3] for j in range(i % 3 + 1)]
        line: dict[str, Any] = {"image": f"{i}.png", "labels": labels, "id": f"n{i}"}
        lines.append(json.dumps({**line, "boxes": [*BOXES[: len(labels)]], "areas": [30.0] * len(labels)}))
    (folder / "list.jsonl").write_text("\n".join(lines) + "\n")


def _arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(12):
        np.save(folder / f"{i}.npy", rng.random((3, 4), dtype=np.float32))
        lines.append(json.dumps({"array": f"{i}.npy", "labels": {CLASSES[i % 3]: i % 3 + 1}}))
    (folder / "list.jsonl").write_text("\n".join(lines).replace('"labels": {', '"counts": {') + "\n")


def _photo_model(folder: Path) -> None:
    torch.manual_seed(0)
    encoder = ConvEncoder(3, (4,))
    head = CellCounts(3, encoder.memory_shape(SIDE, SIDE)[0], hidden=4)
    model = Predictor(encoder, head, CLASSES, max_size=3)
    model.save(folder / "model", record={"input": {"shape": [3, SIDE, SIDE], "dtype": "uint8", "exif": True}})


def _images(folder: Path) -> None:
    _photo_model(folder)
    write_pictures(folder / "images")


def _npy(folder: Path) -> None:
    _photo_model(folder)
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8))
    np.save(folder / "stack.npy", rng.random((2, 3, SIDE, SIDE), dtype=np.float32))


def _coco(folder: Path) -> None:
    categories = [{"id": 7 * i, "name": name} for i, name in enumerate(CLASSES)]
    for first, file in ((0, "images.json"), (6, "test.json")):
        numbers = range(first, first + 6)
        _pictures(folder / "images", [f"{i}.png" for i in numbers])
        found = [{"id": i, "file_name": f"{i}.png", "width": 40, "height": 20} for i in numbers]
        objects = []
        for i in numbers:
            for j, box in enumerate(BOXES[: i % 3 + 1]):
                shape = {"category_id": 7 * ((i + j) % 3), "bbox": box, "area": 100 + 9 * i + j, "iscrowd": 0}
                objects.append({"id": 3 * i + j, "image_id": i, **shape})
        content = {"images": found, "annotations": objects, "categories": categories}
        (folder / file).write_text(json.dumps(content))


def _yolo(folder: Path) -> None:
    for split in ("train", "valid", "test"):
        names = [f"{split}{i}" for i in range(4)]
        _pictures(folder / split / "images", [f"{name}.png" for name in names])
        (folder / split / "labels").mkdir()
        for i, name in enumerate(names):
            rows = [f"{j % 3} 0.5 0.5 0.{j + 1} 0.2" for j in range(i)]
            (folder / split / "labels" / f"{name}.txt").write_text("\n".join(rows) + "\n")
    text = "train: train/images\nval: valid/images\ntest: test/images\nnc: 3\nnames: ['cat', 'dog', 'owl']\n"
    (folder / "data.yaml").write_text(text)


def _voc(folder: Path) -> None:
    names = [f"i{i}" for i in range(6)]
    _pictures(folder / "JPEGImages", [f"{name}.jpg" for name in names])
    for part in ("Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    for i, name in enumerate(names):
        objects = "".join(
            f"<object><name>{CLASSES[j]}</name><difficult>{j % 2}</difficult><bndbox><xmin>{x}</xmin><ymin>{y}</ymin>"
            f"<xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
            for j, (x, y, w, h) in enumerate(BOXES[: i % 4])
        )
        size = "<size><width>40</width><height>20</height><depth>3</depth></size>"
        text = f"<annotation><filename>{name}.jpg</filename>{size}{objects}</annotation>"
        (folder / "Annotations" / f"{name}.xml").write_text(text)
    for split, some in (("train", names[:3]), ("val", names[3:5]), ("test", names[5:])):
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(some) + "\n")


def _digits(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("train", 120), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = bytes(i % 10 for i in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)


def _onnx(folder: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    _jsonl(folder)
    weight = numpy_helper.from_array(np.random.default_rng(0).random((4, 3, 4, 4), dtype=np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[4, 4])
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4, "i", "j"])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="mean", value="0.5, 0.5, 0.5")
    save(model, folder / "net.onnx")


_TRAIN = ("--objective", "counts", "--epochs", 2, "--batch-size", 8, "--units", 8, "--devices", 1)


def _run(folder: Path) -> None:
    quietly("train", write_table(folder), "--out", folder / "run", *_TRAIN)


def _unfinished(folder: Path) -> None:
    """A run that was stopped after its first epoch."""
    _run(folder)
    record = folder / "run" / "run.json"
    content = {**json.loads(record.read_text()), "finished": False}
    record.write_text(json.dumps(content, indent=2) + "\n")


class Pool(torch.nn.AvgPool2d):
    name = "pool"

    def fingerprint(self) -> str:
        return "pool 4"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float())


def _read_cache(folder: Path, _: Path | None = None) -> tuple[int, str]:
    """Read the features of all images, as a program of one's own does; errors are those of the command line."""
    keys = [f"image {i}" for i in range(40)]
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    try:
        cache = cache_features(Pool(4), images, folder / "cache", keys=keys)
        read = hashlib.sha256(cache[np.arange(40)].tobytes()).hexdigest()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1, ""
    return 0, read


def _store(folder: Path) -> None:
    _photo_model(folder)
    arrays = {"inputs": store.Row("|u1", (3, SIDE, SIDE)), "labels": store.Row("<i8", (2,))}
    plan = store.Plan({"made": "for the campaign"}, CLASSES, {"train": 8, "validation": 4, "test": 8}, arrays)

    def make(chunk: store.Chunk) -> dict[str, np.ndarray[Any, Any]]:
        rng = np.random.default_rng(chunk.start)
        images = rng.integers(0, 256, (chunk.examples, 3, SIDE, SIDE), dtype=np.uint8)
        return {"inputs": images, "labels": rng.integers(-1, 3, (chunk.examples, 2))}

    store.write(folder / "data", plan, make, chunk=8)


def _read_store(folder: Path, _: Path) -> tuple[int, str]:
    code, out = command("data", "describe", folder / "data", "--json")
    again, more = command("predict", folder / "model", folder / "data", "--json")
    return code or again, out + more


def _resume(folder: Path, _: Path) -> tuple[int, str]:
    """Resume training; return the names of the weights, which contain their SHA-256."""
    code, _out = command("train", folder / "table.csv", "--out", folder / "run", *_TRAIN, "--resume")
    return code, " ".join(sorted(file.name for file in (folder / "run" / "model").glob("weights-*"))) * (code == 0)


def _accepted(*tokens: object) -> tuple[int, str]:
    """Run `multiset train` up to the first step of training."""
    with (
        patch("torchmultiset.pipeline.run.fit", side_effect=Reached),
        patch("torchmultiset.pipeline.run.solve", side_effect=Reached),
        patch("torchmultiset.pipeline.auto.train_portfolio", side_effect=Reached),
    ):
        try:
            return command(*tokens)
        except Reached:
            return 0, ""


def _configured(folder: Path) -> None:
    _run(folder)
    (folder / "config.toml").write_bytes((folder / "run" / "config.toml").read_bytes())


def _described(name: str, *flags: str) -> Callable[[Path, Path], tuple[int, str]]:
    return lambda folder, _: command("data", "describe", folder / name, "--json", *flags)


def _imported(source: str, form: str) -> Callable[[Path, Path], tuple[int, str]]:
    return lambda folder, _: command(
        "data", "import", folder / source, folder / "out.jsonl", "--format", form, "--boxes"
    )


def _built_coco(folder: Path, _: Path) -> tuple[int, str]:
    images = ("--train-images", folder / "images", "--test-json", folder / "test.json")
    where = ("--train-json", folder / "images.json", *images)
    return command("data", "build", "coco-medium", folder / "out.jsonl", *where, "--validation-share", 0)


def _built_digits(folder: Path, _: Path) -> tuple[int, str]:
    sizes = ("--train", 4, "--validation", 2, "--test", 2, "--seen", 0, "--workers", 1)
    return command("data", "build", "mnist-multi", folder / "out", "--mnist", folder, *sizes)


def _predicted(folder: Path, file: Path) -> tuple[int, str]:
    return command("predict", folder / "model", file, "--json")


def _portfolio(folder: Path) -> None:
    """A finished portfolio and a finished sweep, each of one candidate."""
    table = write_table(folder)
    only = [Candidate("small", {"objective": "counts", "epochs": 1, "batch_size": 8, "units": (8,)}, "small")]
    train_portfolio(RunConfig(DataConfig(str(table))), folder / "portfolio", only=only)
    quietly(
        "sweep", table, "--out", folder / "sweep", "--objective", "counts", "--epochs", 1, "--units", 8, "--workers", 1
    )


def _resumed_portfolio(folder: Path, file: Path) -> tuple[int, str]:
    if "sweep" in file.parts:
        flags = ("--objective", "counts", "--epochs", 1, "--units", 8, "--workers", 1)
        return command("sweep", folder / "table.csv", "--out", folder / "sweep", *flags)
    return command("train", folder / "table.csv", "--out", folder / "portfolio", "--resume")


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("table (CSV)", write_table, ("*.csv",), _described("table.csv")),
        Kind("list of images (JSONL)", _jsonl, ("*.jsonl",), _described("list.jsonl", "--check")),
        Kind("list of arrays (JSONL, .npy)", _arrays, ("*.jsonl", "*.npy"), _described("list.jsonl", "--check")),
        Kind("COCO import", _coco, ("images.json",), _imported("images.json", "coco")),
        Kind("COCO build", _coco, ("*.json",), _built_coco),
        Kind("YOLO import", _yolo, ("data.yaml", "*/labels/*.txt"), _imported(".", "yolo")),
        Kind("VOC import", _voc, ("Annotations/*.xml", "ImageSets/Main/*.txt"), _imported(".", "voc")),
        Kind("image", _images, ("images/*",), _predicted),
        Kind("array (.npy)", _npy, ("*.npy",), _predicted),
        Kind("digits (idx)", _digits, ("*ubyte",), _built_digits, named="MNIST's files"),
        Kind("ONNX backbone", _onnx, ("net.onnx",), lambda folder, _: _accepted(
            "train", folder / "list.jsonl", "--out", folder / "run", "--backbone", folder / "net.onnx",
            "--image-size", SIDE, *_TRAIN[:6])),
        Kind("config (TOML)", _configured, ("config.toml",), lambda folder, file: _accepted(
            "train", folder / "table.csv", "--out", folder / "again", "--config", file), named=SETTINGS),
        Kind("model", _npy, ("model/*",), lambda folder, _: _predicted(folder, folder / "x.npy"), checksum=True),
        Kind("run folder", _unfinished, ("run/run.json", "run/config.toml", "run/epochs.jsonl"), _resume, weight=1),
        Kind("finished run", _run, ("run/*.json", "run/config.toml", "run/model/*"), _resume, weight=1),
        Kind("checkpoint", _unfinished, ("run/checkpoint.pt", "run/best/*"), _resume, checksum=True, weight=1),
        Kind("feature cache", _read_cache, ("cache/*",), _read_cache, checksum=True),
        Kind("stored data", _store, ("data/manifest.json", "data/*/*.npy"), _read_store, checksum=True),
        Kind("portfolio and sweep", _portfolio, ("portfolio/*.json", "portfolio/candidates/*/*/run.json",
             "portfolio/candidates/*/*/predictions.npz", "sweep/*.json*", "sweep/*/run.json"), _resumed_portfolio,
             weight=1),
    )
}  # fmt: skip
