from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from torchmultiset.data import coco
from torchmultiset.data.coco import CocoRules
from torchmultiset.data.coco_manifest import write_coco_manifest
from torchmultiset.data.manifest import read_manifest

CATEGORIES = [{"id": 5, "name": "zebra"}, {"id": 8, "name": "cat"}]
ALL = CocoRules(sizes=(1, 3), min_area=0.0, rare_below=0.0, validation_share=0.0)


def annotate(file: Path, images: dict[str, list[tuple]], *, size=(40, 20), first_id=1) -> Path:
    """An annotation file: file name -> objects as (category, box, area)."""
    listed = [
        {"id": first_id + i, "file_name": name, "width": size[0], "height": size[1]} for i, name in enumerate(images)
    ]
    objects = [
        {"image_id": image["id"], "category_id": category, "bbox": box, "area": area}
        for image in listed
        for category, box, area in images[image["file_name"]]
    ]
    objects = [{"id": i, **entry} for i, entry in enumerate(objects)]
    file.write_text(json.dumps({"images": listed, "annotations": objects, "categories": CATEGORIES}))
    return file


def paint(path: Path, *, size=(40, 20), box=None, orientation=None) -> None:
    """Save a black image with a white box in stored pixels, and optionally an EXIF orientation."""
    path.parent.mkdir(exist_ok=True)
    pixels = np.zeros((size[1], size[0]), dtype=np.uint8)
    if box:
        x, y, width, height = box
        pixels[y : y + height, x : x + width] = 255
    exif = Image.Exif()
    if orientation:
        exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.fixture
def built(tmp_path):
    """Two training images and a test image, stored at half the size of the annotations."""
    for name in ("a.png", "b.png", "c.png"):
        paint(tmp_path / "images" / name, size=(20, 10))
    two = [(8, [4, 2, 20, 10], 150.5), (5, [0, 0, 7, 3], 21)]
    train = annotate(tmp_path / "train.json", {"a.png": two, "b.png": [(8, [30.5, 10.25, 9, 9.5], 80)]})
    test = annotate(tmp_path / "test.json", {"c.png": [(5, [1, 1, 2, 2], 4)]}, first_id=7)
    return coco.build(ALL, train, test, tmp_path / "images", size=60)


def test_a_line_has_the_annotations_in_pixels_of_the_file(tmp_path, built):
    path = tmp_path / "lists" / "easy.jsonl"
    write_coco_manifest(path, built)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "image": "../images/a.png",
            "labels": ["cat", "zebra"],
            "split": "train",
            "boxes": [[2, 1, 10, 5], [0, 0, 3.5, 1.5]],
            "areas": [37.62, 5.25],
            "id": "1",
        },
        {
            "image": "../images/b.png",
            "labels": ["cat"],
            "split": "train",
            "boxes": [[15.25, 5.12, 4.5, 4.75]],
            "areas": [20],
            "id": "2",
        },
        {
            "image": "../images/c.png",
            "labels": ["zebra"],
            "split": "test",
            "boxes": [[0.5, 0.5, 1, 1]],
            "areas": [1],
            "id": "7",
        },
    ]
    assert [*path.parent.iterdir()] == [path]


def test_reading_the_manifest_gives_the_same_data_set(tmp_path, built):
    write_coco_manifest(tmp_path / "easy.jsonl", built)
    read = read_manifest(tmp_path / "easy.jsonl", image_size=60)
    for split in ("train", "validation", "test"):
        expected, found = getattr(built, split), read[split]
        assert found.ids == [*expected.ids]
        for row in range(len(expected)):
            # Own data sorts its classes by name, COCO by id: compare names.
            assert [found.classes[i] for i in found.labels[row] if i >= 0] == [
                expected.classes[i] for i in expected.labels[row] if i >= 0
            ]
        width = found.labels.shape[1]
        np.testing.assert_allclose(
            found.boxes, expected.boxes[:, :width], atol=0.02
        )  # hundredths of pixels, 3x as large
        np.testing.assert_array_equal(found.inputs[np.arange(len(found))], expected.inputs[np.arange(len(expected))])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_follow_a_rotation_by_exif(tmp_path, orientation):
    box = [5, 2, 12, 7]
    paint(tmp_path / "images" / "a.jpg", box=box, orientation=orientation)
    paint(tmp_path / "images" / "b.jpg")
    train = annotate(tmp_path / "train.json", {"a.jpg": [(8, box, 84)]})
    test = annotate(tmp_path / "test.json", {"b.jpg": [(8, box, 84)]}, first_id=9)
    write_coco_manifest(tmp_path / "m.jsonl", coco.build(ALL, train, test, tmp_path / "images"))
    line = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])

    with Image.open(tmp_path / "images" / "a.jpg") as image:
        white = np.asarray(ImageOps.exif_transpose(image)) > 127
    rows, columns = np.flatnonzero(white.any(1)), np.flatnonzero(white.any(0))
    assert line["boxes"] == [[columns[0], rows[0], len(columns), len(rows)]]


def test_paths_are_valid_through_a_symbolic_link(tmp_path, built):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    write_coco_manifest(tmp_path / "link" / "m.jsonl", built)
    assert len(read_manifest(tmp_path / "link" / "m.jsonl")["train"]) == 2
    assert len(read_manifest(tmp_path / "deep" / "er" / "m.jsonl")["train"]) == 2


def test_ids_that_train_and_test_share_are_replaced_by_paths(tmp_path):
    for name in ("a.png", "b.png"):
        paint(tmp_path / "images" / name)
    one = [(8, [0, 0, 9, 9], 81)]
    train, test = (annotate(tmp_path / f"{name}.json", {f"{name}.png": one}) for name in "ab")
    write_coco_manifest(tmp_path / "m.jsonl", coco.build(ALL, train, test, tmp_path / "images"))
    read = read_manifest(tmp_path / "m.jsonl")
    assert read["train"].ids == ["images/a.png"]
    assert read["test"].ids == ["images/b.png"]


def test_a_file_with_other_content_is_not_overwritten(tmp_path, built):
    path = tmp_path / "m.jsonl"
    write_coco_manifest(path, built)
    written = path.read_bytes()
    write_coco_manifest(path, built)
    assert path.read_bytes() == written
    path.write_text("mine\n")
    with pytest.raises(FileExistsError, match=r"m\.jsonl already exists with different content"):
        write_coco_manifest(path, built)
    assert path.read_text() == "mine\n"
    with pytest.raises(ValueError, match=r"a \.jsonl file"):
        write_coco_manifest(tmp_path / "m.csv", built)
