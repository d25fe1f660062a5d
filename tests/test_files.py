"""Atomic writes, and locks of folders."""

from __future__ import annotations

import errno
import shutil

import pytest

from torchmultiset._files import locked, write_whole


@pytest.mark.parametrize(
    ("content", "written"),
    [("naïve\n", "naïve\n".encode()), (b"\x00\xff", b"\x00\xff"), (lambda file: file.write(b"by hand"), b"by hand")],
)
def test_a_file_is_replaced_and_its_folder_is_created(content, written, tmp_path):
    path = tmp_path / "new folder" / "file.txt"
    write_whole(path, "old")
    write_whole(path, content)
    assert path.read_bytes() == written
    assert [*path.parent.iterdir()] == [path]


def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "file.txt"
    write_whole(path, "old")

    def half(file):
        file.write(b"ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_one_process_works_in_a_folder_at_a_time(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(
            OSError, match=r"another process is writing to .*run: wait until it has ended, or choose another"
        ),
        locked(tmp_path / "run"),
    ):
        pass
    assert list((tmp_path / "run").iterdir()) == []
    with locked(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")  # the folder may be deleted in the meantime
