from __future__ import annotations

import pickle
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchmultiset.data import features as features_module
from torchmultiset.data.examples import Examples
from torchmultiset.data.features import FeatureCache, cache_features
from torchmultiset.encoders.backbone import Backbone
from torchmultiset.oracle import oracle

FILES = {"manifest.json", "features.f16", "index.jsonl", "features.lock"}


class Halves:
    """A backbone that is easy to compute by hand: weighted means of the upper and lower half of each image."""

    name = "halves"

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.batch_sizes: list[int] = []
        """Sizes of the batches so far."""

    def fingerprint(self) -> str:
        return f"weight {self.weight}"

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.batch_sizes.append(len(images))
        return self.weight * nn.functional.adaptive_avg_pool2d(images.float(), (2, 1))


def by_hand(images: np.ndarray, weight: float = 1.0) -> np.ndarray:
    half = images.shape[2] // 2
    rows = [images[:, :, :half].mean((2, 3)), images[:, :, half:].mean((2, 3))]
    return (weight * np.stack(rows, -1)[..., None]).astype(np.float16)


def make_images(count: int, size: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, 3, size, size), dtype=np.uint8)


def names(count: int) -> list[str]:
    return [f"{1000 + i:012d}.jpg" for i in range(count)]


def read(cache: FeatureCache) -> np.ndarray:
    return cache[np.arange(len(cache))]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def filled(tmp_path) -> Path:
    """A folder with the features of ten images."""
    cache_features(Halves(), make_images(10), tmp_path / "cache", keys=names(10), batch_size=4)
    return tmp_path / "cache"


# --- content ---


def test_the_cache_has_the_output_of_the_backbone_in_half_precision(tmp_path):
    images, backbone = make_images(10), Halves()
    cache = cache_features(backbone, images, tmp_path / "a" / "b", keys=names(10), batch_size=4)
    assert len(cache) == 10
    assert cache.shape == (3, 2, 1)
    assert backbone.batch_sizes == [1, 4, 4, 2]  # one image to determine the shape, then batches
    chosen = cache[np.array([7, 0, 7])]
    assert chosen.dtype == np.float16
    np.testing.assert_allclose(chosen, by_hand(images)[[7, 0, 7]], rtol=1e-3)
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == FILES
    assert (tmp_path / "a" / "b" / "features.f16").stat().st_size == 10 * 3 * 2 * 2


def test_the_cache_replaces_the_inputs_of_examples(filled):
    examples = Examples(make_images(10), np.arange(10)[:, None] % 2, ("cat", "dog"), ids=names(10))
    cached = replace(examples, inputs=cache_features(Halves(), examples.inputs, filled, keys=examples.ids))
    batch = cached.subset([3, 4, 5]).batch([2, 0])
    np.testing.assert_allclose(batch.x.numpy(), by_hand(make_images(10))[[5, 3]], rtol=1e-3)
    assert batch.target.tolist() == [[0, 1], [0, 1]]


def test_existing_results_are_not_computed_again(filled):
    before, backbone = snapshot(filled), Halves()
    (filled / "features.lock").unlink()
    cache = cache_features(backbone, make_images(10), filled, keys=names(10))
    np.testing.assert_allclose(read(cache), by_hand(make_images(10)), rtol=1e-3)
    assert backbone.batch_sizes == []
    before.pop("features.lock")
    assert snapshot(filled) == before  # nothing was written, so the folder may be read-only


def test_images_are_identified_by_keys_and_only_new_ones_are_computed(filled):
    images, backbone = make_images(14), Halves()
    images[:10] = make_images(10)
    order = np.array([13, 2, 11, 9])
    cache = cache_features(backbone, images[order], filled, keys=[names(14)[i] for i in order])
    assert sum(backbone.batch_sizes) == 2
    np.testing.assert_allclose(read(cache), by_hand(images[order]), rtol=1e-3)


def test_a_pickled_cache_refers_to_its_folder(filled):
    cache = cache_features(Halves(), make_images(10), filled, keys=names(10))
    sent = pickle.dumps(cache)
    np.testing.assert_array_equal(read(pickle.loads(sent)), read(cache))
    assert filled.name.encode() in sent


