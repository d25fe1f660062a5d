"""What is there after `import torchmultiset`."""

from __future__ import annotations

from types import FunctionType, ModuleType

import pytest

import torchmultiset


@pytest.mark.parametrize("name", torchmultiset.__all__)
def test_every_public_name_can_be_imported(name):
    assert isinstance(getattr(torchmultiset, name), ModuleType | type | str | FunctionType)
    assert name in dir(torchmultiset)


def test_every_documented_part_of_the_package_exists():
    assert torchmultiset.__doc__ is not None
    told = {
        word for line in torchmultiset.__doc__.splitlines() if line.startswith("- ") for word in line.split("`")[1::2]
    }
    assert told <= {*dir(torchmultiset)}
    assert {"Predictor", "training", "MultisetClassifier"} <= told


def test_unknown_attributes_raise_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = torchmultiset.nonsense
