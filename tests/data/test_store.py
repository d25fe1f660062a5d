"""Data sets in folders: complete or absent, and never mixed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from torchmultiset._files import locked
from torchmultiset.data.store import Chunk, Plan, Row, load, read_header, write

PLAN = Plan(
    source={"made": "for a test", "numbers": [1, 2]},
    classes=("cat", "dog", "cow"),
    splits={"train": 10, "validation": 0, "test": 3},
    arrays={
        "inputs": Row("<f4", (2, 3)),
        "labels": Row("<i8", (2,)),
        "boxes": Row("<f4", (2, 4)),
        "areas": Row("<f4", (2,)),
        "ids": Row("<U8", ()),
    },
)


def make(chunk: Chunk) -> dict[str, np.ndarray]:
    """Rows whose content is computed from their index, so that misplaced rows are detected."""
    i = np.arange(chunk.start, chunk.stop) + (1000 if chunk.split == "test" else 0)
    return {
        "inputs": (i[:, None, None] + np.arange(6).reshape(2, 3) / 8).astype("<f4"),
        "labels": np.stack([i % 3, np.full(len(i), -1)], -1),
        "boxes": (i[:, None, None] + np.zeros((2, 4))).astype("<f4"),
        "areas": (i[:, None] + np.zeros(2)).astype("<f4"),
        "ids": np.array([f"row-{n}" for n in i], dtype="<U8"),
    }


class Counting:
    """Like `make`, but records the chunks and fails at a given call."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.made: list[Chunk] = []
        self.fails_at = fails_at

    def __call__(self, chunk: Chunk) -> dict[str, np.ndarray]:
        if len(self.made) == self.fails_at:
            raise RuntimeError("no more")
        self.made.append(chunk)
        return make(chunk)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_row_is_stored_at_its_index(tmp_path: Path, chunk: int, workers: int) -> None:
    splits = write(tmp_path / "new" / "folder", PLAN, make, chunk=chunk, workers=workers)
    assert [*splits] == ["train", "validation", "test"]
    for split, examples in splits.items():
        expected = make(Chunk(split, 0, PLAN.splits[split]))
        assert examples.classes == PLAN.classes
        assert examples.ids == expected.pop("ids").tolist()
        for name, array in expected.items():
            np.testing.assert_array_equal(getattr(examples, name), array)
    assert splits["train"].counts.sum() == 10
    assert splits["train"].batch([7]).boxes is not None


def test_load_opens_the_written_files_and_no_others_are_left(tmp_path: Path) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    files = {f"{split}/{name}.npy" for split in PLAN.splits for name in PLAN.arrays}
    assert set(contents(tmp_path)) == files | {"manifest.json"}
    loaded = load(tmp_path)["train"]
    assert isinstance(loaded.inputs, np.memmap)
    np.testing.assert_array_equal(loaded.inputs, make(Chunk("train", 0, 10))["inputs"])
    manifest = read_header(tmp_path)
    assert manifest["source"] == PLAN.source
    assert manifest["splits"] == PLAN.splits
    assert set(manifest["sha256"]) == files


def test_an_existing_data_set_is_not_built_again(tmp_path: Path) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    again = Counting()
    write(tmp_path, PLAN, again, chunk=3)
    assert again.made == []


def test_two_builds_in_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "data"), pytest.raises(OSError, match=r"another process is writing to .*data: wait"):
        write(tmp_path / "data", PLAN, make, chunk=4)
    (tmp_path / "data" / "folder.lock").touch()  # left by a process that was killed
    assert len(write(tmp_path / "data", PLAN, make, chunk=4)["train"]) == PLAN.splits["train"]


