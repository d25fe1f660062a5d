"""Fresh images are new in each epoch, have the stored images' distribution, and use only training digits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_digits import flat_pools

from torchmultiset.data import Examples, load_data, store
from torchmultiset.data.digits import Digits, load_digits
from torchmultiset.data.fresh import distort, fresh_epochs
from torchmultiset.data.mnist_multi import VARIANTS, Fresh, MnistMulti, build, generate

SMALL = MnistMulti(sizes=(1, 3), digit_px=(10, 14), canvas=30, clutter=3, train=40, validation=5, test=5)
ALL = np.arange(40)


def built(parent: Path, fresh: Fresh = "plain", parameters: MnistMulti = SMALL) -> Path:
    folder = parent / fresh
    build(folder, parameters, flat_pools(), fresh=fresh)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of digits that their grey level identifies; levels up to 50 are for training."""
    return built(tmp_path)


def images(examples: Examples) -> np.ndarray:
    return examples.inputs[ALL]


def test_the_first_epoch_has_the_stored_images_and_later_ones_new_images(folder: Path) -> None:
    epochs, stored = fresh_epochs(folder, seed=0), load_data(folder)["train"]
    np.testing.assert_array_equal(images(epochs(0)), images(stored))
    np.testing.assert_array_equal(epochs(0).labels, stored.labels)
    shown = [image.tobytes() for epoch in range(4) for image in images(epochs(epoch))]
    assert len(set(shown)) == len(shown) == 4 * 40
    assert not (epochs(1).labels == epochs(2).labels).all()


def test_new_images_and_their_clutter_use_training_digits_only(folder: Path) -> None:
    epochs = fresh_epochs(folder, seed=0)
    levels = {level for epoch in range(1, 6) for level in np.unique(images(epochs(epoch))).tolist()}
    assert levels == {*range(51)}


def test_new_images_follow_the_parameters_and_match_their_labels(folder: Path) -> None:
    examples = fresh_epochs(folder, seed=0)(7)
    batch = examples.batch(ALL)
    assert len(examples) == 40
    assert batch.x.shape == (40, 1, 30, 30)
    sizes = (batch.labels >= 0).sum(1)
    assert {*sizes.tolist()} == {1, 2, 3}
    for image, labels, boxes in zip(batch.x[:, 0], batch.labels, batch.boxes, strict=True):
        for label, (x, y, px, _) in zip(labels.tolist(), boxes.int().tolist(), strict=True):
            if label >= 0:
                assert 10 <= px <= 14
                assert (int(image[y, x]) - 1) % 10 == label


def test_images_depend_on_seed_and_epoch_only(folder: Path) -> None:
    first, again, other = fresh_epochs(folder, seed=3), fresh_epochs(folder, seed=3), fresh_epochs(folder, seed=4)
    again(5)
    mixed = np.array([17, 2, 17, 39])
    np.testing.assert_array_equal(again(2).inputs[mixed], images(first(2))[mixed])
    np.testing.assert_array_equal(again(2).labels, first(2).labels)
    assert (images(other(2)) != images(first(2))).any((1, 2, 3)).all()


def test_distorted_digits_depend_on_seed_and_epoch_only(folder: Path) -> None:
    distorted = built(folder.parent, "distorted")
    plain, first, again = (fresh_epochs(each, seed=3) for each in (folder, distorted, distorted))
    np.testing.assert_array_equal(images(first(0)), images(plain(0)))  # stored images are not distorted
    for epoch in (1, 2):
        np.testing.assert_array_equal(images(first(epoch)), images(again(epoch)))
        np.testing.assert_array_equal(first(epoch).labels, plain(epoch).labels)
        np.testing.assert_array_equal(first(epoch).boxes, plain(epoch).boxes)
        assert (images(first(epoch)) != images(plain(epoch))).any()


