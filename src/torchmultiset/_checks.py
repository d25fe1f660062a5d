"""Argument checks: each raises a ValueError with the name of the argument, the expected and the actual value.

Shapes and dtypes are always checked. Values (labels in range, counts not negative) are checked only on the CPU: on an
accelerator, reading them would synchronise with the device at every call. Messages are formatted only on failure,
since formatting can take as long as the loss of a small batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar, get_args

import torch
from torch import Tensor

__all__ = [
    "Settings",
    "at_least",
    "bounded",
    "can_look",
    "check",
    "check_counts",
    "check_float",
    "check_integers",
    "check_labels",
    "check_mask",
    "check_one_of",
    "each_at_least",
    "filled",
    "given",
    "listed",
    "one_of",
    "some",
]

_LONGEST = 200  # characters of a value in a message


def given(value: object) -> str:
    """Format a value for an error message: tensors and arrays by dtype and shape, others by their repr, shortened."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # the repr of an array may be long
        dtype = str(value.dtype).removeprefix("torch.")
        kind = "tensor" if isinstance(value, Tensor) else "array"
        return f"{'an' if dtype.startswith('int') else 'a'} {dtype} {kind} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def some(values: Collection[object], most: int = 8) -> str:
    """Join the first values for a message, and count the others: ``a, b and 3 more``."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, [*values][:most])) + more


def listed(lines: Sequence[str], most: int = 10) -> str:
    """List the first lines for a message, each on a line of its own, and count the others."""
    more = [f"... and {len(lines) - most} more"] * (len(lines) > most)
    return "".join(f"\n  {line}" for line in [*lines[:most], *more])


def check(ok: bool, name: str, expected: str, value: object) -> None:
    """Raise a ValueError unless `ok`: ``name must be <expected>, but is <value>``."""
    if not ok:
        _refuse(name, expected, value)


def check_one_of(name: str, value: object, allowed: Collection[object]) -> None:
    """Raise a ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        _refuse(name, "one of " + ", ".join(map(repr, allowed)), value)


def check_float(name: str, value: Tensor, shape: str, *, like: tuple[int | None, ...]) -> None:
    """Raise a ValueError unless `value` is a floating-point tensor of shape `like`, where None is any length."""
    ok = isinstance(value, Tensor) and value.is_floating_point() and _fits(value, like)
    if not ok:
        _refuse(name, f"a floating-point tensor of shape {_wanted(shape, like)}", value)


def check_integers(
    name: str, value: Tensor, shape: str, *, last: int | None = None, like: tuple[int | None, ...] | None = None
) -> None:
    """Raise a ValueError unless `value` is an int64 tensor; if given, its last length is `last`, its shape `like`."""
    ok = isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim >= 1
    fits = ok and last in (None, value.shape[-1]) and (like is None or _fits(value, like))
    check(fits, name, f"an int64 tensor of shape {shape}", value)


def check_mask(name: str, value: Tensor, shape: str, *, like: tuple[int | None, ...]) -> None:
    """Raise a ValueError unless `value` is a boolean tensor of shape `like`, where None is any length."""
    ok = isinstance(value, Tensor) and value.dtype == torch.bool and _fits(value, like)
    if not ok:
        _refuse(name, f"a boolean tensor of shape {_wanted(shape, like)}", value)


def check_counts(name: str, value: Tensor, *, like: tuple[int | None, ...] = (None, None)) -> None:
    """Raise a ValueError unless `value` holds counts (B, C): int64, at least 0."""
    ok = isinstance(value, Tensor) and value.dtype == torch.int64 and _fits(value, like)
    if not ok:
        _refuse(name, f"an int64 tensor of counts of shape {_wanted('(B, C)', like)}", value)
    if can_look(value):
        lowest = int(value.min())
        if lowest < 0:
            raise ValueError(f"{name} must hold non-negative counts, but its smallest is {lowest}")


