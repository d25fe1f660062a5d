"""Constructor arguments and attributes of modules."""

from __future__ import annotations

import inspect
import operator
from functools import wraps
from typing import Any, TypeVar

__all__ = ["declared", "recorded"]

T = TypeVar("T")


def recorded(cls: type[T]) -> type[T]:
    """Decorate a class so that it keeps its constructor arguments, including defaults, in `arguments`.

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


def declared(module: Any, name: str) -> int:
    """Return an integer attribute that every policy and head must define, including user-defined ones."""
    try:
        return operator.index(getattr(module, name))
    except (AttributeError, TypeError):
        what = type(module).__name__
        raise TypeError(f"policy must have an integer attribute `{name}` (see Policy), but {what} has none") from None
