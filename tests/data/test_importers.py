"""Imports of COCO JSON, YOLO text and Pascal VOC XML give manifests with the annotated labels and boxes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from manifests import draw, together

from torchmultiset.data.importers import AnnotationError, import_annotations, recognise
from torchmultiset.data.manifest import read_manifest

BOXES = [[4, 2, 10, 6], [20, 3, 8, 9], [1, 1, 5, 5]]
"""x, y, width, height of up to three objects in images of 40 x 20."""
# split -> image -> labels
TRUTH = {
    "train": {"a": ["cat", "dog", "cat"], "b": [], "c": ["dog"]},
    "validation": {"d": ["cat", "cat"]},
    "test": {"e": ["owl", "dog"]},
}
CLASSES = ["cat", "dog", "owl"]


def images(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        draw(folder / f"{name}.png", size=(40, 20))


def coco_content(truth, **more):
    entries = {"images": [], "annotations": [], "categories": [{"id": 7 * i, "name": n} for i, n in enumerate(CLASSES)]}
    for key, (name, labels) in enumerate(truth.items()):
        entries["images"].append({"id": key, "file_name": f"{name}.png", "width": 40, "height": 20})
        for label, box in zip(labels, BOXES, strict=False):
            number = {"id": len(entries["annotations"]), "image_id": key, "category_id": 7 * CLASSES.index(label)}
            entries["annotations"].append(number | {"bbox": box, "segmentation": [[1, 2]]} | more)
    return entries


def write_coco(file, truth, **more):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(coco_content(truth, **more)))


def write_yolo(folder, truth):
    folder.mkdir(parents=True, exist_ok=True)
    for name, labels in truth.items():
        rows = [
            f"{CLASSES.index(label)} {(x + w / 2) / 40} {(y + h / 2) / 20} {w / 40} {h / 20}\n"
            for label, (x, y, w, h) in zip(labels, BOXES, strict=False)
        ]
        if rows:  # an image without objects may have no file
            (folder / f"{name}.txt").write_text("".join(rows))


def voc_text(name, labels, more=""):
    objects = "\n".join(
        f"<object><name>{label}</name>{more}\n<bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
        f"<xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
        for label, (x, y, w, h) in zip(labels, BOXES, strict=False)
    )
    size = "<size><width>40</width><height>20</height></size>"
    return f"<annotation><filename>{name}.png</filename>{size}\n{objects}\n</annotation>\n"


def write_voc(folder, truth):
    folder.mkdir(parents=True, exist_ok=True)
    for name, labels in truth.items():
        (folder / f"{name}.xml").write_text(voc_text(name, labels))


def coco_by_folder(root):
    for split, name in zip(TRUTH, ("train", "valid", "test"), strict=True):
        images(root / name, TRUTH[split])
        write_coco(root / name / "_annotations.coco.json", TRUTH[split])


def coco_by_file(root):
    for split, name in zip(TRUTH, ("train2017", "val2017", "test2017"), strict=True):
        images(root / name, TRUTH[split])
        write_coco(root / "annotations" / f"instances_{name}.json", TRUTH[split])
    (root / "annotations" / "captions_train2017.json").write_text('{"images": [], "annotations": []}')


def yolo_by_split(root):
    """The layout of Roboflow."""
    for split, name in zip(TRUTH, ("train", "valid", "test"), strict=True):
        images(root / name / "images", TRUTH[split])
        write_yolo(root / name / "labels", TRUTH[split])
    folders = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    (root / "data.yaml").write_text(f"{folders}nc: 3\nnames: ['cat', 'dog', 'owl']\nroboflow:\n  license: MIT\n")


def yolo_by_images(root):
    """The layout of Ultralytics."""
    for split, name in zip(TRUTH, ("train", "val", "test"), strict=True):
        images(root / "images" / name, TRUTH[split])
        write_yolo(root / "labels" / name, TRUTH[split])
    (root / "classes.txt").write_text("cat\ndog\nowl\n\n")
    draw(root / "confusion_matrix.png")


def yolo_by_lists(root):
    """The layout of darknet."""
    all_labels = {name: labels for part in TRUTH.values() for name, labels in part.items()}
    images(root / "data", all_labels)
    write_yolo(root / "data", all_labels)
    for split, name in zip(TRUTH, ("train", "val", "test"), strict=True):
        (root / f"{name}.txt").write_text("".join(f"./data/{image}.png\n" for image in TRUTH[split]))
    names = "names:\n  1: dog\n  0: 'cat'  # the first\n  2: owl\n"
    (root / "data.yaml").write_text(f"path: .\ntrain: train.txt\nval: val.txt\ntest: test.txt\n{names}")


def voc_by_folder(root):
    for split, name in zip(TRUTH, ("train", "valid", "test"), strict=True):
        images(root / name, TRUTH[split])
        write_voc(root / name, TRUTH[split])


def voc_by_lists(root):
    """The layout of Pascal VOC."""
    all_labels = {name: labels for part in TRUTH.values() for name, labels in part.items()}
    images(root / "JPEGImages", [*all_labels, "unlisted"])
    write_voc(root / "Annotations", all_labels | {"unlisted": ["cat"]})
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for split, name in zip(TRUTH, ("train", "val", "test"), strict=True):
        (lists / f"{name}.txt").write_text("\n".join(TRUTH[split]))
    (lists / "trainval.txt").write_text("a\nb\nc\nd\n")
    (lists / "cat_train.txt").write_text("a  1\nunlisted -1\n")


LAYOUTS = [
    ("coco", coco_by_folder),
    ("coco", coco_by_file),
    ("yolo", yolo_by_split),
    ("yolo", yolo_by_images),
    ("yolo", yolo_by_lists),
    ("voc", voc_by_folder),
    ("voc", voc_by_lists),
]


@pytest.mark.parametrize("out", ["pets.csv", "elsewhere/pets.jsonl"])
@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=[layout.__name__ for _, layout in LAYOUTS])
def test_each_layout_is_recognised_and_read_back_with_its_splits(tmp_path, name, layout, out):
    layout(tmp_path / "source")
    assert recognise(tmp_path / "source") == name
    imported = import_annotations(tmp_path / "source", tmp_path / out)
    splits = read_manifest(tmp_path / out, image_size=16)
    assert splits["train"].classes == tuple(CLASSES)
    for split, truth in TRUTH.items():
        read = {key.rpartition("/")[2]: counts for key, counts in together({split: splits[split]}).items()}
        assert read == {f"{image}.png": Counter(labels) for image, labels in truth.items()}
    assert imported.format == name
    assert imported.images == {split: len(truth) for split, truth in TRUTH.items()}
    assert imported.labels == {"cat": 4, "dog": 3, "owl": 1}
    assert (imported.notes, imported.ambiguous, imported.left_out) == ((), 0, 0)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=[layout.__name__ for _, layout in LAYOUTS])
def test_boxes_are_kept_in_pixels_of_the_image(tmp_path, name, layout):
    layout(tmp_path / "source")
    import_annotations(tmp_path / "source", tmp_path / "pets.jsonl", boxes=True)
    lines = [json.loads(line) for line in (tmp_path / "pets.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert line["boxes"] == BOXES[: len(line["labels"])]
        assert "areas" not in line
    read_manifest(tmp_path / "pets.jsonl", image_size=16)


def flat(tmp_path, truth=None, **more):
    truth = truth or {"a": ["cat", "dog"], "b": ["cat"]}
    images(tmp_path, truth)
    write_coco(tmp_path / "pets.json", truth, **more)
    return tmp_path / "pets.json"


def test_areas_are_kept_if_every_object_has_one(tmp_path):
    import_annotations(flat(tmp_path, area=12.5), tmp_path / "pets.jsonl", boxes=True)
    train = read_manifest(tmp_path / "pets.jsonl", fractions=(1, 0, 0), image_size=40)["train"]
    assert train.areas.tolist() == [[12.5, 12.5], [12.5, 0.0]]


def test_boxes_follow_the_exif_rotation(tmp_path):
    """Orientation 6 rotates the stored image by 90 degrees clockwise for display."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    for name, sides in {"stored": (40, 20), "seen": (20, 40)}.items():
        folder = tmp_path / name
        folder.mkdir()
        Image.new("RGB", (40, 20)).save(folder / "a.png", exif=exif)
        content = coco_content({"a": ["cat"]})
        content["images"][0] |= {"width": sides[0], "height": sides[1]}
        (folder / "pets.json").write_text(json.dumps(content))
        import_annotations(folder / "pets.json", folder / "pets.jsonl", boxes=True)
    x, y, w, h = BOXES[0]
    box = {name: json.loads((tmp_path / name / "pets.jsonl").read_text())["boxes"][0] for name in ("stored", "seen")}
    assert box == {"stored": [20 - y - h, x, h, w], "seen": [x, y, w, h]}


