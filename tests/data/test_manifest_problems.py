from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import draw, problems_of, write

from torchmultiset.data.manifest import ManifestError, read_manifest

VALID = {"features": [1, 2], "labels": ["cat"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"features": [1, 2], "labels": ["cat"}', "not JSON: Expecting ',' delimiter at column 38"),
        ("# a comment", "not JSON: Expecting value at column 1"),
        ("[" * 100_000, "not readable JSON: brackets are nested too deeply"),
        ('["a.jpg", "cat"]', 'must be a JSON object such as {"image": "a.jpg"'),
        ('{"features": [1, 2], "labels": [], "labels": []}', "duplicate key 'labels'"),
        ('{"features": [1, 2], "counts": {"cat": 1, "cat": 2}}', "duplicate key 'cat'"),
        ({"features": [1, 2], "lables": []}, "unknown key 'lables' (did you mean 'labels'?)"),
        ({"features": [1, 2], "path": "x", "labels": []}, "unknown key 'path'"),
        (
            {"labels": ["cat"]},
            "or 'sequence' (or 'text' and 'features'), but this one has none",
        ),
        ({"features": [1, 2], "image": "a.jpg", "labels": []}, "but this one has image and features"),
        ({"image": 2.5, "labels": []}, "'image' must be a non-empty string, but is 2.5"),
        ({"image": " ", "labels": []}, "'image' must be a non-empty string, but is ' '"),
        ({"features": [], "labels": []}, "'features' must be a list of numbers, but is []"),
        ({"features": "1 2", "labels": []}, "'features' must be a list of numbers, but is '1 2'"),
        ({"features": {}, "labels": []}, "'features' must have at least one entry, but is {}"),
        ({"features": {"x": [1]}, "labels": []}, "'x' must be a finite number that fits in float32, but is [1]"),
        ({"features": [1, "2"], "labels": []}, "feature 2 must be a finite number that fits in float32, but is '2'"),
        ({"features": [True, 2], "labels": []}, "feature 1 must be a finite number that fits in float32, but is True"),
        ('{"features": [1, NaN], "labels": []}', "feature 2 must be a finite number that fits in float32, but is nan"),
        (
            '{"features": [-Infinity, 1], "labels": []}',
            "feature 1 must be a finite number that fits in float32, but is -inf",
        ),
        ({"features": [1e39, 1], "labels": []}, "feature 1 must be a finite number that fits in float32, but is 1e+39"),
        (
            {"features": [10**400, 1], "labels": []},
            "feature 1 must be a finite number that fits in float32, but is 1000",
        ),
        ({"features": [1, 2]}, "'labels' is missing: for an empty multiset write []"),
        ({"features": [1, 2], "labels": None}, "'labels' is missing: for an empty multiset write []"),
        ({"features": [1, 2], "labels": [], "counts": {}}, "both 'labels' and 'counts' are present: keep one"),
        ({"features": [1, 2], "labels": "cat"}, '\'labels\' must look like ["cat", "cat"] or {"cat": 2}'),
        ({"features": [1, 2], "counts": ["cat"]}, "'counts' must look like {\"cat\": 2}, but is ['cat']"),
        ({"features": [1, 2], "labels": ["cat", True]}, "a label must be a non-empty string, but is True"),
        ({"features": [1, 2], "labels": ["cat", 1.5]}, "a label must be a non-empty string, but is 1.5"),
        ({"features": [1, 2], "labels": ["cat", ["dog"]]}, "a label must be a non-empty string, but is ['dog']"),
        ({"features": [1, 2], "labels": ["cat", ""]}, "a label must be a non-empty string, but is ''"),
        (
            {"features": [1, 2], "labels": ["\ud800"]},
            r"a label must be valid text, but '\ud800' contains an unpaired surrogate",
        ),
        ({"features": [1, 2], "counts": {"cat": -1}}, "the count of 'cat' must be a whole number from 0 to 10000"),
        ({"features": [1, 2], "counts": {"cat": 1.5}}, "the count of 'cat' must be a whole number"),
        ({"features": [1, 2], "counts": {"cat": True}}, "the count of 'cat' must be a whole number"),
        ({"features": [1, 2], "counts": {"cat": "2"}}, "but is '2'"),
        ('{"features": [1, 2], "counts": {"cat": NaN}}', "the count of 'cat' must be a whole number"),
        ({"features": [1, 2], "counts": {"cat": 10**12}}, "but is 1000000000000"),
        ({**VALID, "split": "trian"}, "'split' must be one of train, validation, test, but is 'trian'"),
        ({**VALID, "split": 1.5}, "'split' must be a non-empty string, but is 1.5"),
        ({**VALID, "id": [1]}, "'id' must be a non-empty string, but is [1]"),
        ({**VALID, "boxes": [[0, 0, 1, 1]]}, "'boxes' requires an image or an array"),
        ({"image": "a", "labels": ["cat"], "boxes": [[0, 0, 1]]}, "a box must be [x, y, width, height]"),
        ({"image": "a", "labels": ["cat"], "boxes": [[0, 0, 1, -1]]}, "must not be negative"),
        ({"image": "a", "labels": ["cat"], "boxes": [[0, 0, 1, "1"]]}, "a box coordinate must be a finite number"),
        ({"image": "a", "labels": ["cat"], "boxes": []}, "'boxes' must be a list of length 1, one per label"),
        ({"image": "a", "counts": {"cat": 1}, "boxes": [[0, 0, 1, 1]]}, "write 'labels' as a list"),
        ({**VALID, "areas": [1, 2]}, "'areas' must be a list of length 1, one per label"),
        ({**VALID, "areas": [-1]}, "'areas' must not be negative"),
        ({**VALID, "areas": [None]}, "an area must be a finite number"),
    ],
)
def test_a_malformed_line_of_jsonl_is_reported_with_its_number(tmp_path, line, message):
    problems = problems_of(write(tmp_path, "data.jsonl", VALID, "", line, VALID, VALID))
    assert {number for number, _ in problems} == {3}
    assert any(message in what for _, what in problems)
    assert all(len(what) < 300 for _, what in problems)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2", "has 2 cells, but the header has 3: put quotes around cells that contain ','"),
        ("1,2,cat,cat,dog", "has 5 cells, but the header has 3"),
        ('1,2,"cat, cat"', "'cat, cat' looks like several labels: put ';' between labels, or add ':1' if it is"),
        ("1,2,cat|dog", "looks like several labels"),
        ("1,2,cat;;dog", "a label is empty: remove the extra ';'"),
        ("1,2,:2", "a label must be a non-empty string, but is ''"),
        ("1,2,cat:two", "the count of 'cat' must be a whole number from 0 to 10000, but is 'two'"),
        ("1,2,cat:two", "if ':' is part of the name, write 'cat:two:1'"),
        ("1,2,cat:-1", "but is -1.0"),
        ("1,2,cat:1.5", "but is 1.5"),
        ("1,2,cat:1e9", "the count of 'cat' must be a whole number from 0 to 10000"),
        ("1,2,cat:nan", "but is nan"),
        ('"1,5",2,cat', "'x' must be a number such as 0.5, but is '1,5': write 1.5"),
        ("1,NA,cat", "'y' must be a number such as 0.5, but is 'NA': leave it empty if unknown"),
        ("1,a.jpg,cat", "but is 'a.jpg': leave it empty if unknown; name a column of text 'text'"),
        ("1,inf,cat", "'y' must be a finite number that fits in float32, but is inf"),
        ('1,2,"cat"dog', 'is a quote (") not closed, or not doubled?'),
    ],
)
def test_a_malformed_line_of_csv_is_reported_with_its_number(tmp_path, line, message):
    path = write(tmp_path, "data.csv", "x,y,labels", "1,2,cat", "", line, "1,2,cat")
    ((number, what),) = problems_of(path)
    assert number == 4
    assert message in what


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", "1,cat", '2,"cat', "3,cat", "4,cat")
    ((number, what),) = problems_of(path)
    assert number == 3
    assert "read up to line 5" in what


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            "image,items",
            "the header must have a column 'labels' or columns of counts such as 'count:cat', but has only",
        ),
        ("image,items", "but has only image, items: rename the column with the labels, or add one"),
        ("image,cat,dog", "rename them, such as 'dog' to 'count:dog'"),
        ("image,labels,count:cat", "not both"),
        ("image,labels,notes", "unknown column 'notes': rename or remove it, or start its name with '#'"),
        ("image,labels,splt", "unknown column 'splt' (did you mean 'split'?)"),
        ("image,labels,boxes", "unknown column 'boxes' (supported only in JSONL)"),
        ("image,labels,Image", "duplicate column 'image'"),
        ("x,count:cat,count: cat", "duplicate column 'count:cat'"),
        ("image,labels,", "a column has no name"),
        (
            "labels,split",
            "the header must have an input, a column 'text', a column 'image', 'array', 'set' or",
        ),
    ],
)
def test_an_invalid_header_is_reported(tmp_path, header, message):
    path = write(tmp_path, "data.csv", header, "a.png,cat,1")
    problems = problems_of(path)
    assert {number for number, _ in problems} == {1}
    assert any(message in what for _, what in problems)


