"""`multiset train` with a backbone from an ONNX file of the user."""

from __future__ import annotations

import warnings

import pytest
import torch
from PIL import Image
from torch import nn
from workers_here import workers_here

from torchmultiset.export import to_onnx
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.standings import read_standings

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

TABLE = Candidate("table", {"objective": "counts", "count_head": "table", "epochs": 5, "lr": 0.01}, "counts")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of images whose colour is their class, with a network of one convolution of blocks."""
    folder = tmp_path_factory.mktemp("onnx")
    lines = ["image,labels"]
    for i in range(20):
        Image.new("RGB", (150, 150), [(200, 30, 30), (30, 30, 200)][i % 2]).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{['cat:2', 'dog:1'][i % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines))
    torch.manual_seed(0)
    blocks = nn.Conv2d(3, 6, 32, stride=32).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of the exporter
        sizes = {"x": [0, 2, 3]}
        example = (torch.zeros(2, 3, 64, 64),)
        torch.onnx.export(
            blocks, example, str(folder / "blocks.onnx"), input_names=["x"], dynamic_axes=sizes, dynamo=False
        )
    return folder


@pytest.fixture
def config(place, monkeypatch):
    monkeypatch.chdir(place)
    return RunConfig(DataConfig("labels.csv", backbone="blocks.onnx"))


@pytest.mark.slow
def test_candidates_are_compared_on_the_map_of_an_onnx_file(config, tmp_path, monkeypatch):
    with workers_here():
        result, standings = train_portfolio(config, tmp_path / "run", only=[TABLE])
    assert result.record["finished"]
    assert "table" in {one.name for one in standings}
    assert read_standings(tmp_path / "run") == standings
    model = Predictor.load(tmp_path / "run")
    assert model.predict("0.png").total() in (1, 2)
    with pytest.raises(ValueError, match="encoder must be one with a backbone of this package"):
        to_onnx(model)
    monkeypatch.chdir(tmp_path)
    image = Image.new("RGB", (150, 150))
    with pytest.raises(FileNotFoundError, match=r"no ONNX file at blocks.onnx: .* relative to the current folder"):
        Predictor.load(tmp_path / "run").predict(image)


def test_an_onnx_file_is_not_fine_tuned(config, tmp_path):
    data = DataConfig(config.data.data, backbone="blocks.onnx", finetune="most")
    with pytest.raises(ValueError, match=r"blocks.onnx cannot be fine-tuned, .* remove --finetune"):
        train_portfolio(RunConfig(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
