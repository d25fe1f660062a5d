"""Optional attributes of user-defined encoders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchmultiset import Predictor
from torchmultiset.encoders import ConvEncoder, FinetunedBackbone, PretrainedEncoder
from torchmultiset.encoders.optional import feature_encoder, missing_cells, parameter_groups
from torchmultiset.heads import CellCounts, CountTable
from torchmultiset.training.loop import _groups


class Plain(nn.Module):
    """An encoder of inputs of any shape (B, ...) to a map (B, 4, 2, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).mean(1)[:, None, None, None] * self.scale.view(1, 4, 1, 1).expand(1, 4, 2, 3)


class Middle(Plain):
    def missing_cells(self, height: int, width: int) -> tuple[int, int, int, int]:
        return (1, width // 10, 0, height // 10)


class Slow(Plain):
    def parameter_groups(self, lr: float) -> list[dict]:
        return [{"params": [self.scale], "lr": lr / 10}]


def with_cells(encoder: nn.Module) -> Predictor:
    return Predictor(encoder, CellCounts(2, memory=4), classes="ab", max_size=3)


@pytest.mark.parametrize("shape", [(2, 1, 20, 30), (2, 1, 7), (2, 5)])
def test_by_default_a_map_covers_its_inputs(shape):
    assert with_cells(Plain()).places(torch.rand(shape)).shape == (2, 2, 2, 3)


def test_missing_cells_are_added_as_zeros_around_the_map():
    x = torch.rand(2, 1, 20, 30)
    encoder = Middle()
    predictor = with_cells(encoder)
    places = predictor.places(x)
    assert places.shape == (2, 2, 2 + 2, 1 + 3 + 3)
    assert (places[:, :, :2, 1:4] > 0).all()
    assert places.count_nonzero() == places[:, :, :2, 1:4].numel()
    assert missing_cells(ConvEncoder(), (8, 1, 100, 100)) == ConvEncoder().missing_cells(100, 100)


def test_learning_rates_of_an_encoder_reach_the_optimiser():
    def rates(encoder: nn.Module) -> dict[float, int]:
        groups = _groups(Predictor(encoder, CountTable(2, memory=4, most=3), classes="ab", max_size=3), 0.1, 0.0)
        return {group["lr"]: sum(parameter.numel() for parameter in group["params"]) for group in groups}

    assert [*rates(Plain())] == [0.1]
    assert rates(Slow())[0.01] == 4
    assert parameter_groups(Plain(), 0.1) == []
    encoder = FinetunedBackbone("efficientnet-lite0", trainable="last")
    assert [group["lr"] for group in parameter_groups(encoder, 0.1)] == [0.1 * 0.2, 0.1]


def test_only_encoders_that_declare_it_accept_features():
    class Named(Plain):
        backbone = name = "unrelated"

    assert feature_encoder(Named()) is None
    assert feature_encoder(FinetunedBackbone("efficientnet-lite0")) is None
    encoder = PretrainedEncoder("resnet34", width=8, fingerprint="abc")
    assert feature_encoder(encoder) is encoder