def test_the_progress_bar_is_shown_only_if_requested(tmp_path, capsys):
    for progress in (False, True):
        folder = tmp_path / str(progress)
        cache_features(Halves(), make_images(10), folder, keys=names(10), progress=progress)
        shown = capsys.readouterr().err
        assert ("halves features, 0.0 MB" in shown) == progress
        assert ("10/10" in shown) == progress


# --- training ---


def losses_of_an_epoch(examples: Examples, encode: nn.Module | None) -> list[float]:
    """Train a linear head on the class proportions of each multiset; return the losses."""
    torch.manual_seed(0)
    head = nn.Linear(16 * 3 * 3, len(examples.classes))
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for indices in np.random.default_rng(0).permutation(len(examples)).reshape(-1, 8):
        batch = examples.batch(indices)
        memory = encode(batch.x) if encode else batch.x.float()
        logits = head(memory.flatten(1))
        loss = -(oracle(batch.target) * logits.log_softmax(-1)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_an_epoch_with_the_cache_has_the_same_losses_as_without(tmp_path):
    torch.manual_seed(1)
    trunk = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=3), nn.ReLU()
    )
    backbone = Backbone(trunk, name="small", channels=16, mean=(0.5,) * 3, std=(0.05,) * 3)
    labels = np.random.default_rng(2).integers(5, size=(96, 1)).repeat(3, axis=1)
    labels[::2, 1] = (labels[::2, 1] + 1) % 5  # {a, a, a}, {a, b, a}
    pixels = make_images(96, size=30) // 2
    pixels += (labels[:, 0] * 25).astype(np.uint8)[:, None, None, None]  # a signal to learn
    plain = Examples(pixels, labels, tuple("abcde"))
    cache = cache_features(backbone, plain.inputs, tmp_path, keys=names(96), batch_size=10)
    cached = losses_of_an_epoch(replace(plain, inputs=cache), None)
    expected = losses_of_an_epoch(plain, backbone)
    np.testing.assert_allclose(cached, expected, rtol=2e-3)
    assert np.mean(expected[-4:]) < 0.95 * np.mean(expected[:4])  # the loss falls
    shifted = replace(plain, inputs=replace(cache, rows=np.roll(cache.rows, 1)))
    assert not np.allclose(losses_of_an_epoch(shifted, None), expected, rtol=2e-2)


# --- interrupted ---


@pytest.mark.parametrize(
    ("rows", "line"), [(b"\x00" * 30, b""), (b"\x01" * 12, b'["000000001010.jpg", "ab'), (b"", b'["')]
)
def test_partial_rows_after_a_kill_are_removed(filled, rows, line):
    for name, rest in [("features.f16", rows), ("index.jsonl", line)]:
        with (filled / name).open("ab") as file:
            file.write(rest)
    images = np.concatenate([make_images(10), make_images(3, seed=1)])
    np.testing.assert_allclose(
        read(cache_features(Halves(), images[:10], filled, keys=names(10))), by_hand(images[:10]), rtol=1e-3
    )
    cache = cache_features(Halves(), images, filled, keys=names(13))
    np.testing.assert_allclose(read(cache), by_hand(images), rtol=1e-3)
    assert (filled / "features.f16").stat().st_size == 13 * 12
    assert (filled / "index.jsonl").read_text().count("\n") == 13


def test_after_an_unreadable_image_the_finished_batches_are_kept(tmp_path):
    class Broken:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, indices: np.ndarray) -> np.ndarray:
            if 6 in indices:
                raise OSError("image 6 is not an image")
            return make_images(10)[indices]

    with pytest.raises(OSError, match="image 6"):
        cache_features(Halves(), Broken(), tmp_path, keys=names(10), batch_size=2)
    backbone = Halves()
    cache = cache_features(backbone, make_images(10), tmp_path, keys=names(10), batch_size=2)
    assert backbone.batch_sizes == [2, 2]
    np.testing.assert_allclose(read(cache), by_hand(make_images(10)), rtol=1e-3)


# --- refused ---