def check_labels(
    name: str,
    value: Tensor,
    num_classes: int,
    *,
    like: tuple[int | None, ...] = (None, None),
    padding: bool = False,
) -> None:
    """Raise a ValueError unless `value` holds int64 labels (B, T) in [0, num_classes), or negative if `padding`."""
    ok = isinstance(value, Tensor) and value.dtype == torch.int64 and _fits(value, like)
    if not ok:
        _refuse(name, f"an int64 tensor of labels of shape {_wanted('(B, T)', like)}", value)
    if can_look(value):
        lowest, highest = (int(bound) for bound in value.aminmax())
        if highest >= num_classes or (lowest < 0 and not padding):
            wrong = highest if highest >= num_classes else lowest
            raise ValueError(f"{name} must hold labels from 0 to {num_classes - 1}, but holds {wrong}")


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    raise ValueError(f"{name} must be {expected}, but is {given(value)}")


def _fits(value: Tensor, like: tuple[int | None, ...]) -> bool:
    return value.ndim == len(like) and all(want in (None, have) for want, have in zip(like, value.shape, strict=True))


def _wanted(shape: str, like: tuple[int | None, ...]) -> str:
    if all(length is None for length in like):
        return shape
    lengths = ", ".join("any" if length is None else str(length) for length in like)
    return f"{shape} = ({lengths}{',' if len(like) == 1 else ''})"


def can_look(value: Tensor) -> bool:
    """Return whether the values can be read cheaply: on the CPU, and not while compiling."""
    return value.device.type == "cpu" and value.numel() > 0 and not torch.compiler.is_compiling()


def bounded(ok: Callable[[Any], bool], expected: str, *, default: Any) -> Any:
    """Return a field of `Settings` whose values are checked.

    Args:
        ok: Function from a value to whether it is allowed; it is not called with None.
        expected: Description of the allowed values.
        default: Default of the field.
    """
    return field(default=default, metadata={"ok": ok, "expected": expected})


def at_least(least: int | float, *, default: Any) -> Any:
    """Return a field of `Settings` for a number with a lower bound."""
    return bounded(lambda value: least <= value < math.inf, f"at least {least}", default=default)


def each_at_least(least: int, *, default: Any) -> Any:
    """Return a field of `Settings` for a tuple of numbers with a lower bound."""
    expected = f"at least one number, each at least {least}"
    return bounded(lambda value: len(value) >= 1 and min(value) >= least, expected, default=default)


def one_of(choices: Any, *, default: Any) -> Any:
    """Return a field of `Settings` for one of the values of a `Literal`."""
    names = get_args(choices)
    return bounded(lambda value: value in names, f"one of {', '.join(map(repr, names))}", default=default)


@dataclass(frozen=True)
class Settings:
    """Base class of settings, which check their values when they are created.

    Example:
        >>> @dataclass(frozen=True)
        ... class Widths(Settings):
        ...     hidden: int = at_least(1, default=32)
        >>> Widths(hidden=0)
        Traceback (most recent call last):
            ...
        ValueError: hidden must be at least 1, but is 0
    """

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value is not None and "ok" in setting.metadata:
                check(setting.metadata["ok"](value), setting.name, setting.metadata["expected"], value)


_Filled = TypeVar("_Filled", bound=Settings)


def filled(settings: Settings, cls: type[_Filled], **chosen: Any) -> _Filled:
    """Return settings of a class whose defaults replace what is not set, which is None.

    Args:
        settings: Settings as given.
        cls: Class with the same fields.
        **chosen: Values that replace those of `settings`.

    Example:
        >>> @dataclass(frozen=True)
        ... class Open(Settings):
        ...     hidden: int | None = None
        >>> @dataclass(frozen=True)
        ... class Resolved(Open):
        ...     hidden: int = 32
        >>> filled(Open(), Resolved), filled(Open(hidden=0), Resolved)
        (Resolved(hidden=32), Resolved(hidden=0))
    """
    given = {name: value for name, value in vars(settings).items() if value is not None}
    return cls(**given | chosen)
