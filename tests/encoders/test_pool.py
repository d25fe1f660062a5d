"""Pooling has the values and gradients of PyTorch's, including the cases that fall back to it."""

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d

from torchmultiset.encoders._pool import conv_max_pool, max_pool


def maps(*shape, layout=torch.channels_last):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return x.contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1, 2, 2), (3, 10, 8, 4), (2, 3, 5, 6), (2, 3, 4, 7)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_values_and_gradients_equal_max_pool2d(shape, layout):
    ours, theirs = maps(*shape, layout=layout), maps(*shape, layout=layout)
    pooled, expected = max_pool(ours), max_pool2d(theirs, 2)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=0)
    weight = torch.rand(pooled.shape, dtype=torch.float64)
    (pooled * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


def test_gradcheck():
    assert torch.autograd.gradcheck(max_pool, maps(2, 3, 4, 6))


def test_one_of_several_maxima_gets_the_whole_gradient():
    x = torch.zeros(1, 2, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    max_pool(x).sum().backward()
    windows = x.grad.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert (windows.sort(-1).values == torch.tensor([0.0, 0, 0, 1])).all()


def test_nan_is_propagated():
    x = torch.zeros(1, 1, 2, 2)
    x[0, 0, 1, 0] = torch.nan
    assert max_pool(x.contiguous(memory_format=torch.channels_last)).isnan().all()


def test_without_gradients_no_graph_is_built():
    with torch.no_grad():
        assert max_pool(maps(2, 3, 4, 6)).grad_fn is None


@pytest.mark.parametrize("learns", [True, False])
def test_the_position_of_the_maximum_is_computed_for_gradients_only(learns):
    x, weight = maps(2, 1, 12, 12).detach(), maps(4, 1, 5, 5)
    with torch.set_grad_enabled(learns), torch.profiler.profile() as watched:
        conv_max_pool(x, weight)
    assert ("aten::ge" in {event.key for event in watched.key_averages()}) == learns


@pytest.mark.parametrize(
    ("channels", "height", "width", "kernel"),
    [
        (1, 12, 16, 5),
        (1, 8, 10, 3),
        (2, 12, 10, 5),
        (1, 6, 4, 1),
        (3, 12, 16, 5),  # too many channels for blocks
        (1, 13, 16, 5),  # odd sizes
        (1, 12, 15, 5),
        (1, 12, 16, 4),  # an even kernel
    ],
)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_convolution_and_pooling_equal_those_of_pytorch(channels, height, width, kernel, biased, learns):
    weight = maps(4, channels, kernel, kernel)
    bias = torch.arange(4, dtype=torch.float64).requires_grad_() if biased else None
    x = maps(3, channels, height, width).detach()
    expected = max_pool2d(conv2d(x, weight, bias), 2)
    with torch.set_grad_enabled(learns):
        found = conv_max_pool(x, weight, bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if learns:
        grad = torch.rand(expected.shape, dtype=torch.float64)
        wanted = [weight] if bias is None else [weight, bias]
        ours = torch.autograd.grad(found, wanted, grad)
        theirs = torch.autograd.grad(expected, wanted, grad)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_gradients_pass_through_frozen_weights():
    x, weight = maps(2, 1, 12, 12), maps(4, 1, 5, 5).detach()
    ours, theirs = conv_max_pool(x, weight), max_pool2d(conv2d(x, weight), 2)
    (found,) = torch.autograd.grad(ours.sum(), x)
    (expected,) = torch.autograd.grad(theirs.sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_low_precision_equals_that_of_pytorch():
    x, weight = maps(2, 1, 12, 12).detach().float(), maps(4, 1, 5, 5).detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, convolved = conv_max_pool(x, weight), conv2d(x, weight)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, max_pool2d(convolved, 2), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), weight)
    windows = convolved.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert (windows.sort(-1).values.diff() > 0)[..., -1].all(), "the maximum is not unique"
    (expected,) = torch.autograd.grad(windows.amax(-1).sum(), weight)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_may_have_any_memory_layout(dtype):
    weight = torch.arange(50, dtype=dtype).view(2, 1, 5, 5)
    memory = torch.randint(0, 2, (3 * 13 * 14,), generator=torch.Generator().manual_seed(0)).to(dtype)
    for x in (
        memory[1:433].view(3, 1, 12, 12),
        memory.view(3, 1, 13, 14)[:, :, 1:, 1:13],
        memory[:432].view(3, 1, 12, 12),
    ):
        with torch.no_grad():
            torch.testing.assert_close(conv_max_pool(x, weight), max_pool2d(conv2d(x, weight), 2))


def test_empty_batches_give_empty_maps():
    with torch.no_grad():
        assert conv_max_pool(torch.zeros(0, 1, 12, 12), torch.zeros(4, 1, 5, 5), torch.zeros(4)).shape == (0, 4, 4, 4)
    assert max_pool(torch.zeros(0, 4, 8, 8).contiguous(memory_format=torch.channels_last)).shape == (0, 4, 4, 4)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_gradient_of_the_weights_has_their_memory_layout(layout, channels):
    # Otherwise DistributedDataParallel copies it and warns.
    weight = maps(4, channels, 5, 5, layout=layout)
    x = torch.rand(2, channels, 12, 16, dtype=torch.float64)
    (of_weight,) = torch.autograd.grad(conv_max_pool(x, weight).sum(), weight)
    assert of_weight.stride() == weight.stride()