def test_boxes_are_scaled_if_the_image_was_resized_after_annotation(tmp_path):
    file = flat(tmp_path, {"a": ["cat"]})
    draw(tmp_path / "a.png", size=(80, 40))
    import_annotations(file, tmp_path / "pets.jsonl", boxes=True)
    assert json.loads((tmp_path / "pets.jsonl").read_text())["boxes"] == [[2 * number for number in BOXES[0]]]


@pytest.mark.parametrize("source", ["coco", "voc"])
@pytest.mark.parametrize(
    ("rule", "expected", "left_out"),
    [("drop", [["dog"], []], 0), ("keep", [["dog"], ["cat"]], 0), ("drop-image", [["dog"]], 1)],
)
def test_crowds_and_difficult_objects_follow_the_rule(tmp_path, source, rule, expected, left_out):
    images(tmp_path, ["a", "b"])
    if source == "coco":
        content = coco_content({"a": ["dog"], "b": ["cat"]})
        content["annotations"][1]["iscrowd"] = 1
        (tmp_path / "pets.json").write_text(json.dumps(content))
    else:
        (tmp_path / "a.xml").write_text(voc_text("a", ["dog"], "<difficult>0</difficult>"))
        (tmp_path / "b.xml").write_text(voc_text("b", ["cat"], "<difficult>1</difficult>"))
    imported = import_annotations(tmp_path, tmp_path / "out.jsonl", ambiguous=rule)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["labels"] for line in lines] == expected
    assert (imported.ambiguous, imported.left_out) == (1, left_out)
    assert any(f"--ambiguous {rule}" in note for note in imported.notes)


