"""The public names of the package."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from pkgutil import walk_packages
from types import FunctionType, ModuleType

import pytest

import torchmultiset

SHARED_NAMES = {"VARIANTS", "build"}
"""Public names that every data set has; they are used with their module, as in `mnist_multi.build`."""


@pytest.mark.parametrize("name", torchmultiset.__all__)
def test_every_public_name_can_be_imported(name):
    assert isinstance(getattr(torchmultiset, name), ModuleType | type | str | FunctionType)
    assert name in dir(torchmultiset)


def test_every_documented_part_of_the_package_exists():
    assert torchmultiset.__doc__ is not None
    listed = {
        word for line in torchmultiset.__doc__.splitlines() if line.startswith("- ") for word in line.split("`")[1::2]
    }
    assert listed <= {*dir(torchmultiset)}
    assert {"Predictor", "training", "MultisetClassifier"} <= listed


def test_unknown_attributes_raise_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = torchmultiset.nonsense


@pytest.mark.slow
def test_each_public_name_has_one_meaning():
    modules = [info.name for info in walk_packages(torchmultiset.__path__, "torchmultiset.")]
    assert len(modules) > 100
    meanings = defaultdict(dict)
    for module in (import_module(name) for name in ["torchmultiset", *modules] if not name.endswith("__main__")):
        for name in getattr(module, "__all__", ()):
            meaning = getattr(module, name)
            # A module may share its name with its main function: `oracle.oracle`.
            if not isinstance(meaning, ModuleType):
                meanings[name][id(meaning)] = module.__name__
    ambiguous = {name: {*found.values()} for name, found in meanings.items() if len(found) > 1}
    assert ambiguous == {name: {"torchmultiset.data.coco", "torchmultiset.data.mnist_multi"} for name in SHARED_NAMES}
