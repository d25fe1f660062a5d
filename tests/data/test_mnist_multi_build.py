"""Builds of MNIST Multi are reproducible to the byte, and each split has its own digits."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_digits import flat_pools, pixels

from torchmultiset.data import mnist_multi
from torchmultiset.data.digits import Digits, load_digits
from torchmultiset.data.mnist_multi import VARIANTS, MnistMulti, build, generate, stream
from torchmultiset.data.store import load

pytestmark = pytest.mark.slow

SMALL = MnistMulti(sizes=(1, 4), train=60, validation=25, test=30)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_example_depends_on_its_index_alone() -> None:
    digits = load_digits("bundled").train
    together = generate(SMALL, digits, "train", range(40))
    for i in (0, 13, 39):
        alone = generate(replace(SMALL, train=0), digits, "train", [i])
        for name in ("inputs", "labels", "boxes", "areas"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[i])
    mixed = np.array([7, 0, 7, 1 << 40, 39])
    np.testing.assert_array_equal(
        pixels(generate(SMALL, digits, "train", mixed))[[0, 1, 2, 4]], pixels(together)[[7, 0, 7, 39]]
    )


def test_seeds_splits_and_indices_change_the_examples() -> None:
    digits = load_digits("bundled").train
    made = [
        generate(SMALL, digits, "train", range(20)),
        generate(SMALL, digits, "train", range(20, 40)),
        generate(SMALL, digits, "validation", range(20)),
        generate(SMALL, digits, "test", range(20)),
        generate(replace(SMALL, seed=1), digits, "train", range(20)),
    ]
    assert len({image.tobytes() for examples in made for image in pixels(examples)}) == 100


def test_the_bytes_of_a_data_set_never_change() -> None:
    """If this fails, existing data sets can no longer be reproduced: raise GENERATOR, then update the checksums."""
    images = (np.arange(60 * 784, dtype=np.int64) * 2654435761 % 509).clip(0, 255).astype(np.uint8)
    digits = Digits(images.reshape(60, 28, 28), np.arange(60) % 10)
    made = {name: generate(variant, digits, "train", range(50)) for name, variant in VARIANTS.items()}
    made["other"] = generate(MnistMulti((2, 5), (7, 40), 130, 3, 9, (4, 1, 8, 0, 2), False), digits, "test", range(50))
    sums = {
        name: hashlib.sha256(examples.inputs.tobytes() + examples.labels.astype("<i8").tobytes()).hexdigest()[:16]
        for name, examples in made.items()
    }
    assert mnist_multi.GENERATOR == 1
    assert sums == {
        "4": "bb32533671ec8f6d",
        "1-4": "42c66634e29baaa2",
        "10": "5e09ead7401b10f4",
        "other": "1077dafe81a370ad",
    }


def test_a_stream_gives_the_examples_that_a_build_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 images per chunk, so that batches of 6 span several chunks.
    monkeypatch.setattr(mnist_multi, "_CHUNK_PIXELS", 160_000)
    pools = load_digits("bundled")
    stored = build(tmp_path, SMALL, pools)
    for split in ("train", "validation", "test"):
        batches = stream(SMALL, getattr(pools, split), 6, split=split, start=3)
        for first in range(3, len(stored[split]) - 5, 6):
            batch, same = next(batches), stored[split].batch(range(first, first + 6))
            assert all((one == other).all() for one, other in zip(batch, same, strict=True))
    beyond = next(stream(SMALL, pools.train, 2, start=10**12))
    assert beyond.x.shape == (2, 1, 100, 100)


def test_a_build_has_the_same_bytes_for_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = load_digits("bundled")
    build(tmp_path / "one", SMALL, pools)
    monkeypatch.setattr(mnist_multi, "_CHUNK_PIXELS", 40_000)
    build(tmp_path / "two", SMALL, pools, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    for split, examples in load(tmp_path / "two").items():
        made = generate(SMALL, getattr(pools, split), split, range(getattr(SMALL, split)))
        np.testing.assert_array_equal(examples.inputs, made.inputs)
        np.testing.assert_array_equal(examples.labels, made.labels)
        np.testing.assert_array_equal(examples.boxes, made.boxes)
        np.testing.assert_array_equal(examples.areas, made.areas)


SLOW_BUILD = """
import sys, time
from torchmultiset.data import mnist_multi
from torchmultiset.data.digits import load_digits

