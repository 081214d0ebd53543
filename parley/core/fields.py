"""What a user can set on a class: a dataclass's fields with their types, defaults and the docstrings under them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Setting:
    """One field of a dataclass, or one option of a function."""

    name: str
    hint: Any
    """Its type annotation, `Annotated` included."""
    default: Any
    """`dataclasses.MISSING` if it must be given."""
    owner: type | None = None
    """The class whose source explains it."""
    note: str = ""
    """An explanation where there is no such source."""

    @property
    def doc(self) -> str:
        """What it means; reads the class's source at the first call."""
        return self.note or (field_docs(self.owner).get(self.name, "") if self.owner is not None else "")

    @property
    def required(self) -> bool:
        return self.default is MISSING


def settings_of(cls: type) -> list[Setting]:
    """The fields of a dataclass that its constructor takes, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        Setting(field.name, hints[field.name], _default(field), cls, field.metadata.get("doc", ""))
        for field in dataclasses.fields(cls)
        if field.init
    ]


def options_of(function: Any) -> list[Setting]:
    """The parameters of a function, or of a class's constructor."""
    called = vars(function).get("__init__", function) if isinstance(function, type) else function
    hints = get_type_hints(called, include_extras=True)
    return [
        Setting(name, hints.get(name, Any), MISSING if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    ]


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """The docstring under each field of a class and its bases; the most derived one counts.

    >>> field_docs(Setting)["hint"]
    'Its type annotation, `Annotated` included.'
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # built in, or defined where there is no source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in pairwise(body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[field.target.id] = inspect.cleandoc(str(below.value.value))
    return docs


def summary(thing: Any) -> str:
    """The first sentence or line of a thing's docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def type_text(hint: Any) -> str:
    """A type in words, to follow "must be".

    >>> type_text(Literal["all", "last"] | tuple[float, ...])
    "'all', 'last' or a list of numbers"
    """
    parts = _parts(hint)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", dict: "a table"}
_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "a string": "strings", "a table": "tables"}


def _parts(hint: Any) -> list[str]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _parts(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [part for option in get_args(hint) if option is not type(None) for part in _parts(option)]
    if origin is Literal:
        return [f"'{value}'" if isinstance(value, str) else str(value) for value in get_args(hint)]
    if origin in (tuple, list):
        inner = [argument for argument in get_args(hint) if argument is not ...]
        words = type_text(inner[0]) if inner else "a value"
        many = _PLURALS.get(words, f"values, each {words}")
        fixed = origin is tuple and ... not in get_args(hint)
        return [f"a list of {len(inner)} {many}" if fixed else f"a list of {many}"]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return ["a table"]
    if dataclasses.is_dataclass(hint) or getattr(hint, "_is_protocol", False):
        return ["a section"]
    return [_WORDS.get(hint, "a value")]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
