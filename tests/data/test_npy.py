"""Errors about damaged NumPy files have the file and a remedy, whatever exception NumPy raises."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from made_records import place, write_record

from paper.records import read_runs
from torchmultiset.data._arrays import read_array
from torchmultiset.data._npy import open_rows, readable
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.inputs import explain, open_inputs
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import FeedForwardPolicy

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)
LIKELY = b"()[]{}<>'\"\\,.:|0123456789eLOUVMmfiu#\n\r\t \0\xff-+*"
HEADERS = {
    "an open bracket": b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4",
    "an open string": b"{'descr': '<f4",
    "no Python": b"{'descr': 3 4}",
    "no dictionary": b"12",
    "a key too few": b"{'descr': '<f4'}",
    "no text": b"\xff\xfe\xfd",
    "a zero byte": b"\0",
    "no type": b"{'descr': '<q9', 'fortran_order': False, 'shape': (3, 4), }",
    "an object": b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }",
    "a negative length": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 4), }",
    "a length that no memory has": b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 99999999999999), }",
    "a length beyond 64 bits": b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 99999999999999999999999), }",
    "lengths that overflow to 12": b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4, 4611686018427387905), }",
    "a text for a shape": b"{'descr': '<f4', 'fortran_order': False, 'shape': '34', }",
    "many brackets": b"(" * 3000,
    "many signs": b"-" * 9000,
}


@cache
def model() -> Predictor:
    """A model with four numbers as input."""
    predictor = Predictor(MLPEncoder(4, (4,)), FeedForwardPolicy(2, 4), ("a", "b"), max_size=1, stop="fixed").eval()
    predictor.record = {"input": {"shape": [4], "dtype": "float32", "exif": False}}
    return predictor


def predict(path: Path) -> None:
    for _ in explain(model(), open_inputs(model(), [str(path)])):
        pass


READERS: dict[str, Callable[[Path], object]] = {
    "predict": predict,
    "table": read_array,
    "store": lambda path: open_rows(path, ARRAY.dtype, ARRAY.shape, mapped=True),
    "store in memory": lambda path: open_rows(path, ARRAY.dtype, ARRAY.shape, mapped=False),
}


def with_header(header: bytes, *, version: int = 1) -> bytes:
    """The content of an .npy file with this header."""
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + ARRAY.tobytes()


def damaged(content: bytes, chance: random.Random, start: int, end: int) -> bytes:
    """The content with one to four bytes between `start` and `end` changed, removed or inserted."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(start, end)
        byte = chance.choice(LIKELY) if chance.random() < 0.7 else chance.randrange(256)
        changed[at : at + chance.randint(0, 1)] = bytes([byte] * chance.randint(0, 1))
    return bytes(changed)


def message_of(read: Callable[[Path], object], path: Path) -> str | None:
    """The message of a ValueError or OSError, None without an error; other exceptions propagate."""
    try:
        read(path)
    except (ValueError, OSError) as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore")  # tests turn warnings into errors, which would stop NumPy early
def test_any_damage_to_a_header_is_reported_with_the_file(reader, tmp_path):
    path, chance, errors = tmp_path / "numbers.npy", random.Random(0), 0
    np.save(path, ARRAY)
    whole = path.read_bytes()
    assert message_of(READERS[reader], path) is None
    for _ in range(500):
        path.write_bytes(damaged(whole, chance, 0, len(whole) - ARRAY.nbytes))
        message = message_of(READERS[reader], path)
        errors += message is not None
        assert message is None or str(path) in message, message
    assert errors > 250


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.filterwarnings("ignore")
def test_an_invalid_header_is_reported_with_a_remedy(reader, header, tmp_path):
    path = tmp_path / "numbers.npy"
    for version in (1, 2, 3):
        path.write_bytes(with_header(HEADERS[header], version=version))
        message = message_of(READERS[reader], path)
        assert message is not None
        assert message.startswith(f"{path} is damaged or not a NumPy file (")
        assert ": delete the folder and build" in message if "store" in reader else ": save it again with" in message
        assert "\n" not in message
        assert len(message) < len(str(path)) + 300


@pytest.mark.parametrize("reader", READERS)
def test_archives_and_empty_files_are_refused_as_arrays(reader, tmp_path):
    path = tmp_path / "numbers.npy"
    with path.open("wb") as file:
        np.savez(file, x=ARRAY)
    assert str(path) in (message_of(READERS[reader], path) or "")
    path.write_bytes(b"")
    assert str(path) in (message_of(READERS[reader], path) or "")


@pytest.mark.parametrize("dtype", ["datetime64[s]", "complex64", "U3"])
def test_inputs_to_predict_must_be_numbers(tmp_path, dtype):
    path = tmp_path / "numbers.npy"
    np.save(path, np.zeros((2, 4), dtype))
    with pytest.raises(ValueError, match=r"numbers\.npy must contain an array of numbers, but contains"):
        predict(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_any_damage_to_an_archive_of_inputs_is_reported_with_the_file(tmp_path):
    tables = place("table-3", "L_multi", (0, 0), {"em": 0.95, "f1": 0.987})
    path = write_record(tmp_path, "digits/multi/seed-0", tables, [True, False]).with_name("predictions.npz")
    (run,) = read_runs(tmp_path)
    arrays = dict(np.load(path))
    np.savez(path, **arrays)  # uncompressed, so that damage reaches the headers
    whole, chance, errors = path.read_bytes(), random.Random(0), 0
    assert run.predictions("test")[0].shape == arrays["test_predicted"].shape
    for _ in range(500):
        path.write_bytes(damaged(whole, chance, 0, len(whole)))
        message = message_of(lambda _: run.predictions("test"), path)
        errors += message is not None
        assert message is None or (str(path) in message and "run the cell again with: " in message), message
    assert errors > 250


def test_an_error_of_the_file_system_keeps_its_type_and_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), readable(tmp_path / "file", "mend it"):
        (tmp_path / "nowhere").read_bytes()
    with (
        pytest.raises(ValueError, match=r"file is damaged or .* \(OSError\): mend it"),
        readable(tmp_path / "file", "mend it"),
    ):
        raise OSError
