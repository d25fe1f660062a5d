"""Tables of classes and functions by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from torchmultiset._checks import check_one_of

__all__ = ["Registry"]


class Registry(Mapping[str, Any]):
    """Classes and functions by name, imported on first use.

    Args:
        what: Kind of entry, used in error messages.
        places: Location of each entry: ``"module:Name"``.

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
        """Return the entry with this name, or the default if there is none."""
        return self[name] if name in self.places else default

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def classes(self) -> dict[str, Any]:
        """Entries by their ``__name__``, which saved models store."""
        return {cls.__name__: cls for cls in self.values()}
