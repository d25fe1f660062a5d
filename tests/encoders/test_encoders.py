import re

import pytest
import torch

from benchmarks.textbook import PlainTower
from torchmultiset.encoders import ConvEncoder, MLPEncoder


def test_the_default_tower_has_the_shapes_of_the_paper():
    encoder = ConvEncoder()
    assert [tuple(conv.weight.shape) for conv in encoder.convs] == [(10, 1, 5, 5), (10, 10, 5, 5), (32, 10, 5, 5)]
    assert encoder(torch.rand(2, 1, 100, 100)).shape == (2, 32, 9, 9)
    assert encoder.memory_shape(100, 100) == (32, 9, 9)


def test_pooling_before_relu_has_the_same_values_and_gradients_as_after():
    torch.manual_seed(0)
    encoder = ConvEncoder().double()
    plain = PlainTower(encoder)
    x = torch.rand(3, 1, 44, 52, dtype=torch.float64)
    weights = torch.rand(3, 32, 2, 3, dtype=torch.float64)
    ours, theirs = encoder(x), plain(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for a, b in zip(encoder.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)


def test_uint8_images_are_divided_by_255():
    encoder = ConvEncoder()
    pixels = torch.randint(0, 256, (2, 1, 44, 44), dtype=torch.uint8)
    torch.testing.assert_close(encoder(pixels), encoder(pixels.float() / 255))


def test_batch_normalisation_is_an_option():
    torch.manual_seed(0)
    encoder = ConvEncoder(norm="batch")
    x = torch.rand(8, 1, 44, 44)
    assert encoder(x).shape == ConvEncoder()(x).shape
    with torch.no_grad():
        encoder(x + 5)
    assert encoder.norms[0].running_mean.abs().sum() > 0
    assert encoder.convs[0].bias is None


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.rand(2, 3, 100, 100),
            r"x must be .* \(B, 1, H, W\), but is a float32 tensor of shape \(2, 3, 100, 100\)",
        ),
        (torch.rand(2, 100, 100), "x must be"),
        (torch.zeros(2, 1, 100, 100, dtype=torch.int64), "x must be uint8 or floating-point images"),
        (torch.rand(2, 1, 20, 90), r"x must be images of at least 36x36 pixels \(use fewer convolutions"),
    ],
)
def test_images_of_the_wrong_shape_are_refused(x, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        ConvEncoder()(x)


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("channels", [(4,), (4, 4), (4, 4, 4)])
def test_the_reported_size_is_the_smallest_that_can_be_trained(channels, norm):
    encoder = ConvEncoder(1, channels, norm=norm)
    with pytest.raises(ValueError, match="at least") as refused:
        encoder.memory_shape(1, 1)
    least = int(re.search(r"(\d+)x\1 pixels", str(refused.value))[1])
    one = torch.rand(1, 1, least, least)
    assert encoder(one).shape[2:] == ((2, 2) if norm else (1, 1))
    with pytest.raises(ValueError, match="at least" if norm is None else "more than 1 value per channel"):
        encoder(one[..., :-1, :-1])


def test_vectors_are_encoded_as_non_negative_features():
    encoder = MLPEncoder(7, hidden=(5, 3))
    out = encoder(torch.randn(4, 7))
    assert out.shape == (4, 3)
    assert (out >= 0).all()


def test_vectors_of_another_length_are_refused(without_shape_hook):
    with pytest.raises(ValueError, match=r"x must be .*\(any, 7\), but is a float32 tensor of shape \(4, 6\)"):
        MLPEncoder(7)(torch.randn(4, 6))


@pytest.mark.parametrize(("channels", "kernel"), [((4, 4, 4), 5), ((4, 4), 3), ((4,), 5)])
@pytest.mark.parametrize("side", [100, 96, 61])
def test_with_the_missing_cells_each_cell_is_centred_on_its_receptive_field(side, channels, kernel):
    encoder = ConvEncoder(1, channels, kernel=kernel)
    cells = encoder.memory_shape(side, 2 * side)[1]
    _, _, before, after = encoder.missing_cells(side, 2 * side)
    cell = 2 ** len(channels)
    for i in range(cells):
        low, high = i, i + 1  # a range of the map, then of its inputs
        for _ in channels:
            low, high = 2 * low, 2 * high + kernel - 1
        drawn = (before + i + 0.5) * side / (before + cells + after)
        assert drawn == pytest.approx((low + high) / 2, abs=0.6 * cell)
