from __future__ import annotations

import csv
import io
import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from manifests import ALL_TRAIN, draw, multisets, problems_of, together, write
from PIL import Image

from torchmultiset.data.manifest import read_manifest
from torchmultiset.data.ranks import area_rank, spatial_rank


def test_jsonl_may_have_labels_as_a_list_or_as_counts(tmp_path):
    path = write(
        tmp_path,
        "data.jsonl",
        {"features": [0.5, 2], "labels": ["dog", "cat", "dog"], "split": "train", "id": "first"},
        {"features": [1, 3], "counts": {"cat": 2, "dog": 0}, "split": "train", "id": 7},
        {"features": [-1, 1e-3], "labels": {"dog": 1, "cat": 1.0}, "split": "validation"},
        {"features": [0, 0], "labels": [], "split": "test"},
        {"features": [0, 1], "labels": [3, "3", 3.0], "split": "test", "#comment": "whole numbers are names"},
    )
    splits = read_manifest(path)
    assert list(splits) == ["train", "validation", "test"]
    train, validation, test = splits.values()
    assert train.classes == validation.classes == test.classes == ("3", "cat", "dog")
    assert train.ids == ["first", "7"]
    assert test.ids == ["line 4", "line 5"]
    assert train.labels.tolist() == [[2, 1, 2], [1, 1, -1]]  # in the order of the annotations
    assert multisets(validation) == [Counter(cat=1, dog=1)]
    assert multisets(test) == [Counter(), Counter({"3": 3})]
    batch = train.batch([1, 0])
    assert batch.x.dtype == torch.float32
    assert batch.x.tolist() == [[1, 3], [0.5, 2]]
    assert batch.target.tolist() == [[0, 2, 0], [0, 1, 2]]
    assert batch.boxes is None
    assert batch.areas is None


def test_csv_may_have_repeated_names_or_names_with_counts(tmp_path):
    path = write(
        tmp_path,
        "data.csv",
        "height,labels,width,id,split",
        "0.5,dog;cat;dog,1,a,train",
        "1e2,cat:2;dog,2,b,train",
        "0,,3,c,val",
        '1,"traffic light; 12:30:1 ;a,b:2",4,d,test',
    )
    train, validation, test = read_manifest(path).values()
    assert train.classes == ("12:30", "a,b", "cat", "dog", "traffic light")
    assert multisets(train) == [Counter(dog=2, cat=1), Counter(cat=2, dog=1)]
    assert multisets(validation) == [Counter()]
    assert multisets(test) == [Counter({"traffic light": 1, "12:30": 1, "a,b": 2})]
    assert train.batch([0, 1]).x.tolist() == [[0.5, 1], [100, 2]]  # columns in the order of the file


def test_csv_may_have_a_column_of_counts_for_each_class(tmp_path):
    path = write(tmp_path, "data.csv", "x,count:cat,Count: big dog", "1,2,", "2,0,3.0", "3,,")
    assert together(read_manifest(path)) == {
        "line 2": Counter(cat=2),
        "line 3": Counter({"big dog": 3}),
        "line 4": Counter(),
    }


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_a_folder_of_images_with_a_labels_file_is_read(tmp_path, name):
    (tmp_path / "sub").mkdir()
    draw(tmp_path / "a.png", "red", size=(4, 8))
    draw(tmp_path / "sub" / "b.png", "blue", size=(8, 8))
    if name.endswith("csv"):
        write(tmp_path, name, "image,labels,split", "a.png,cat;cat,train", "./sub/b.png,dog,train")
    else:
        write(
            tmp_path,
            name,
            {"image": "a.png", "labels": ["cat", "cat"], "split": "train"},
            {"image": "sub/b.png", "labels": ["dog"], "split": "train"},
        )
    train = read_manifest(tmp_path, image_size=8)["train"]
    assert train.ids == ["a.png", "sub/b.png"]
    assert multisets(train) == [Counter(cat=2), Counter(dog=1)]
    x = train.batch([1, 0]).x
    assert x.dtype == torch.uint8
    assert x.shape == (2, 3, 8, 8)
    blue, red = x
    assert blue.amin((1, 2)).tolist() == [0, 0, 255]
    assert red[0, 0].tolist() == [0, 0, 255, 255, 255, 255, 0, 0]  # centred, zero-padded