@pytest.mark.parametrize(
    ("backbone", "images", "message"),
    [
        (Halves(2.0), make_images(10), r"weights weight 1\.0, not weight 2\.0"),
        (Halves(), make_images(10, size=16), r"image \['uint8', 3, 8, 8\], not \['uint8', 3, 16, 16\]"),
        (Halves(), make_images(10)[:, :1], r"image \['uint8', 3, 8, 8\], not \['uint8', 1, 8, 8\]"),
        (Halves(), make_images(10) / np.float32(255), r"not \['float32', 3, 8, 8\]"),
        (Halves(), make_images(10, seed=1), r"different images: the pixels of '000000001000\.jpg' have changed"),
        (Halves(), np.roll(make_images(10), 1, axis=0), "different images"),
    ],
    ids=["weights", "size", "channels", "dtype", "pixels", "order"],
)
def test_features_of_other_inputs_are_refused_with_the_difference(filled, backbone, images, message):
    before = snapshot(filled)
    with pytest.raises(ValueError, match=message) as caught:
        cache_features(backbone, images, filled, keys=names(10))
    assert "Use another folder, or delete this one" in str(caught.value)
    assert snapshot(filled) == before
    assert backbone.batch_sizes == []


def test_recheck_sets_the_number_of_compared_images(filled):
    changed = make_images(10)
    changed[5, 0, 0, 0] += 1
    cache_features(Halves(), changed, filled, keys=names(10), recheck=0)
    cache_features(Halves(), changed, filled, keys=names(10), recheck=2)  # the first and the last
    with pytest.raises(ValueError, match=r"000000001005\.jpg"):
        cache_features(Halves(), changed, filled, keys=names(10), recheck=10, batch_size=3)


def damage_rows(folder: Path) -> None:
    path = folder / "features.f16"
    path.write_bytes(path.read_bytes()[:-1])


def damage_one_row(folder: Path) -> None:
    with (folder / "features.f16").open("r+b") as file:
        file.seek(4 * 12)
        file.write(b"\xff")


def damage_index(folder: Path) -> None:
    path = folder / "index.jsonl"
    path.write_text(path.read_text().replace('["000000001002', "[000000001002"))


def repeat_line(folder: Path) -> None:
    path = folder / "index.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[3]]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_rows, "features.f16 has 119 bytes, too few for 10 images"),
        (damage_one_row, r"the features of '000000001004\.jpg' do not match their checksum"),
        (damage_index, r"line 3 of index\.jsonl cannot be read"),
        (repeat_line, r"line 11 of index\.jsonl repeats the key '000000001003\.jpg'"),
        (lambda folder: (folder / "features.f16").unlink(), "features.f16 has 0 bytes"),
        (lambda folder: (folder / "manifest.json").write_text("{"), r"manifest\.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), r"manifest\.json cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json is missing"),
    ],
)
def test_a_damaged_folder_is_refused(filled, damage, message):
    damage(filled)
    before = snapshot(filled)
    with pytest.raises(ValueError, match=message) as caught:
        cache_features(Halves(), make_images(10), filled, keys=names(10))
    assert "Delete the folder to recompute them" in str(caught.value)
    assert snapshot(filled) == before


def test_free_space_is_checked_before_anything_is_written(tmp_path, filled, monkeypatch):
    usage = namedtuple("usage", "total used free")
    images = np.zeros((1000, 3, 8, 8), dtype=np.uint8)
    images[:10] = make_images(10)

    class Wide(Halves):
        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            return super().__call__(images).repeat(1, 512, 10, 10)  # 307,200 numbers

    need = 1000 * (307_200 * 2 + 200)
    backbone = Wide()
    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda _: usage(10**12, 0, need - 1))
    with pytest.raises(OSError, match=r"1,000 images need 0\.6 GB, but only 0\.6 GB are free") as caught:
        cache_features(backbone, images, tmp_path / "new", keys=names(1000))
    assert str(tmp_path / "new") in str(caught.value)
    assert backbone.batch_sizes == [1]
    assert {file.name for file in (tmp_path / "new").iterdir()} <= {"features.lock"}
    # Only missing features need space.
    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda _: usage(10**12, 0, 500))
    cache_features(Halves(), images[:12], filled, keys=names(12))
    with pytest.raises(OSError, match="of 3 images"):
        cache_features(Halves(), images[:15], filled, keys=names(15))


