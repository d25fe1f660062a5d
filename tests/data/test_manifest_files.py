from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import ALL_TRAIN, draw, problems_of, together, write
from PIL import Image

from torchmultiset.data.manifest import ManifestError, read_manifest


@pytest.fixture
def photos(tmp_path):
    """A list of four valid images, and three invalid ones on lines 3, 5 and 7."""
    for name in "aceg":
        draw(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "d.jpg")
    (tmp_path / "d.jpg").write_bytes((tmp_path / "d.jpg").read_bytes()[:1000])  # the header is complete
    (tmp_path / "f.png").write_bytes(b"")
    files = ["a.png", "b.png", "c.png", "d.jpg", "e.png", "f.png", "g.png"]
    return write(tmp_path, "data.csv", "image,labels", *(f"{name},cat;{name[0]}" for name in files))


def test_unreadable_images_are_all_listed(photos):
    problems = problems_of(photos)
    assert [line for line, _ in problems] == [3, 5, 7]
    assert [Path(what.split(": ")[0]).name for _, what in problems] == ["b.png", "d.jpg", "f.png"]


def test_unreadable_images_are_skipped_on_request_with_a_list(photos):
    with pytest.warns(UserWarning, match=r"skipped 3 of 7 examples") as caught:
        splits = read_manifest(photos, skip_unreadable=True, image_size=8)
    (warning,) = caught
    assert all(f"line {line}: " in str(warning.message) for line in (3, 5, 7))
    assert set(together(splits)) == {"a.png", "c.png", "e.png", "g.png"}
    assert splits["train"].classes == ("a", "b", "c", "cat", "d", "e", "f", "g")  # the classes of the whole file
    for examples in splits.values():
        assert examples.batch(range(len(examples))).x.shape == (len(examples), 3, 8, 8)


def test_a_missing_file_that_exists_in_another_folder_is_suggested(tmp_path):
    (tmp_path / "photos").mkdir()
    for path in ("a.png", "photos/b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / path)
    (tmp_path / "labels.csv").write_text("image,labels\nphotos/a.png,cat\nb.png,cat\nc.png,cat\n")
    with pytest.raises(ManifestError) as raised:
        read_manifest(tmp_path)
    fixes = [what.rpartition(": ")[2] for _, what in raised.value.problems]
    start = "since paths start at the folder of the table"
    assert fixes == [f"write a.png, {start}", f"write photos/b.png, {start}", "correct the path, or remove the line"]


def test_missing_files_are_not_skipped(photos):
    (photos.parent / "c.png").unlink()
    with pytest.warns(UserWarning, match="skipped"):
        ((line, what),) = problems_of(photos, skip_unreadable=True)
    assert line == 4
    assert "there is no file" in what


def test_skipping_all_examples_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    path = write(tmp_path, "data.csv", "image,labels", "a.png,cat")
    with pytest.warns(UserWarning, match="skipped 1 of 1"):
        assert problems_of(path, skip_unreadable=True) == [(0, "no examples are left: none of the files can be read")]


def test_unchecked_images_are_refused_when_they_are_read(photos):
    splits = read_manifest(photos, check_inputs=False)
    assert len(together(splits)) == 7
    (broken,) = (examples for examples in splits.values() if "b.png" in examples.ids)
    with pytest.raises(ValueError, match=r"b\.png: not an image"):
        broken.batch(range(len(broken)))


def test_a_decompression_bomb_is_unreadable(tmp_path, monkeypatch):
    draw(tmp_path / "a.png", size=(100, 100))
    path = write(tmp_path, "data.csv", "image,labels,split", "a.png,cat,train")
    assert len(read_manifest(path)["train"]) == 1
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    ((line, what),) = problems_of(path)
    assert line == 2
    assert "too many pixels" in what


unpickled: list[str] = []


class Trap:
    def __reduce__(self):
        return note, ("a pickle was loaded",)


def note(what: str) -> None:
    unpickled.append(what)


def test_unreadable_arrays_are_all_listed_and_no_pickle_is_loaded(tmp_path):
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.ones((2, 2)))
    np.save(tmp_path / "1.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "2.npy").write_bytes((tmp_path / "2.npy").read_bytes()[:-1])
    np.save(tmp_path / "3.npy", np.array([[1, np.nan], [0, 0]]))
    np.save(tmp_path / "4.npy", np.array(["text"]))
    np.save(tmp_path / "5.npy", np.array(1.0))
    (tmp_path / "6.npy").write_bytes(pickle.dumps(Trap()))
    with (tmp_path / "7.npy").open("wb") as file:
        np.savez(file, x=np.ones(2))
    path = write(tmp_path, "data.csv", "array,labels", *(f"{i}.npy,cat" for i in range(8)))
    problems = problems_of(path)
    assert not unpickled
    assert [line for line, _ in problems] == [3, 4, 5, 6, 7, 8, 9]
    assert all(str(tmp_path / f"{line - 2}.npy") in what for line, what in problems)
    assert "contains NaN" in problems[2][1]
    with pytest.warns(UserWarning, match="skipped 7 of 8"):
        splits = read_manifest(path, skip_unreadable=True, fractions=ALL_TRAIN)
    assert splits["train"].ids == ["0.npy"]


def test_arrays_of_another_shape_or_dtype_are_reported_and_not_skipped(tmp_path):
    like, other = np.ones((1, 2, 3)), np.ones((1, 2, 3), dtype=np.uint8)
    for i, array in enumerate([like, np.ones(3), other, np.ones((2, 3), int)]):
        np.save(tmp_path / f"{i}.npy", array)
    path = write(tmp_path, "data.csv", "array,labels", *(f"{i}.npy,cat" for i in range(4)))
    assert problems_of(path, skip_unreadable=True) == [
        (3, "the array is float32 of shape (3,), but the one on line 2 is float32 of shape (1, 2, 3): save all alike"),
        (
            4,
            "the array is uint8 of shape (1, 2, 3), but the one on line 2 is float32 of shape (1, 2, 3):"
            " save all alike",
        ),
    ]
    train = read_manifest(path, check_inputs=False, fractions=ALL_TRAIN)["train"]
    with pytest.raises(ValueError, match=r"1\.npy must be float32 of shape \(1, 2, 3\), like .*0\.npy"):
        train.batch([0, 1])


def test_an_array_of_several_images_is_refused_with_its_path(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((5, 3, 8, 8)))
    path = write(tmp_path, "data.csv", "array,labels", "a.npy,cat")
    ((line, what),) = problems_of(path, fractions=ALL_TRAIN)
    assert (line, what.startswith(f"{tmp_path / 'a.npy'}: must have shape")) == (2, True)
    assert "(channels, height, width), but has (5, 3, 8, 8): save one file per example" in what


@given(st.integers(0, 127), st.binary(min_size=1, max_size=3))
def test_a_damaged_array_header_is_reported_unless_it_is_still_valid(tmp_path_factory, at, noise):
    folder = tmp_path_factory.mktemp("damage")
    np.save(folder / "a.npy", np.ones((2, 2)))
    data = bytearray((folder / "a.npy").read_bytes())
    data[at : at + len(noise)] = noise
    (folder / "a.npy").write_bytes(data)
    path = write(folder, "data.csv", "array,labels", "a.npy,cat")
    try:
        lines = [2] * len(read_manifest(path, fractions=ALL_TRAIN)["train"])
    except ManifestError as error:
        lines = [line for line, _ in error.problems]
    assert lines == [2]