@pytest.mark.parametrize(
    ("shape", "read"),
    [((3, 2, 3), (3, 2, 3)), ((2, 3), (1, 2, 3)), ((3,), (3,))],  # height and width are an image of one channel
)
def test_arrays_of_images_keep_uint8_and_everything_else_is_float32(tmp_path, shape, read):
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.int16, np.float64, ">f4", np.bool_):
        arrays = [(rng.random(shape) * 100).astype(dtype) for _ in range(3)]
        for i, array in enumerate(arrays):
            np.save(tmp_path / f"{i}.npy", array)
        path = write(tmp_path, "data.csv", "array,labels", "0.npy,a", "1.npy,b", "2.npy,")
        train = read_manifest(path, fractions=ALL_TRAIN)["train"]
        x = train.batch([2, 0, 2]).x
        assert x.dtype == (torch.uint8 if dtype == np.uint8 and len(shape) > 1 else torch.float32)
        wanted = np.stack([arrays[2], arrays[0], arrays[2]]).reshape(3, *read)
        np.testing.assert_allclose(x.numpy(), wanted.astype(np.float64), rtol=1e-6)
        assert train.batch([]).x.shape == (0, *read)


def test_a_file_written_by_a_spreadsheet_is_read(tmp_path):
    """The file has a BOM, ';' between cells, CRLF, capitals, spaces and empty rows, as some spreadsheets write."""
    path = tmp_path / "Labels.CSV"
    draw(tmp_path / "Ätna 1.png")
    draw(tmp_path / "b.png")
    draw(tmp_path / "c.png")
    text = (
        "\r\n"
        "Image ; Labels;#Notes;Split\r\n"
        'Ätna 1.png;"Kühe; Kühe ;Hund";"says ""moo""\r\ntwice";Train\r\n'
        "\r\n"
        "b.png;Hund;;TEST\r\n"
        "  c.png  ;;nobody there;val\r\n"
        ";;;\r\n"
        ";;;\r\n"
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    train, validation, test = read_manifest(path).values()
    assert train.classes == ("Hund", "Kühe")
    assert (train.ids, validation.ids, test.ids) == (["Ätna 1.png"], ["c.png"], ["b.png"])
    assert multisets(train) == [Counter(Kühe=2, Hund=1)]
    assert multisets(validation) == [Counter()]


def test_line_numbers_agree_with_an_editor(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b'x,labels\r\n\r\n1,"a\r\n\r\nb"\r\n1,a;;\r\n2,"c\nd"\n1,a;;\n')
    assert [line for line, _ in problems_of(path)] == [6, 9]
    path = tmp_path / "data.jsonl"
    path.write_bytes('{"features": [1], "labels": ["a\u2028b", "a\x85b"]}\r\n\r\n{"features": []}\r\n'.encode())
    assert [line for line, _ in problems_of(path)] == [3, 3]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name == name.strip()
)
# Lists of few names, so that names repeat.
data_sets = st.lists(names, min_size=1, max_size=4, unique=True).flatmap(
    lambda classes: st.tuples(
        st.just(classes), st.lists(st.lists(st.sampled_from(classes), max_size=6), min_size=1, max_size=5)
    )
)


@pytest.mark.slow
@given(data_sets, st.booleans(), st.booleans())
def test_multisets_written_as_jsonl_are_read_unchanged(tmp_path_factory, data_set, counted, ascii_only):
    classes, rows = data_set
    path = tmp_path_factory.mktemp("jsonl") / "data.jsonl"
    lines = [
        {"features": [i], ("counts" if counted else "labels"): dict(Counter(row)) if counted else row}
        for i, row in enumerate(rows)
    ]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=ascii_only) for line in lines), encoding="utf-8")
    train = read_manifest(path, classes=classes, fractions=ALL_TRAIN)["train"]
    assert train.classes == tuple(classes)
    assert multisets(train) == [Counter(row) for row in rows]
    if not counted:
        assert [[classes[i] for i in row if i >= 0] for row in train.labels] == rows