def test_all_problems_are_reported_at_once(tmp_path):
    draw(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("this is not an image")
    path = write(
        tmp_path,
        "data.jsonl",
        {"image": "a.png", "labels": ["cat"]},
        {"image": "missing.png", "labels": ["dgo"]},
        "{",
        {"image": "text.png", "labels": ["cat"], "split": "other", "id": True},
        {"image": "text.png", "labels": ["cat"]},
        {"image": "a.png", "labels": ["cat"]},
        {"features": [1], "labels": ["cat"], "split": "train"},
    )
    problems = problems_of(path, classes=["cat", "dog"])
    wanted = [
        (1, "'split' is missing, but other lines have it"),
        (2, f"there is no file {tmp_path / 'missing.png'}"),
        (2, "the label 'dgo' is not one of the classes (did you mean 'dog'?)"),
        (3, "not JSON"),
        (4, "'split' must be one of"),
        (4, "'id' must be a non-empty string, but is True"),
        (5, f"{tmp_path / 'text.png'}: not an image"),
        (6, "the id 'a.png' is already used on line 1: remove one, or give each line a unique id"),
        (7, "the input is features, but on line 1 it is image"),
    ]
    for line, what in wanted:
        assert any(line == number and what in found for number, found in problems), (line, what)
    assert [number for number, _ in problems] == sorted(number for number, _ in problems)


def test_the_message_shows_ten_problems_and_counts_the_rest(tmp_path):
    path = write(tmp_path, "data.csv", "x,labels", *["1,cat:two"] * 51)
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"51 problems in {path}:"
    assert lines[1].startswith("  line 2: the count of 'cat' must be a whole number")
    assert len(lines) == 12
    assert lines[-1] == "  ... and 41 more"
    assert len(caught.value.problems) == 51
    # Worker processes return it pickled.
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("data.csv", ""), ("data.csv", "\n\n"), ("data.csv", "x,labels\n"), ("data.jsonl", ""), ("data.jsonl", "\n \n")],
)
def test_an_empty_data_set_is_refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    ((line, what),) = problems_of(path)
    assert line == 0
    assert "the file is empty" in what or "the file has no examples" in what


