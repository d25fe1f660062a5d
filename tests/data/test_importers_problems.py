"""Problems of annotations are reported with file and place, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_importers import coco_content, flat, images, voc_text, write_voc, write_yolo

from torchmultiset.data.importers import AnnotationError, import_annotations


def problems(source: Path, **options: object) -> list[str]:
    before = sorted(source.parent.rglob("*"))
    with pytest.raises(AnnotationError) as caught:
        import_annotations(source, source.parent / "out.jsonl", **options)
    assert sorted(source.parent.rglob("*")) == before  # nothing was written
    return [
        problem.replace(str(source), "SOURCE").replace(str(source.parent), "HERE") for problem in caught.value.problems
    ]


# COCO


def changed(tmp_path, change):
    file = flat(tmp_path)
    content = coco_content({"a": ["cat", "dog"], "b": ["cat"]})
    change(content)
    file.write_text(json.dumps(content))
    return problems(file)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda c: c["annotations"][1].update(category_id=5),
            "SOURCE: annotations[1]: category_id 5 is not the id of a category: correct or remove it",
        ),
        (
            lambda c: c["annotations"][2].update(image_id=9),
            "SOURCE: annotations[2]: image_id 9 is not the id of an image: correct or remove it",
        ),
        (
            lambda c: c["annotations"][0].update(bbox=[1, 2, -3, 4]),
            "SOURCE: annotations[0]: 'bbox' must be x, y, width and height in pixels, but is [1, 2, -3, 4]",
        ),
        (
            lambda c: c["annotations"][0].update(area="big"),
            "SOURCE: annotations[0]: 'area' must be a number of pixels, at least 0, but is 'big'",
        ),
        (
            lambda c: c["annotations"][1].update(id=0),
            "SOURCE: annotations[1]: the id 0 is already used: give each of the annotations a unique id",
        ),
        (
            lambda c: c["images"].append({"id": 2, "file_name": 5}),
            "SOURCE: images[2]: 'file_name' must be a non-empty string, but is 5",
        ),
        (
            lambda c: c["images"].append({"id": 2, "file_name": "gone.png"}),
            "SOURCE: images[2]: there is no image 'gone.png': looked in HERE; pass the folder of the images (--images)",
        ),
        (
            lambda c: c["images"].append({"id": 2, "file_name": "a.png"}),
            "SOURCE: images[2]: the image HERE/a.png is already annotated in SOURCE: images[0]",
        ),
        (
            lambda c: c["categories"].append({"id": "x", "name": "owl"}),
            "SOURCE: categories[3]: 'id' must be an integer, but is 'x'",
        ),
        (lambda c: c["categories"].append("owl"), "SOURCE: categories[3]: must be an object, but is 'owl'"),
        (
            lambda c: c.pop("categories"),
            "SOURCE: must be a JSON object with a list 'categories', as COCO's instances_*.json have",
        ),
        (lambda c: c.update(annotations=[]), "SOURCE: no object is left in 2 images: there are no labels to train on"),
    ],
)
def test_problems_of_coco_are_reported_with_the_entry(tmp_path, change, expected):
    assert changed(tmp_path, change) == [expected]


def test_a_json_file_that_is_cut_off_is_reported_with_its_line(tmp_path):
    file = flat(tmp_path)
    file.write_text(json.dumps(coco_content({"a": ["cat"]}), indent=1)[:60])
    (problem,) = problems(file)
    assert problem.startswith("SOURCE: line ")
    assert "not JSON" in problem
    file.write_text("[" * 100_000)
    assert "not JSON" in problems(file)[0]
    file.write_bytes(b'{"\xff": 1}')
    assert "not JSON" in problems(file)[0]


def test_two_coco_files_of_one_split_are_refused(tmp_path):
    file = flat(tmp_path / "source")
    (file.parent / "other.json").write_bytes(file.read_bytes())
    assert any("other.json is already the file of no particular split" in line for line in problems(file.parent))


def test_boxes_are_required_only_if_they_are_kept(tmp_path):
    file = flat(tmp_path, bbox=[])
    assert problems(file, boxes=True)[0].endswith("an object has no box: add it, or import without --boxes")
    assert import_annotations(file, tmp_path / "out.csv").labels == {"cat": 2, "dog": 1}


# YOLO


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "0 0.5 0.5 0.1",
            "must be class x y width height, or class and the corners of a polygon, as numbers, but has 4",
        ),
        ("0 0.5 0.5 0.1 0.1 0.9", "as numbers, but has 6 entries"),
        ("cat 0.5 0.5 0.1 0.1", "as numbers, but is 'cat 0.5 0.5 0.1 0.1'"),
        ("2 0.5 0.5 0.1 0.1", "the class must be a whole number from 0 to 1, as there are 2 names, but is 2"),
        ("-1 0.5 0.5 0.1 0.1", "the class must be a whole number from 0 to 1, as there are 2 names, but is -1"),
        ("0.5 0.5 0.5 0.1 0.1", "but is 0.5"),
        ("0 50 40 10 10", "coordinates must be fractions of the image, from 0 to 1, but are ['50', '40', '10', '10']"),
        ("0 nan 0.5 0.1 0.1", "coordinates must be fractions of the image"),
    ],
)
def test_problems_of_yolo_are_reported_with_file_and_line(tmp_path, line, expected):
    source = tmp_path / "source"
    images(source, "a")
    (source / "classes.txt").write_text("cat\ndog\n")
    (source / "a.txt").write_text(f"1 0.5 0.5 0.1 0.1\n\n{line}\n")
    (problem,) = problems(source)
    assert problem.startswith("SOURCE/a.txt: line 3: ")
    assert expected in problem


def test_polygons_are_imported_as_their_bounding_boxes(tmp_path):
    images(tmp_path, "a")
    (tmp_path / "a.txt").write_text("1 0.1 0.5 0.6 0.25 0.35 1.004\n")
    imported = import_annotations(tmp_path, tmp_path / "out.jsonl", boxes=True)
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert line["boxes"] == [[4.0, 5.0, 20.0, 15.0]]
    assert line["labels"] == ["1"]
    assert "classes.txt" in imported.notes[-1]


def test_yolo_images_and_labels_must_match(tmp_path):
    source = tmp_path / "source"
    images(source / "images", "ab")
    write_yolo(source / "labels", {"a": ["cat"], "x": ["dog"]})
    assert problems(source) == [
        "SOURCE/labels/x.txt: there is no image with this name: add the image, or remove the file"
    ]
    for file in (source / "labels").iterdir():
        file.unlink()
    (source / "labels" / "a.txt").write_bytes(b"\xff\xfe0")
    assert problems(source) == ["SOURCE/labels/a.txt: is not text in UTF-8: export it again"]
    (source / "labels" / "a.txt").unlink()
    expected = "SOURCE: none of the images has a label file (labels/NAME.txt or NAME.txt beside the image)"
    assert problems(source, format="yolo") == [expected]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("train: images\nval: gone\nnames: [cat]", "line 2: there is no folder 'gone' for validation"),
        ("train: images\nval: images\nnames: [cat]", "line 2: HERE/source/images/a.png is in train, too"),
        ("names: {0: cat, 2: dog}", "line 1: the numbers of 'names' must be 0 to 1, each once, but are [0, 2]"),
        ("# pets\nnames:\nnc: 3", "line 2: 'names' must be a list such as [cat, dog], but is ''"),
        ("names: *anchor", "line 1: 'names' must be a list such as [cat, dog], but is '*anchor'"),
    ],
)
def test_problems_of_data_yaml_are_reported_with_the_line(tmp_path, content, expected):
    source = tmp_path / "source"
    images(source / "images", "a")
    write_yolo(source / "labels", {"a": ["cat"]})
    (source / "data.yaml").write_text(content)
    found = problems(source)[0].replace("SOURCE/images", "HERE/source/images")
    assert found.startswith(f"SOURCE/data.yaml: {expected}")


@pytest.mark.parametrize(
    "names",
    [
        "names: [cat, 'dog, brown', \"owl\"]",
        "names:\n- cat\n- 'dog, brown'\n- owl  # a bird",
        "names: [cat,\n  'dog, brown',\n  owl]",
        "names:\n  0: cat\n  1: dog, brown\n  2: owl",
        "names: {0: cat, 1: 'dog, brown', 2: owl}",
    ],
)
def test_class_names_in_data_yaml_may_have_any_common_syntax(tmp_path, names):
    images(tmp_path, "a")
    write_yolo(tmp_path, {"a": ["owl", "dog", "cat"]})
    (tmp_path / "data.yaml").write_text(f"# made by hand\n{names}\nnc: 3\n")
    assert list(import_annotations(tmp_path, tmp_path / "out.csv").labels) == ["cat", "dog, brown", "owl"]


def test_an_image_outside_of_the_splits_is_reported(tmp_path):
    source = tmp_path / "source"
    for folder in ("train", "valid", "more"):
        images(source / folder, folder)
        write_voc(source / folder, {letter: ["cat"] for letter in folder})
    found = problems(source)
    assert len(found) == 4
    assert all("the image is in no split, but others are" in problem for problem in found)


# Pascal VOC

BOMB = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<annotation><object>\n</annotation>", "line 2: not XML: mismatched tag at column"),
        ("", "line 1: not XML: no element found"),
        (f"\n{BOMB}\n<annotation>&y;</annotation>", "line 2: has a document type"),
        (
            f"{BOMB}<annotation>&y;</annotation>",
            "line 1: has a document type (<!DOCTYPE), which is not read: remove it",
        ),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "line 1: has a document type"),
        ("<html></html>", "line 1: the first element must be <annotation>, but is <html>"),
        ("<annotation>\n<object><bndbox/></object></annotation>", "line 2: <object> must have a <name>"),
        (
            "<annotation><object><name>a</name>\n<bndbox><xmin>1</xmin></bndbox></object></annotation>",
            "line 2: <bndbox> must have a number <ymin>, but has ''",
        ),
        (voc_text("a", ["cat"]).replace("<xmin>5", "<xmin>50"), "line 3: <bndbox> must have xmin <= xmax and"),
        (voc_text("a", ["cat"]).replace("<xmin>5", "<xmin>inf"), "line 3: <bndbox> must have a number <xmin>"),
        (
            "<annotation>" + "<a>" * 200 + "</a>" * 200 + "</annotation>",
            "line 1: elements are nested more than 100 deep",
        ),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "line 1: not XML"),
    ],
    ids=range(12),
)
def test_problems_of_voc_are_reported_with_file_and_line(tmp_path, text, expected):
    source = tmp_path / "source"
    images(source, "a")
    (source / "a.xml").write_text(text)
    (problem,) = problems(source)
    assert problem.startswith("SOURCE/a.xml: ")
    assert expected in problem


def test_a_bomb_is_refused_before_it_is_expanded(tmp_path):
    source = tmp_path / "source"
    images(source, "a")
    levels = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 30))
    bomb = f'<!DOCTYPE a [<!ENTITY l0 "ha">{levels}]><annotation><object><name>&l29;</name></object></annotation>'
    (source / "a.xml").write_text(bomb)
    (problem,) = problems(source)
    assert "has a document type" in problem


def test_a_huge_annotation_is_refused_without_reading_it(tmp_path):
    source = tmp_path / "source"
    images(source, "a")
    with (source / "a.xml").open("wb") as file:
        file.truncate(17 * 2**20)
    assert problems(source) == ["SOURCE/a.xml: larger than 16 MiB, too large for the annotation of one image"]


def test_a_voc_annotation_needs_its_image(tmp_path):
    source = tmp_path / "source"
    write_voc(source, {"a": ["cat"]})
    assert problems(source) == [
        "SOURCE/a.xml: line 1: there is no image 'a.png': add the image, or pass the folder of the images (--images)"
    ]
    images(source, "b")
    (source / "a.xml").write_text(voc_text("C:\\photos\\b", ["cat"]))
    assert import_annotations(source, tmp_path / "out.csv").images == {"": 1}


def test_lists_that_are_not_text_are_reported_with_their_names(tmp_path):
    source = tmp_path / "voc"
    images(source / "JPEGImages", "a")
    write_voc(source / "Annotations", {"a": ["cat"]})
    (source / "ImageSets" / "Main").mkdir(parents=True)
    (source / "ImageSets" / "Main" / "val.txt").write_bytes(b"\xff")
    assert problems(source) == ["SOURCE/ImageSets/Main/val.txt: is not text in UTF-8: export it again"]
    source = tmp_path / "yolo"
    images(source, "a")
    write_yolo(source, {"a": ["cat"]})
    (source / "classes.txt").write_bytes(b"caf\xe9")
    assert problems(source) == ["SOURCE/classes.txt: is not text in UTF-8: export it again"]


def test_parts_of_an_object_are_not_objects(tmp_path):
    images(tmp_path, "a")
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    (tmp_path / "a.xml").write_text(voc_text("a", ["person"], part))
    assert import_annotations(tmp_path, tmp_path / "out.csv").labels == {"person": 1}


def test_lists_without_any_annotated_image_are_reported(tmp_path):
    source = tmp_path / "source"
    images(source / "JPEGImages", "a")
    write_voc(source / "Annotations", {"a": ["cat"]})
    (source / "ImageSets" / "Main").mkdir(parents=True)
    (source / "ImageSets" / "Main" / "train.txt").write_text("zzz\n")
    assert problems(source) == [
        "SOURCE/ImageSets/Main: the lists contain none of the annotations: correct or remove them"
    ]
