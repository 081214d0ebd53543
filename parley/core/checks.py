"""Values of settings held against their type annotations, in Python as from a file; numbers must be finite."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from parley.core.errors import InputError
from parley.core.fields import settings_of, type_text

T = TypeVar("T")

LARGEST = 2**63 - 1
"""The largest whole number that files, databases and tensors can hold."""
LONGEST = 4096
"""Characters of a text; no path is longer."""


def check_value(hint: Any, value: Any, path: str, default: Any = None) -> None:
    """Refuse a value that its annotation does not allow; `default` may show that infinity is meant.

    Where the annotation is a class or a function of the caller's, any object will do.
    """
    wrong = unsound(value, infinite=isinstance(default, float) and math.isinf(default))
    if wrong is not None and (not isinstance(value, float) or fits(hint, 0)):
        raise InputError(f"{path} {wrong}.")
    if not fits(hint, value):
        raise InputError(f"{path} must be {type_text(hint)}, not {shown(value)}.")


def unsound(value: Any, *, infinite: bool = False, depth: int = 0) -> str | None:
    """What no setting can hold, as the end of a sentence: NaN, infinity, endless numbers, NUL, deep nesting."""
    if depth > 32:
        return "is nested too deeply"
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return None if abs(int(value)) <= LARGEST else f"must be a whole number below 2^63, not {shown(value)}"
    if isinstance(value, Real):
        fine = math.isfinite(value) or (infinite and not math.isnan(value))
        return None if fine else f"must be a finite number, not {value}"
    if isinstance(value, str):
        if len(value) > LONGEST:
            return f"must have at most {LONGEST} characters, not {len(value)}"
        return "must not contain the character NUL" if "\0" in value else None
    if isinstance(value, Mapping):
        inner = [*value, *value.values()]
    elif isinstance(value, tuple | list):
        inner = list(value)
    else:
        return None
    return next((wrong for each in inner if (wrong := unsound(each, infinite=infinite, depth=depth + 1))), None)


def fits(hint: Any, value: Any) -> bool:
    """Whether the value is of the type; numbers of NumPy count as numbers, lists as tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(arguments[0], value)
    if origin in (Union, types.UnionType):
        return any(fits(option, value) for option in arguments)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if origin in (tuple, list):
        return _sequence_fits(origin, arguments, value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(arguments[1], inner) for inner in value.values())
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or getattr(hint, "_is_protocol", False)):
        return not isinstance(value, bool | int | float | str | Mapping | Sequence) and value is not None
    return True


def _sequence_fits(origin: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    inner = [argument for argument in arguments if argument is not ...]
    if origin is tuple and ... not in arguments:
        return len(value) == len(inner) and all(fits(h, v) for h, v in zip(inner, value, strict=True))
    return all(fits(inner[0], each) for each in value) if inner else True


def check_fields(thing: Any, where: str = "") -> None:
    """The fields of a dataclass instance, each against its annotation; other objects are left alone."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for name, hint, default in _hints(type(thing)):
            check_value(hint, getattr(thing, name), f"{where}.{name}" if where else name, default)


def checked_at_birth(cls: type[T], where: str = "") -> type[T]:
    """The dataclass itself, whose constructor from now on refuses values that its annotations do not allow.

    A field that the constructor normalises (a list to a tuple, 0 to None) may be given in either form.
    """
    construct = cls.__init__
    signature = inspect.signature(construct)

    @wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            given = {}  # the constructor itself says what is wrong
        for name, hint, default in _hints(cast(Any, cls)):
            if name in given:
                check_value(hint, given[name], f"{where}.{name}" if where else f"{cls.__name__}: {name}", default)
        construct(self, *map(_number, args), **{name: _number(value) for name, value in kwargs.items()})

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def shown(value: Any) -> str:
    """A value in a sentence, shortened."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a number of about {int(value.bit_length() * math.log10(2))} digits"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _number(value: Any) -> Any:
    """A number of NumPy as one of Python, which can be written down."""
    if type(value) in (bool, int, float):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


@cache
def _hints(cls: Any) -> tuple[tuple[str, Any, Any], ...]:
    try:
        return tuple((setting.name, setting.hint, setting.default) for setting in settings_of(cls))
    except NameError:  # annotated with names that exist for type checkers only
        return ()
