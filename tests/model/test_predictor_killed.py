"""After a killed or failed save, and during a save, a folder has the old predictor or the new one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import LSTMPolicy

pytestmark = pytest.mark.slow


def make(seed: int) -> Predictor:
    torch.manual_seed(seed)
    return Predictor(MLPEncoder(7, (16,)), LSTMPolicy(3, 16, hidden=8), ("a", "b", "c"), max_size=4)


def which(folder: Path) -> int:
    """Seed of the predictor in a folder, whose weights are checked."""
    loaded = Predictor.load(folder)
    seed = loaded.record["seed"]
    expected = make(seed).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    return seed


def save(seed: int, folder: Path) -> None:
    make(seed).save(folder, record={"seed": seed})


def kill_at_every_moment(folder: Path, *, before: bool) -> None:
    """Kill a process just before each file operation of a save; the last process is not killed."""
    predictor = make(1)
    for last in count():
        place = folder / str(last)
        place.mkdir(parents=True)
        if before:
            save(0, place)
        child = os.fork()
        if not child:
            try:
                save_until_killed(predictor, place, last)
                os._exit(0)
            finally:
                os._exit(1)
        exitcode = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if exitcode != -signal.SIGKILL:
            assert exitcode == 0
            return


def save_until_killed(predictor: Predictor, folder: Path, last: int) -> None:
    """Save, but be killed before file operation number `last`; a file being written is truncated to half."""
    moments, fsync = count(), os.fsync

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        operations = ("open", "os.rename", "os.remove", "os.listdir", "os.scandir")
        if event in operations and str(folder) in str(arguments[0]) and next(moments) == last:
            die()

    def tear(descriptor: int) -> None:
        if next(moments) == last:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        fsync(descriptor)

    os.fsync = tear
    sys.addaudithook(hook)
    predictor.save(folder, record={"seed": 1})


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A process that has done all kills, and saves in a loop after a line of input; it imports PyTorch once."""
    folder = tmp_path_factory.mktemp("saves")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, __file__, str(folder)], **pipes, env=alone) as process:
        assert process.stdout.readline() == "killed\n"
        yield folder, process
        process.kill()


def work(folder: Path) -> None:
    kill_at_every_moment(folder / "write", before=False)
    kill_at_every_moment(folder / "replace", before=True)
    print("killed", flush=True)
    sys.stdin.readline()
    save(0, folder / "saves")
    print("saving", flush=True)
    for i in count(1):
        save(i % 2, folder / "saves")


@pytest.mark.parametrize("before", [True, False])
def test_a_save_killed_at_any_moment_leaves_a_valid_folder(worker, before):
    places = sorted((worker[0] / ("replace" if before else "write")).iterdir(), key=lambda path: int(path.name))
    assert len(places) > 7, "two files are opened, written and moved, and the folder is cleaned up"
    found = []
    for place in places:
        left = {path.name for path in place.iterdir()}
        if before or "predictor.json" in left:
            found.append(which(place))
        else:
            found.append(0)
            with pytest.raises(FileNotFoundError, match="there is no predictor in"):
                Predictor.load(place)
        save(1, place)  # the next save removes leftovers
        names = {path.name for path in place.iterdir()}
        assert len(names) == 2
    assert left == names, "the last save was killed"
    assert found == sorted(found)
    assert set(found) == {0, 1}


def test_a_folder_can_be_loaded_while_another_process_saves(worker):
    folder, process = worker
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "saving\n"
    assert {which(folder / "saves") for _ in range(60)} <= {0, 1}
    process.kill()
    process.wait()
    assert which(folder / "saves") in (0, 1)


def test_a_predictor_replaced_while_it_is_loaded_is_the_new_one(tmp_path, monkeypatch):
    save(0, tmp_path)
    read, replaced = Path.read_bytes, []

    def slow_read(path: Path) -> bytes:
        if not replaced:
            replaced.append(path)
            save(1, tmp_path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", slow_read)
    assert which(tmp_path) == 1
    assert not replaced[0].exists()


@pytest.mark.parametrize("last", range(2))
@pytest.mark.parametrize("what", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_predictor_and_no_partial_file(tmp_path, monkeypatch, what, last):
    save(0, tmp_path)
    owner = os if what == "fsync" else Path
    whole, calls = getattr(owner, what), count()

    def full(*args: object) -> object:
        if next(calls) == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(*args)

    monkeypatch.setattr(owner, what, full)
    with pytest.raises(OSError, match="No space left"):
        save(1, tmp_path)
    monkeypatch.undo()
    assert which(tmp_path) == 0
    assert not list(tmp_path.glob("*.partial"))
    save(1, tmp_path)
    assert which(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_of_the_user_are_not_changed(tmp_path):
    own = ["notes.txt", "weights.safetensors", "weights-old.safetensors", "predictor.json.bak", "x.partial"]
    for name in own:
        (tmp_path / name).write_text("mine")
    save(0, tmp_path)
    save(1, tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in own)
    assert len(list(tmp_path.iterdir())) == len(own) + 2


if __name__ == "__main__":
    work(Path(sys.argv[1]))