def test_a_failed_build_is_not_a_data_set_and_can_be_resumed(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write(whole, PLAN, make, chunk=2)
    with pytest.raises(RuntimeError, match="no more"):
        write(broken, PLAN, Counting(fails_at=3), chunk=2)
    with pytest.raises(FileNotFoundError, match=r"only a part of a data set.*start the same build again"):
        load(broken)
    rest = Counting()
    write(broken, PLAN, rest, chunk=2)
    assert len(rest.made) == 7 - 3
    assert contents(broken) == contents(whole)


@pytest.mark.parametrize("cut_off", ['["train", 2', '["train", 2, 4', "[", "nonsense", "3"])
def test_after_a_truncated_line_one_chunk_is_rewritten(tmp_path: Path, cut_off: str) -> None:
    with pytest.raises(RuntimeError):
        write(tmp_path, PLAN, Counting(fails_at=1), chunk=2)
    with (tmp_path / "finished.jsonl").open("a") as journal:
        journal.write(cut_off)
    with pytest.raises(RuntimeError):
        write(tmp_path, PLAN, Counting(fails_at=2), chunk=2)
    rest = Counting()
    write(tmp_path, PLAN, rest, chunk=2)
    assert len(rest.made) == 7 - 1 - 2
    np.testing.assert_array_equal(load(tmp_path)["train"].inputs, make(Chunk("train", 0, 10))["inputs"])


def test_a_file_deleted_during_a_build_is_rewritten(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write(tmp_path, PLAN, Counting(fails_at=3), chunk=2)
    (tmp_path / "train" / "labels.npy").unlink()
    write(tmp_path, PLAN, make, chunk=2)
    np.testing.assert_array_equal(load(tmp_path)["train"].labels, make(Chunk("train", 0, 10))["labels"])


def test_a_build_killed_before_its_first_file_is_restarted(tmp_path: Path) -> None:
    (tmp_path / "building.json.partial").write_text('{"form')
    assert len(write(tmp_path, PLAN, make, chunk=4)["train"]) == 10


@pytest.mark.parametrize("fails_at", [None, 2], ids=["finished", "unfinished"])
def test_a_folder_with_another_data_set_is_not_changed(tmp_path: Path, fails_at: int | None) -> None:
    with pytest.raises(RuntimeError) if fails_at else nullcontext():
        write(tmp_path, PLAN, Counting(fails_at), chunk=4)
    before = contents(tmp_path)
    other = replace(PLAN, source={"made": "for a test", "numbers": [1, 3]}, splits={**PLAN.splits, "test": 4})
    message = re.escape("(source.numbers is [1, 2], not [1, 3]; splits.test is 3, not 4)")
    with pytest.raises(ValueError, match=f"contains a different data set {message}: choose another folder"):
        write(tmp_path, other, make, chunk=4)
    assert contents(tmp_path) == before


def test_a_folder_with_other_content_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and contains no data set"):
        write(tmp_path, PLAN, make, chunk=4)
    with pytest.raises(ValueError, match="is a file, but a data set requires a folder"):
        write(tmp_path / "thesis.txt", PLAN, make, chunk=4)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_a_full_disk_is_detected_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(OSError, match="needs 0 MB, but only 0 MB are free on its disk"):
        write(tmp_path, PLAN, make, chunk=4)
    assert contents(tmp_path) == {}


def test_data_that_violates_the_plan_is_refused(tmp_path: Path) -> None:
    def wrong_type(chunk: Chunk) -> dict[str, np.ndarray]:
        return {**make(chunk), "labels": np.zeros((chunk.examples, 2), np.int32)}

    def wrong_shape(chunk: Chunk) -> dict[str, np.ndarray]:
        return {**make(chunk), "areas": np.zeros((chunk.examples, 3), np.float32)}

    with pytest.raises(ValueError, match=r"return labels of dtype <i8 and shape .*, but returned dtype <i4"):
        write(tmp_path / "type", PLAN, wrong_type, chunk=4)
    with pytest.raises(ValueError, match=r"return areas of dtype <f4 .* and shape \(4, 3\)"):
        write(tmp_path / "shape", PLAN, wrong_shape, chunk=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": {"inputs": Row("|u1", ())}}, "arrays must include inputs and labels"),
        ({"arrays": {**PLAN.arrays, "colours": Row("|u1", ())}}, "each name in arrays must be one of 'inputs'"),
        ({"splits": {"../train": 3}}, "the name of a split must be a plain word, but is '../train'"),
        ({"splits": {"train": -1}}, r"splits\['train'\] must be at least 0"),
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **changes)


def test_a_folder_without_a_data_set_is_reported(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"there is no data set in .*: it has no manifest.json"):
            load(folder)


def _no_json(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1, ')


def _other_format(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))


def _no_arrays(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1, "source": {}}')


def _escape(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "splits": {"../../secret": 1}}))


def _rename(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "classes": manifest["classes"][::-1]}))


def _no_checksums(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": {}}))


def _deep(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


def _cut_off(folder: Path) -> None:
    path = folder / "train" / "inputs.npy"
    path.write_bytes(path.read_bytes()[:-10])


def _cut_off_small(folder: Path) -> None:
    path = folder / "train" / "labels.npy"
    path.write_bytes(path.read_bytes()[:-10])


def _empty(folder: Path) -> None:
    (folder / "train" / "inputs.npy").write_bytes(b"")


def _other_shape(folder: Path) -> None:
    np.save(folder / "train" / "labels.npy", np.zeros((10, 3), np.int64))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_json, "manifest.json is damaged"),
        (_other_format, "is not of format 1, which this version"),
        (_no_arrays, "is not a valid manifest .*arrays"),
        (_escape, "the name of a split must be a plain word"),
        (_rename, "manifest.json was changed after the data set was built"),
        (_no_checksums, "manifest.json has no checksums of all files"),
        (_deep, "manifest.json is damaged"),
        (_cut_off, "inputs.npy is damaged"),
        (_cut_off_small, "labels.npy is damaged"),
        (_empty, "inputs.npy is damaged"),
        (_other_shape, r"labels.npy has dtype <i8 and shape \(10, 3\), but the manifest has <i8 and \(10, 2\)"),
    ],
)
def test_damage_is_reported_with_the_file(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_missing_array_is_reported_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    (tmp_path / "test" / "areas.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"areas.npy is missing"):
        load(tmp_path)


def test_a_single_changed_byte_is_detected(tmp_path: Path) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    load(tmp_path)
    path = tmp_path / "train" / "inputs.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train/inputs.npy in .* changed since the data set was built"):
        load(tmp_path)


def test_a_data_set_of_version_0_1_has_no_checksum_of_its_manifest(tmp_path: Path) -> None:
    write(tmp_path, PLAN, make, chunk=4)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_header(tmp_path) == manifest
    assert load(tmp_path).keys() == PLAN.splits.keys()


def test_progress_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "quiet", PLAN, make, chunk=4)
    assert capsys.readouterr() == ("", "")
    write(tmp_path / "loud", PLAN, make, chunk=4, progress=True)
    total = sum(PLAN.splits.values())
    assert f"{total}/{total}" in capsys.readouterr().err