def test_lines_that_do_not_match_the_first_are_reported(tmp_path):
    path = write(
        tmp_path,
        "data.jsonl",
        {"features": [1, 2], "labels": ["cat"], "id": "x", "areas": [1]},
        {"features": [1, 2, 3], "labels": ["cat"], "areas": [1]},
        {"features": [1, 2], "labels": [], "id": " x"},
        {"features": [1, 2], "labels": ["cat"]},
    )
    assert problems_of(path) == [
        (2, "the line has 3 features, but line 1 has 2"),
        (3, "the id 'x' is already used on line 1: remove one, or give each line a unique id"),
        (4, "'areas' is missing, but other lines have it: add it to all lines or none"),
    ]


def test_text_that_is_not_utf8_is_reported_line_by_line(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes("x,labels\n1,Kühe\n2,Hund\n3,Bär\n".encode("latin-1"))
    problems = problems_of(path)
    assert [line for line, _ in problems] == [2, 4]
    assert problems[0][1] == "the byte b'\\xfc' is not valid UTF-8: save the file as UTF-8"
    path.write_bytes("x,labels\n1,Hund\n".encode("utf-16"))
    ((line, what),) = problems_of(path)
    assert line == 0
    assert "UTF-16" in what


def test_a_path_that_is_not_a_manifest_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        read_manifest(tmp_path / "missing.csv")
    with pytest.raises(FileNotFoundError, match=r"it has no labels\.csv\. Write one"):
        read_manifest(tmp_path)
    with pytest.raises(ValueError, match=r"is neither a \.jsonl or \.csv file nor a folder: save a spreadsheet as CSV"):
        read_manifest(write(tmp_path, "data.txt", "x,labels"))
    write(tmp_path, "labels.csv", "x,labels")
    write(tmp_path, "labels.jsonl", VALID)
    with pytest.raises(ValueError, match="must be a folder with one labels file"):
        read_manifest(tmp_path)


def test_a_backslash_in_a_path_gets_a_hint(tmp_path):
    path = write(tmp_path, "data.csv", "image,labels", "images\\a.png,cat")
    assert problems_of(path)[0][1].endswith(": use / as the path separator")


@given(st.binary(max_size=60), st.sampled_from([".csv", ".jsonl"]))
def test_any_damaged_file_is_read_or_raises_a_manifest_error(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("noise") / f"data{suffix}"
    start = b"x,labels\n1,a\n2,b\n3,c\n" if suffix == ".csv" else b'{"features": [1], "labels": ["a"]}\n' * 3
    path.write_bytes(start + data)
    try:
        examples, problems = sum(map(len, read_manifest(path).values())), ()
    except ManifestError as error:
        examples, problems = 0, error.problems
    assert examples >= 3 or problems
    assert all(0 <= line <= 64 for line, _ in problems)
