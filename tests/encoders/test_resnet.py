from __future__ import annotations

import hashlib
import http.server
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchmultiset.encoders import resnet
from torchmultiset.encoders.backbone import load_weights
from torchmultiset.encoders.resnet import ResNet34, resnet34


def resnet34_table() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of the 34-layer network of table 1 of He et al."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, wide: int, deep: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (wide, deep, kernel, kernel)
        shapes.update({f"{norm}.{what}": (wide,) for what in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    convolution("conv1", "bn1", 64, 3, 7)
    deep = 64
    for layer, blocks in {1: 3, 2: 4, 3: 6, 4: 3}.items():
        wide = 64 * 2 ** (layer - 1)
        for block in range(blocks):
            at = f"layer{layer}.{block}"
            convolution(f"{at}.conv1", f"{at}.bn1", wide, deep, 3)
            convolution(f"{at}.conv2", f"{at}.bn2", wide, wide, 3)
            if deep != wide:
                convolution(f"{at}.downsample.0", f"{at}.downsample.1", wide, deep, 1)
            deep = wide
    return shapes


def resnet34_by_hand(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The network as functions of a state dict."""

    def convolution(name: str, norm: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        weight = weights[f"{name}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + 1e-5).sqrt()
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    x = F.max_pool2d(F.relu(convolution("conv1", "bn1", x, stride=2)), 3, 2, 1)
    for layer, blocks in {1: 3, 2: 4, 3: 6, 4: 3}.items():
        for block in range(blocks):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = F.relu(convolution(f"{at}.conv1", f"{at}.bn1", x, stride))
            y = convolution(f"{at}.conv2", f"{at}.bn2", y)
            if stride == 2:
                x = convolution(f"{at}.downsample.0", f"{at}.downsample.1", x, stride)
            x = F.relu(x + y)
    return x


@pytest.fixture(scope="module")
def checkpoint() -> dict[str, torch.Tensor]:
    """Random weights in the format of the standard checkpoint, classifier included."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in {**resnet34_table(), "fc.weight": (1000, 512), "fc.bias": (1000,)}.items():
        if name.endswith("num_batches_tracked"):
            weights[name] = torch.tensor(0)
        elif len(shape) == 4:
            weights[name] = torch.randn(shape, generator=generator) / (shape[1] * shape[2] * shape[3]) ** 0.5
        elif name.endswith("running_var") or ".weight" in name:
            weights[name] = torch.rand(shape, generator=generator) + 0.5
        else:
            weights[name] = torch.randn(shape, generator=generator) * 0.1
    return weights


@pytest.fixture(scope="module")
def checkpoint_file(checkpoint, tmp_path_factory) -> Path:
    """The checkpoint as a file whose name has the start of its hash, like the standard one."""
    path = tmp_path_factory.mktemp("checkpoint") / "resnet34.pth"
    torch.save(checkpoint, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path.rename(path.with_name(f"resnet34-{digest[:8]}.pth"))


def test_resnet34_has_the_keys_and_shapes_of_the_standard_checkpoint():
    found = {name: tuple(value.shape) for name, value in ResNet34().state_dict().items()}
    assert found == resnet34_table()
    assert list(found) == list(resnet34_table())  # in the same order
    assert len(found) == 216  # 218 with fc.weight and fc.bias
    assert "layer3.0.downsample.0.weight" in found
    assert sum(parameter.numel() for parameter in ResNet34().parameters()) == 21_284_672


def test_resnet34_maps_600_pixels_to_19_cells():
    backbone = resnet34(weights=None)
    features = backbone(torch.zeros(1, 3, 600, 600, dtype=torch.uint8))
    assert features.shape == (1, backbone.channels, 19, 19) == (1, 512, 19, 19)


@pytest.mark.slow
def test_resnet34_equals_the_network_of_he_et_al(checkpoint, checkpoint_file):
    images = torch.randint(256, (2, 3, 96, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (images / 255 - mean[:, None, None]) / std[:, None, None]
    expected = resnet34_by_hand(checkpoint, normalised)
    assert expected.std() > 0.1  # the signal does not vanish
    torch.testing.assert_close(resnet34(checkpoint_file)(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_resnet34_loads_the_older_format(checkpoint, checkpoint_file, tmp_path):
    """The format of 2016 has another container, parameters instead of tensors, and no count of batches."""
    old = {
        name: value if "running" in name else nn.Parameter(value)
        for name, value in checkpoint.items()
        if not name.endswith("num_batches_tracked")
    }
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert resnet34(tmp_path / "old.pth").fingerprint() == resnet34(checkpoint_file).fingerprint()


def test_a_long_list_of_missing_keys_is_shortened(tmp_path):
    torch.save({}, tmp_path / "empty.pth")
    with pytest.raises(ValueError, match=r"missing: bn1\.bias, .* and 172 more$"):  # 216 - 36 - 8
        load_weights(ResNet34(), tmp_path / "empty.pth", ignore="fc.")


@pytest.fixture
def hub(tmp_path, monkeypatch, checkpoint_file):
    """A server on the loopback interface with the checkpoint, and an empty download folder."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/missing-00000000.pth":
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            with checkpoint_file.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path / "torch" / "hub" / "checkpoints"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_standard_checkpoint_is_downloaded_once_and_checked_each_time(hub, monkeypatch, checkpoint_file):
    address, folder = hub
    assert resnet.CHECKPOINT == "https://download.pytorch.org/models/resnet34-b627a593.pth"
    monkeypatch.setattr(resnet, "CHECKPOINT", f"{address}/{checkpoint_file.name}")
    expected = resnet34(checkpoint_file).fingerprint()
    assert resnet34("imagenet").fingerprint() == expected
    assert [file.name for file in folder.iterdir()] == [checkpoint_file.name]
    monkeypatch.setattr(resnet, "CHECKPOINT", f"http://127.0.0.1:1/{checkpoint_file.name}")  # no server
    assert resnet34("imagenet").fingerprint() == expected
    with (folder / checkpoint_file.name).open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"rot")
    with pytest.raises(ValueError, match="is damaged"):
        resnet34("imagenet")


def test_a_download_with_wrong_bytes_is_deleted(hub, monkeypatch):
    address, folder = hub
    monkeypatch.setattr(resnet, "CHECKPOINT", f"{address}/resnet34-b627a593.pth")
    with pytest.raises(ValueError, match=r'download of .* is damaged.*expected "b627a593"'):
        resnet34("imagenet")
    assert list(folder.iterdir()) == []


def test_a_failed_download_is_reported_with_a_remedy(hub, monkeypatch):
    address, folder = hub
    monkeypatch.setattr(resnet, "CHECKPOINT", f"{address}/missing-00000000.pth")
    with pytest.raises(ConnectionError, match=r"404.*save it as .*checkpoints"):
        resnet34("imagenet")
    monkeypatch.setattr(resnet, "CHECKPOINT", "http://127.0.0.1:1/resnet34-b627a593.pth")
    with pytest.raises(ConnectionError, match="could not download"):
        resnet34("imagenet")
    assert list(folder.iterdir()) == []
