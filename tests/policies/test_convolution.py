"""Convolutions by Winograd's algorithm equal `conv2d`: values, gradients, rounding, and where they step aside."""

import pytest
import torch
from torch.nn.functional import conv2d

from torchmultiset.policies._convolution import Direct, Winograd, _from_places, _to_places, choose_convolution


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def convolve(convolution, maps, weights):
    return convolution.results([convolution.read(x) for x in maps], convolution.weights(torch.cat(weights, 1)))


@pytest.mark.parametrize("make", [Winograd, lambda height, width: Direct(1)], ids=["winograd", "direct"])
@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 8), (7, 10), (1, 1), (3, 5)])
@pytest.mark.parametrize("channels", [(4,), (4, 3), (2, 1, 5)], ids=["one", "a sum of two", "of three"])
def test_values_and_gradients_equal_conv2d(make, height, width, channels):
    maps = [numbers(3, c, height, width) for c in channels]
    weights = [numbers(6, c, 3, 3) for c in channels]
    found = convolve(make(height, width), maps, weights)
    expected = conv2d(torch.cat(maps, 1), torch.cat(weights, 1), padding=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    grad = numbers(*expected.shape)
    ours = torch.autograd.grad(found, [*maps, *weights], grad)
    theirs = torch.autograd.grad(expected, [*maps, *weights], grad)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("convolution", [Winograd(9, 9), Direct(1)], ids=["winograd", "direct"])
def test_what_is_not_read_yet_has_no_share(convolution):
    x, w = numbers(3, 4, 9, 9), numbers(6, 7, 3, 3)
    found = convolution.results([convolution.read(x)], convolution.weights(w))
    torch.testing.assert_close(found, conv2d(x, w[:, :4], padding=1), rtol=0, atol=1e-12)


def test_single_precision_rounds_little_more_than_conv2d():
    x, w = numbers(32, 32, 9, 9), numbers(128, 32, 3, 3)
    exact = conv2d(x, w, padding=1)
    found = convolve(Winograd(9, 9), [x.float()], [w.float()])
    plain = conv2d(x.float(), w.float(), padding=1)
    assert (found - exact).pow(2).mean() < (4 * (plain - exact)).pow(2).mean()
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "winograd"),
    [
        (3, (8, 3, 9, 9), torch.float32, True),
        (3, (7, 3, 9, 9), torch.float32, False),  # too few to pay for preparing the weights
        (3, (8, 3, 8, 8), torch.float64, True),
        (3, (8, 3, 4, 4), torch.float32, False),  # the tiles would reach far over the edge
        (5, (8, 3, 9, 9), torch.float32, False),
        (3, (8, 3, 9, 9), torch.bfloat16, False),
    ],
)
def test_who_is_chosen(kernel, shape, dtype, winograd):
    assert isinstance(choose_convolution(torch.zeros(shape, dtype=dtype), kernel), Winograd) == winograd


def test_another_device_and_low_precision_have_their_own_ways():
    assert isinstance(choose_convolution(torch.zeros(8, 3, 9, 9, device="meta"), 3), Direct)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert isinstance(choose_convolution(torch.zeros(8, 3, 9, 9), 3), Direct)


def test_what_was_first_needed_without_gradients_serves_with_them():
    _to_places.cache_clear()
    _from_places.cache_clear()
    x, w = numbers(2, 3, 6, 6), numbers(4, 3, 3, 3)
    with torch.inference_mode():
        convolve(Winograd(6, 6), [x], [w])
    convolve(Winograd(6, 6), [x], [w]).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
