"""Tables of classes by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from torchmultiset._checks import check_one_of

__all__ = ["Registry"]


class Registry(Mapping[str, Any]):
    """Classes by name.

    Args:
        what: What they are called in messages.
        places: Where each class is: ``"module:Class"``.

    Example:
        >>> losses = Registry("loss", {"multi": "torchmultiset.losses:multiset_loss"})
        >>> losses["multi"].__name__, [*losses]
        ('multiset_loss', ['multi'])
    """

    def __init__(self, what: str, places: Mapping[str, str]) -> None:
        self.what = what
        self.places = dict(places)

    def __getitem__(self, name: str) -> Any:
        check_one_of(self.what, name, self.places)
        module, _, attribute = self.places[name].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def get(self, name: str, default: Any = None) -> Any:
        """The class of that name, or the default if there is none."""
        return self[name] if name in self.places else default

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def classes(self) -> dict[str, Any]:
        """The classes by their own names, which saved models have."""
        return {cls.__name__: cls for cls in self.values()}