generate = mnist_multi.generate
def slow(*arguments):
    time.sleep(0.05)
    return generate(*arguments)

mnist_multi.generate = slow
mnist_multi._CHUNK_PIXELS = 200_000
parameters = mnist_multi.MnistMulti(sizes=(1, 4), train=400, validation=25, test=30)
mnist_multi.build(sys.argv[1], parameters, load_digits("bundled"), workers=2)
"""


def test_a_killed_build_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, pools = replace(SMALL, train=400), load_digits("bundled")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    build(whole, parameters, pools)

    process = subprocess.Popen([sys.executable, "-c", SLOW_BUILD, str(killed)])
    journal = killed / "finished.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_text().count("]") >= 5):
        assert process.poll() is None, "the build ended before it could be killed"
        assert time.monotonic() < deadline, "the build did not start"
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL

    with pytest.raises(FileNotFoundError, match="only a part of a data set"):
        load(killed)
    done = journal.read_text().count("]")
    made = []
    original = mnist_multi.generate
    monkeypatch.setattr(mnist_multi, "generate", lambda *given: made.append(given) or original(*given))
    monkeypatch.setattr(mnist_multi, "_CHUNK_PIXELS", 200_000)
    build(killed, parameters, pools)
    # There are 20, 2 and 2 chunks of up to twenty examples, and only unfinished ones are generated.
    assert len(made) == 24 - done
    assert contents(killed) == contents(whole)
    load(killed)


def test_splits_share_no_digits_not_even_in_clutter(tmp_path: Path) -> None:
    splits = build(tmp_path, MnistMulti(train=300, validation=300, test=300), flat_pools())
    for split, first in (("train", 1), ("validation", 101), ("test", 201)):
        assert set(np.unique(splits[split].inputs)) == {0, *range(first, first + 50)}


def test_a_folder_with_other_parameters_or_digits_is_not_changed(tmp_path: Path) -> None:
    build(tmp_path, SMALL, flat_pools())
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"different data set .source.parameters.seed is 0, not 1"):
        build(tmp_path, replace(SMALL, seed=1), flat_pools())
    with pytest.raises(ValueError, match=r"source.digits.name is 'flat', not 'other'"):
        build(tmp_path, SMALL, replace(flat_pools(), name="other"))
    assert contents(tmp_path) == before
    assert len(build(tmp_path, SMALL, flat_pools())["test"]) == 30


def test_test_images_may_have_other_parameters(tmp_path: Path) -> None:
    learned = MnistMulti(sizes=(1, 2), canvas=80, digit_px=(20, 26), train=40, validation=20, test=99)
    tested = replace(learned, sizes=(5, 8), test=30)
    pools = load_digits("bundled")
    made = build(tmp_path / "unlike", learned, pools, tested=tested)
    sizes = {split: (examples.labels >= 0).sum(1) for split, examples in made.items()}
    assert {split: len(each) for split, each in sizes.items()} == {"train": 40, "validation": 20, "test": 30}
    assert set(sizes["train"]) | set(sizes["validation"]) == {1, 2}
    assert set(sizes["test"]) == {5, 6, 7, 8}
    alone = generate(tested, pools.test, "test", range(30))
    np.testing.assert_array_equal(pixels(made["test"]), pixels(alone))
    np.testing.assert_array_equal(made["test"].labels, alone.labels)
    # Shorter label rows are padded.
    narrow = generate(learned, pools.train, "train", range(40))
    np.testing.assert_array_equal(made["train"].labels[:, :2], narrow.labels)
    assert (made["train"].labels[:, 2:] == -1).all()
    assert made["train"].boxes is not None
    assert not made["train"].boxes[:, 2:].any()
    with pytest.raises(ValueError, match="contains a different data set"):
        build(tmp_path / "unlike", learned, pools)
    with pytest.raises(ValueError, match="tested must be of the same canvas and classes"):
        build(tmp_path / "other", learned, pools, tested=replace(tested, canvas=90))