@given(data_sets, st.sampled_from(["repeats", "counts", "columns"]), st.sampled_from([",", ";", "\t"]))
def test_multisets_written_as_csv_are_read_unchanged(tmp_path_factory, data_set, form, delimiter):
    classes, rows = data_set
    text = io.StringIO()
    if form == "columns":
        writer = csv.writer(text)
        writer.writerow(["number", *(f"count:{name}" for name in classes)])
        writer.writerows([i, *(Counter(row)[name] for name in classes)] for i, row in enumerate(rows))
    else:
        # A name in a cell of labels cannot contain ';'.
        classes = list(dict.fromkeys(name.replace(";", "+") for name in classes))
        rows = [[name.replace(";", "+") for name in row] for row in rows]
        writer = csv.writer(text, delimiter=delimiter)
        writer.writerow(["number", "labels"])
        for i, row in enumerate(rows):
            if form == "counts":
                parts = [f"{name}:{count}" for name, count in Counter(row).items()]
            else:
                parts = [f"{name}:1" if set(name) & set(":,|") else name for name in row]
            writer.writerow([i, ";".join(parts)])
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(text.getvalue().encode())
    train = read_manifest(path, classes=classes, fractions=ALL_TRAIN)["train"]
    assert multisets(train) == [Counter(row) for row in rows]


def test_boxes_are_moved_with_the_image_and_give_the_areas(tmp_path):
    draw(tmp_path / "wide.png", size=(200, 100))
    draw(tmp_path / "tall.png", size=(50, 100))
    path = write(
        tmp_path,
        "data.jsonl",
        {"image": "wide.png", "labels": ["b", "a"], "boxes": [[100, 0, 100, 100], [0, 0, 20, 10]]},
        {"image": "tall.png", "labels": ["a"], "boxes": [[0, 50, 50, 50]]},
        {"image": "tall.png", "labels": [], "id": "again"},
    )
    batch = read_manifest(path, image_size=100, fractions=ALL_TRAIN)["train"].batch([0, 1, 2])
    assert batch.boxes.tolist() == [
        [[50, 25, 50, 50], [0, 25, 10, 5]],
        [[25, 50, 50, 50], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    assert batch.areas.tolist() == [[2500, 50], [2500, 0], [0, 0]]
    assert area_rank(batch.labels, batch.areas).tolist() == [[1, 0], [0, -1], [-1, -1]]
    assert spatial_rank(batch.labels, batch.boxes, bands=1, height=100)[0].tolist() == [0, 1]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("exif", [True, False])
def test_a_box_follows_its_object_through_exif_rotation(tmp_path, orientation, exif):
    """The box of a white square on black contains exactly the white pixels in every orientation."""
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[10:20, 60:70] = 255
    image = Image.fromarray(pixels)
    tags = image.getexif()
    tags[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=tags)
    if exif:  # the box was annotated in the displayed image
        from PIL import ImageOps

        with Image.open(tmp_path / "a.png") as stored:
            pixels = np.asarray(ImageOps.exif_transpose(stored))
    y, x = (axis.min() for axis in np.nonzero(pixels[..., 0]))
    path = write(tmp_path, "data.jsonl", {"image": "a.png", "labels": ["a"], "boxes": [[int(x), int(y), 10, 10]]})
    batch = read_manifest(path, image_size=80, exif=exif, fractions=ALL_TRAIN)["train"].batch([0])
    white = batch.x[0, 0] > 128
    left, top, width, height = batch.boxes[0, 0].int().tolist()
    assert white.sum() == width * height == 100
    assert white[top : top + height, left : left + width].all()


def test_areas_and_boxes_of_arrays_are_not_changed(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 4)))
    path = write(
        tmp_path,
        "data.jsonl",
        {"array": "a.npy", "labels": ["x", "y"], "boxes": [[0, 1, 2, 3], [1, 1, 1, 1]], "areas": [4, 0.5]},
    )
    batch = read_manifest(path, fractions=ALL_TRAIN)["train"].batch([0])
    assert batch.boxes.tolist() == [[[0, 1, 2, 3], [1, 1, 1, 1]]]
    assert batch.areas.tolist() == [[4, 0.5]]
    path = write(tmp_path, "areas.jsonl", {"features": [1], "labels": ["x"], "areas": [7]})
    batch = read_manifest(path, fractions=ALL_TRAIN)["train"].batch([0])
    assert batch.areas.tolist() == [[7]]
    assert batch.boxes is None