def test_a_single_split_is_not_written_to_the_manifest(tmp_path):
    images(tmp_path / "train", "ab")
    write_voc(tmp_path / "train", {"a": ["cat"], "b": ["dog"]})
    imported = import_annotations(tmp_path, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "image,labels\ntrain/a.png,cat:1\ntrain/b.png,dog:1\n"
    assert imported.images == {"": 2}
    assert "split train" in imported.notes[0]


def test_without_validation_images_some_training_images_are_used(tmp_path):
    names = [f"{i}" for i in range(40)]
    for split, chosen in {"train": names, "test": ["t"]}.items():
        images(tmp_path / split, chosen)
        write_voc(tmp_path / split, {name: ["cat"] for name in chosen})
    imported = import_annotations(tmp_path, tmp_path / "out.csv")
    assert imported.images["test"] == 1
    assert imported.images["train"] + imported.images["validation"] == 40
    assert 1 <= imported.images["validation"] <= 15
    splits = read_manifest(tmp_path / "out.csv")
    assert splits["test"].ids == ["test/t.png"]


def test_an_existing_file_with_different_content_is_not_overwritten(tmp_path):
    file, out = flat(tmp_path), tmp_path / "out.csv"
    import_annotations(file, out)
    import_annotations(file, out)
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="different content"):
        import_annotations(file, out)
    assert out.read_text() == "mine"