@pytest.mark.parametrize(
    ("count", "keys", "message"),
    [
        (0, [], "inputs must be at least one image"),
        (3, ["a", "b"], "each of the 3 inputs, but has 2"),
        (3, ["a", "b", "a"], "'a' occurs 2 times"),
    ],
)
def test_keys_that_do_not_match_the_images_are_refused(tmp_path, count, keys, message):
    with pytest.raises(ValueError, match=message):
        cache_features(Halves(), make_images(count), tmp_path / "cache", keys=keys)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("argument", "value"), [("batch_size", 0), ("recheck", -1)])
def test_invalid_numbers_are_refused(tmp_path, argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be at least"):
        cache_features(Halves(), make_images(2), tmp_path, keys=names(2), **{argument: value})


def test_features_beyond_half_precision_are_refused_with_the_key(tmp_path):
    images = make_images(4)
    images[2] = 255
    with pytest.raises(ValueError, match=r"'000000001002\.jpg' do not fit into float16"):
        cache_features(Halves(400.0), images, tmp_path, keys=names(4))


def test_images_of_different_sizes_are_refused(tmp_path):
    class Mixed:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, indices: np.ndarray) -> np.ndarray:
            return make_images(len(indices), size=8 if indices[0] < 2 else 10)

    with pytest.raises(ValueError, match=r"\['uint8', 3, 8, 8\], like the first, but some are \['uint8', 3, 10"):
        cache_features(Halves(), Mixed(), tmp_path, keys=names(4), batch_size=2)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_damaged_row_is_detected_when_it_is_read(tmp_path):
    """Checksums cover the rows that are not rechecked when the folder is opened."""
    images = np.arange(5 * 3 * 16, dtype=np.float32).reshape(5, 3, 4, 4)
    keys = [*"abcde"]
    cache_features(Halves(), images, tmp_path, keys=keys)
    flip(tmp_path / "features.f16", 3 * (tmp_path / "features.f16").stat().st_size // 5)  # row 3
    cache = cache_features(Halves(), images, tmp_path, keys=keys, recheck=0)
    assert len(cache[np.array([0, 1, 2, 4])]) == 4
    with pytest.raises(ValueError, match=r"row 3 of features\.f16 does not match its checksum\. Delete the folder"):
        cache[np.array([2, 3])]


@pytest.mark.parametrize("position", [2, 20])
def test_a_damaged_line_of_the_index_is_detected(tmp_path, position):
    images = np.arange(2 * 3 * 16, dtype=np.float32).reshape(2, 3, 4, 4)
    cache_features(Halves(), images, tmp_path, keys=["a", "b"])
    flip(tmp_path / "index.jsonl", position)  # the key, or a digest
    with pytest.raises(ValueError, match=r"line 1 of index\.jsonl cannot be read"):
        cache_features(Halves(), images, tmp_path, keys=["a", "b"], recheck=0)


def test_an_odd_number_of_bytes_left_by_a_kill_is_ignored(tmp_path):
    images = np.arange(2 * 3 * 16, dtype=np.float32).reshape(2, 3, 4, 4)
    before = cache_features(Halves(), images, tmp_path, keys=["a", "b"])[np.arange(2)]
    with (tmp_path / "features.f16").open("ab") as file:
        file.write(b"\x01")
    assert (cache_features(Halves(), images, tmp_path, keys=["a", "b"])[np.arange(2)] == before).all()


def test_a_file_replaced_by_a_shorter_one_is_detected(tmp_path):
    """This happens if the file is deleted while another process appends to it."""
    images = np.arange(5 * 3 * 16, dtype=np.float32).reshape(5, 3, 4, 4)
    cache = cache_features(Halves(), images, tmp_path, keys=[*"abcde"])
    content = (tmp_path / "features.f16").read_bytes()
    (tmp_path / "features.f16").write_bytes(content[: len(content) // 5 * 2])
    with pytest.raises(ValueError, match=r"features\.f16 has 2 rows, but row 4 is needed\. Delete the folder"):
        cache[np.array([0, 4])]
    (tmp_path / "features.f16").unlink()
    with pytest.raises(FileNotFoundError, match=r"features\.f16"):
        cache[np.array([0])]
