"""Our pooling equals PyTorch's: values, gradients, and where it steps aside."""

import pytest
import torch
from torch.nn.functional import max_pool2d

from torchmultiset.encoders._pool import max_pool


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


def test_of_equals_one_gets_the_whole_gradient():
    x = torch.zeros(1, 2, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    max_pool(x).sum().backward()
    windows = x.grad.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert (windows.sort(-1).values == torch.tensor([0.0, 0, 0, 1])).all()


def test_nan_is_not_lost():
    x = torch.zeros(1, 1, 2, 2)
    x[0, 0, 1, 0] = torch.nan
    assert max_pool(x.contiguous(memory_format=torch.channels_last)).isnan().all()


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        assert max_pool(maps(2, 3, 4, 6)).grad_fn is None