def test_names_with_separators_are_safe_in_csv_or_refused(tmp_path):
    file, out = flat(tmp_path), tmp_path / "out.csv"
    file.write_text(file.read_text().replace('"cat"', '"cat, big: 2|3"'))
    import_annotations(file, out)
    assert read_manifest(out, fractions=(1, 0, 0))["train"].classes == ("cat, big: 2|3", "dog")
    file.write_text(file.read_text().replace("cat, big: 2|3", "cat;dog"))
    with pytest.raises(ValueError, match=r"'cat;dog' cannot be written to CSV: write a \.jsonl file"):
        import_annotations(file, tmp_path / "other.csv")
    assert not (tmp_path / "other.csv").exists()


def test_arguments_are_checked(tmp_path):
    file = flat(tmp_path)
    for match, options, out in [
        ("out must be a .jsonl or .csv file", {}, "out.txt"),
        ("out must be a .jsonl file, as CSV cannot have boxes", {"boxes": True}, "out.csv"),
        ("ambiguous must be one of 'drop', 'keep', 'drop-image', but is 'maybe'", {"ambiguous": "maybe"}, "out.csv"),
        ("format must be one of 'coco', 'yolo', 'voc', but is 'xls'", {"format": "xls"}, "out.csv"),
        ("images must be an existing folder", {"images": tmp_path / "none"}, "out.csv"),
    ]:
        with pytest.raises(ValueError, match=match):
            import_annotations(file, tmp_path / out, **options)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        import_annotations(tmp_path / "none", tmp_path / "out.csv")
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        import_annotations(tmp_path / "none", tmp_path / "out.csv", format="voc")


def test_a_folder_of_two_formats_needs_a_choice(tmp_path):
    flat(tmp_path)
    write_voc(tmp_path, {"a": ["owl"], "b": ["owl"]})
    with pytest.raises(ValueError, match="contains COCO JSON and Pascal VOC XML: choose one with --format coco or voc"):
        import_annotations(tmp_path, tmp_path / "out.csv")
    assert import_annotations(tmp_path, tmp_path / "out.csv", format="voc").labels == {"owl": 2}


def test_a_folder_without_annotations_is_refused(tmp_path):
    images(tmp_path, "a")
    with pytest.raises(ValueError, match=r"source must be a COCO \.json file, or a folder"):
        import_annotations(tmp_path, tmp_path / "out.csv")


def test_images_may_be_elsewhere(tmp_path):
    images(tmp_path / "far", "ab")
    truth = {"a": ["cat"], "b": ["dog"]}
    write_coco(tmp_path / "coco" / "pets.json", truth)
    write_yolo(tmp_path / "yolo" / "labels", truth)
    write_voc(tmp_path / "voc", truth)
    for name in ("coco", "yolo", "voc"):
        out = tmp_path / f"{name}.csv"
        assert import_annotations(tmp_path / name, out, images=tmp_path / "far").format == name
        assert [line.split(",")[0] for line in out.read_text().splitlines()[1:]] == ["far/a.png", "far/b.png"]


def test_all_problems_are_listed_and_the_message_is_cut(tmp_path):
    images(tmp_path, [f"{i}" for i in range(30)])
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text("nonsense\n")
    with pytest.raises(AnnotationError) as caught:
        import_annotations(tmp_path, tmp_path / "out.csv")
    assert len(caught.value.problems) == 30
    text = str(caught.value)
    assert text.startswith("30 problems in the annotations; nothing was written:")
    assert text.endswith("... and 20 more")
    assert not (tmp_path / "out.csv").exists()
