from __future__ import annotations

import numpy as np
import pytest
from manifests import draw, multisets, write

from torchmultiset.data import store
from torchmultiset.data.images import UnreadableImageError
from torchmultiset.data.load import is_store, load_data
from torchmultiset.data.manifest import ManifestError, read_manifest


@pytest.fixture
def built(tmp_path):
    """A store of four examples of one number each."""
    rows = {"inputs": store.Row("<f4", (1,)), "labels": store.Row("<i8", (2,))}
    plan = store.Plan({"name": "made by hand"}, ("cat", "dog"), {"train": 3, "test": 1}, rows)

    def make(chunk):
        n = chunk.examples
        return {"inputs": np.ones((n, 1), np.float32), "labels": np.tile(np.array([1, -1]), (n, 1))}

    store.write(tmp_path / "built", plan, make, chunk=2)
    return tmp_path / "built"


def test_a_built_data_set_is_opened_with_its_own_splits(built):
    assert is_store(built)
    splits = load_data(built, check_inputs=True)
    assert {name: len(examples) for name, examples in splits.items()} == {"train": 3, "test": 1}
    assert splits["test"].counts.tolist() == [[0, 1]]


@pytest.mark.parametrize("check_inputs", [False, True])
def test_a_store_that_changed_is_refused(built, check_inputs):
    with (built / "train" / "inputs.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(ValueError, match=r"train/inputs\.npy"):
        load_data(built, check_inputs=check_inputs)


def test_an_unfinished_build_is_not_read_as_a_folder_of_images(tmp_path):
    (tmp_path / "building.json").write_text("{}")
    assert is_store(tmp_path)
    with pytest.raises(FileNotFoundError, match="only a part of a data set"):
        load_data(tmp_path)


@pytest.mark.parametrize("as_folder", [True, False])
def test_own_data_is_loaded_by_file_or_folder(tmp_path, as_folder):
    draw(tmp_path / "a.png")
    file = write(tmp_path, "labels.jsonl", {"image": "a.png", "labels": ["cat", "cat"], "split": "test"})
    assert not is_store(tmp_path)
    test = load_data(tmp_path if as_folder else file, image_size=16)["test"]
    assert multisets(test) == [{"cat": 2}]
    assert test.batch([0]).x.shape == (1, 3, 16, 16)


def test_a_damaged_image_is_found_when_it_is_read_or_all_are_checked(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    file = write(tmp_path, "labels.jsonl", {"image": "a.png", "labels": ["cat"], "split": "train"})
    train = load_data(file)["train"]
    with pytest.raises(UnreadableImageError, match=r"a\.png"):
        train.batch([0])
    with pytest.raises(ManifestError, match=r"line 1: .*a\.png"):
        load_data(file, check_inputs=True)


def test_a_folder_without_data_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"it has no labels\.csv\. Write one .*labels\.jsonl and built data sets"
    ):
        load_data(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        load_data(tmp_path / "nothing")


def test_own_data_is_read_with_other_classes_and_fractions(tmp_path):
    file = write(tmp_path, "pets.csv", "weight,labels", *(f"{i},cat" for i in range(30)))
    splits = load_data(file, classes=["owl", "cat"], fractions=(0.5, 0.5, 0))
    assert splits["train"].classes == ("owl", "cat")
    assert len(splits["test"]) == 0
    assert {name: len(part) for name, part in load_data(file).items()} != {name: len(p) for name, p in splits.items()}
    with pytest.raises(ManifestError, match="'cat' is not one of the classes"):
        load_data(file, classes=["owl"])


def test_unreadable_inputs_are_skipped_on_request_with_a_list(tmp_path):
    for name in "abc":
        draw(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_text("no image")
    file = write(tmp_path, "p.csv", "image,labels,split", *(f"{name}.png,cat,train" for name in "abc"))
    with pytest.warns(UserWarning, match=r"(?s)skipped 1 of 3 examples: .*line 3: .*b\.png"):
        train = load_data(file, skip_unreadable=True)["train"]
    assert list(train.ids) == ["a.png", "c.png"]
    with pytest.raises(ValueError, match="skip_unreadable must be False without check_inputs"):
        read_manifest(file, skip_unreadable=True, check_inputs=False)


def test_a_built_data_set_has_its_own_classes_and_splits(built):
    for name, value in {"classes": ["cat"], "fractions": (1, 0, 0), "skip_unreadable": True}.items():
        with pytest.raises(ValueError, match=f"^{name} must be left out, as .*built data set"):
            load_data(built, **{name: value})
