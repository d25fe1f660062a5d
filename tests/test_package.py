"""What is there after `import torchmultiset`."""

from __future__ import annotations

from types import FunctionType, ModuleType

import pytest

import torchmultiset


@pytest.mark.parametrize("name", torchmultiset.__all__)
def test_every_name_leads_somewhere(name):
    assert isinstance(getattr(torchmultiset, name), ModuleType | type | str | FunctionType)
    assert name in dir(torchmultiset)


def test_every_part_that_the_package_tells_of_is_there():
    assert torchmultiset.__doc__ is not None
    told = {
        word for line in torchmultiset.__doc__.splitlines() if line.startswith("- ") for word in line.split("`")[1::2]
    }
    assert told <= {*dir(torchmultiset)}
    assert {"Predictor", "training", "MultisetClassifier"} <= told


def test_what_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = torchmultiset.nonsense