@pytest.mark.slow
@pytest.mark.parametrize(("elastic", "share"), [(False, 0.95), (True, 0.9)])
def test_a_distorted_digit_is_nearest_to_one_of_its_class(elastic: bool, share: float) -> None:
    """Its nearest neighbour among the undistorted digits shows the same digit."""
    digits = load_digits("bundled").train
    some = Digits(digits.images[::10], digits.labels[::10])
    distorted = distort(some, seed=1, elastic=elastic)
    before, after = (part.reshape(len(part), -1).astype(float) for part in (some.images, distorted.images))
    distances = np.linalg.norm(before[:, None] - after[None], axis=-1)
    assert (some.labels[distances.argmin(0)] == some.labels).mean() > share
    assert (np.diag(distances) > 0).all()
    ink = after.sum(1) / before.sum(1)
    least, most = (0.65, 1.5) if elastic else (0.75, 1.3)
    assert least < ink.min() < 0.95 < 1.05 < ink.max() < most  # digits are not cut off, and their sizes differ


def test_elastic_digits_depend_on_seed_and_epoch_and_differ_from_distorted_ones(folder: Path) -> None:
    distorted, elastic = built(folder.parent, "distorted"), built(folder.parent, "elastic")
    straight, first, again = (fresh_epochs(each, seed=3) for each in (distorted, elastic, elastic))
    for epoch in (1, 2):
        np.testing.assert_array_equal(images(first(epoch)), images(again(epoch)))
        np.testing.assert_array_equal(first(epoch).labels, straight(epoch).labels)
        assert (images(first(epoch)) != images(straight(epoch))).any()


@pytest.mark.parametrize("name", [*VARIANTS])
def test_lazy_examples_equal_eager_ones_to_the_byte(name: str) -> None:
    digits, indices = flat_pools().train, [5, 900, 5, 63_001, 12]
    whole = generate(VARIANTS[name], digits, "train", indices)
    lazy = generate(VARIANTS[name], digits, "train", indices, lazy=True)
    assert not isinstance(lazy.inputs, np.ndarray)
    assert len(lazy.inputs) == len(lazy) == 5
    for chosen in ([4, 1], [0, 1, 2, 3, 4], []):
        for ours, theirs in zip(lazy.batch(chosen), whole.batch(chosen), strict=True):
            assert ours.equal(theirs)


def test_a_batch_may_have_no_digits() -> None:
    examples = generate(replace(SMALL, sizes=(0, 1), clutter=0), flat_pools().train, "train", ALL, lazy=True)
    empty = np.flatnonzero(examples.labels[:, 0] < 0)[:1]
    assert len(empty)
    assert not examples.batch(empty).x.any()


def test_other_data_has_no_fresh_images(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,labels\n1,x\n")
    plan = store.Plan(
        {"name": "mine"}, ("a",), {"train": 1}, {"inputs": store.Row("<f4", (2,)), "labels": store.Row("<i8", (1,))}
    )
    store.write(
        tmp_path / "mine",
        plan,
        lambda _: {"inputs": np.zeros((1, 2), np.float32), "labels": np.zeros((1, 1), np.int64)},
        chunk=1,
    )
    for path in (tmp_path / "t.csv", tmp_path / "mine", tmp_path / "nothing", built(tmp_path, "none")):
        assert fresh_epochs(path, seed=0) is None


def test_missing_and_damaged_digits_are_refused_and_missing_ones_are_rebuilt(folder: Path) -> None:
    path = folder / "digits.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"digits\.npy changed since the data set was built: delete the folder"):
        fresh_epochs(folder, seed=0)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"digits\.npy, the digits of new training images, is missing"):
        fresh_epochs(folder, seed=0)
    built(folder.parent)
    content[-1] ^= 1
    assert path.read_bytes() == content
    assert fresh_epochs(folder, seed=0) is not None


def test_data_of_another_generator_is_refused(folder: Path) -> None:
    path = folder / store.MANIFEST
    header = json.loads(path.read_text())
    del header["manifest_sha256"]
    header["source"]["generator"] = 0
    path.write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"built by another version of torchmultiset: build it again"):
        fresh_epochs(folder, seed=0)


def test_sizes_that_the_stored_training_images_do_not_cover_are_refused(folder: Path) -> None:
    few = built(folder / "few", parameters=replace(SMALL, train=1))
    with pytest.raises(ValueError, match=r"would have 1 to 3 digits, but the 1 training images in .* do not cover"):
        fresh_epochs(few, seed=0)
