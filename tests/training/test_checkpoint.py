"""Damaged checkpoints are refused by their checksum."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import task

from torchmultiset.training import fit, local_fabric
from torchmultiset.training.checkpoint import read_checkpoint


@pytest.fixture
def path(tmp_path):
    fit(*task("plain", epochs=1), tmp_path, fabric=local_fabric())
    return tmp_path / "checkpoint.pt"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_flipped_bit_is_detected(path, share):
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged: it does not match its checksum\. Delete"):
        read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 1, 40, 100, 5000])
def test_a_truncated_file_is_refused(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="is damaged"):
        fit(*task("plain", epochs=1), path.parent, fabric=local_fabric(), resume=True)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-500], lambda data: data[:4] + bytes(1000), lambda data: data[:4]]
)
def test_a_damaged_file_without_a_checksum_is_refused(path, damage):
    """Version 0.1 wrote no checksums."""
    torch.save(read_checkpoint(path), path)
    read_checkpoint(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path)


def test_other_content_is_refused(path):
    torch.save({"progress": 1}, path)
    with pytest.raises(ValueError, match="is damaged: it has no adam, predictor, schedule, settings"):
        read_checkpoint(path)
