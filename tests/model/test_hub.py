"""Models on the Hugging Face Hub, without a network: cached downloads, and uploads."""

import shutil
from pathlib import Path

import pytest
import torch

from torchmultiset import Predictor
from torchmultiset.model.hub import push
from torchmultiset.model.shipped import locate

huggingface_hub = pytest.importorskip("huggingface_hub", reason="pip install 'torchmultiset[hub]'")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A cache with one model, and no network."""
    kept = tmp_path / "models--ann--digits"
    shutil.copytree(locate("mnist-multi-4"), kept / "snapshots" / "c0ffee")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_a_cached_model_is_loaded_by_its_address():
    predictor = Predictor.load("hf://ann/digits")
    images = torch.randint(0, 256, (2, 1, 100, 100), dtype=torch.uint8)
    assert predictor.predict(images).equal(Predictor.load("mnist-multi-4").predict(images))
    with pytest.raises(FileNotFoundError, match="hf://ann/cats cannot be downloaded"):
        locate("hf://ann/cats")
    with pytest.raises(ValueError, match="use hf://owner/name"):
        locate("hf://a b/c/d")


def test_push_uploads_the_files_of_a_model(monkeypatch, tmp_path):
    sent = []

    def create_repo(self, name, **more):
        sent.append((name, more))
        return f"https://hub/{name}"

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", lambda self, **more: sent.append(more))
    folder = locate("mnist-multi-4")
    assert push(folder, "ann/digits", private=True) == "https://hub/ann/digits"
    (name, made), upload = sent
    assert (name, made) == ("ann/digits", {"private": True, "exist_ok": True})
    chosen = [path.name for path in folder.iterdir() if any(path.match(p) for p in upload["allow_patterns"])]
    assert sorted(chosen) == sorted(path.name for path in folder.iterdir())
    with pytest.raises(FileNotFoundError, match="no predictor in"):
        push(Path(tmp_path), "ann/digits")
