"""Modules that remember how they were made, so that they can be made again."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, TypeVar

__all__ = ["recorded"]

T = TypeVar("T")


def recorded(cls: type[T]) -> type[T]:
    """Class decorator: keep the arguments of the constructor, defaults included, in `arguments`.

    Example:
        >>> @recorded
        ... class Pair:
        ...     def __init__(self, a, b=2):
        ...         pass
        >>> Pair(1).arguments
        {'a': 1, 'b': 2}
    """
    construct = cls.__init__
    signature = inspect.signature(construct)

    @wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(list(bound.arguments.items())[1:])

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls
