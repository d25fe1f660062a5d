"""The cell with a hand-written gradient equals its equations under autograd."""

import pytest
import torch

from torchmultiset.policies._lstm import lstm_cell


def equations(gates, cell):
    into, keep, out, candidate = gates.chunk(4, 1)
    new = into.sigmoid() * candidate.tanh()
    if cell is not None:
        new = new + keep.sigmoid() * cell
    return out.sigmoid() * new.tanh(), new


def inputs(shape, first):
    generator = torch.Generator().manual_seed(0)
    b, q, *rest = shape
    gates = 3 * torch.randn(b, 4 * q, *rest, dtype=torch.float64, generator=generator)
    cell = None if first else torch.randn(*shape, dtype=torch.float64, generator=generator)
    return gates, cell


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("used", ["hidden", "cell", "both"])
def test_values_and_gradients_equal_the_equations(shape, first, channels_last, used):
    def run(function):
        gates, cell = inputs(shape, first)
        if channels_last and len(shape) == 4:
            gates = gates.contiguous(memory_format=torch.channels_last)
        leaves = [x.requires_grad_() for x in (gates, cell) if x is not None]
        hidden, new = function(gates, cell)
        total = hidden.square().sum() * (used != "cell") + new.cos().sum() * (used != "hidden")
        return [hidden, new, *torch.autograd.grad(total, leaves)]

    for ours, theirs in zip(run(lstm_cell), run(equations), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


def test_gradcheck():
    gates, cell = inputs((2, 2, 3, 2), first=False)
    assert torch.autograd.gradcheck(lstm_cell, (gates.requires_grad_(), cell.requires_grad_()))


def test_the_cell_saturates_for_extreme_inputs():
    gates = torch.tensor([[1e4, -1e4, 1e4, 1e4], [-1e4, 1e4, -1e4, -1e4]])
    hidden, new = lstm_cell(gates, torch.tensor([[5.0], [5.0]]))
    assert new.tolist() == [[1.0], [5.0]]
    torch.testing.assert_close(hidden, torch.tensor([[1.0]]).tanh() * torch.tensor([[1.0], [0.0]]))


def test_mixed_precision_is_close_to_single_precision():
    gates, cell = (x.float() for x in inputs((2, 3, 4, 5), first=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = gates.bfloat16().requires_grad_()
        hidden, _ = lstm_cell(rounded, cell)
    hidden.float().sum().backward()
    torch.testing.assert_close(hidden.float(), lstm_cell(gates, cell)[0], rtol=0, atol=0.05)
    assert rounded.grad.isfinite().all()
