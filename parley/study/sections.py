"""From tables of plain values (TOML or JSON) to the dataclasses they describe, checked field by field.

A value is checked by pydantic, strictly, in JSON form: a stored configuration and a study file take the same way.
Every mistake is one sentence that names the setting by its dotted path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from importlib import import_module
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from parley.core.checks import fits, shown, unsound
from parley.core.errors import InputError, nearest
from parley.core.fields import Setting, options_of, settings_of, type_text
from parley.core.registry import Registry
from parley.study.opaque import opaque

T = TypeVar("T")

NESTED = {
    "parley.algorithms.protocol.Algorithm": "parley.algorithms:algorithms",
    "parley.algorithms.averaging.server.ServerOptimizer": "parley.algorithms.averaging.server:server_optimizers",
    "parley.training.schedules.Schedule": "parley.training.schedules:schedules",
    "parley.algorithms.boosting.weak.base.Learner": "parley.algorithms.boosting.weak:learners",
    "parley.theory.kernel.kernels.Kernel": "parley.theory.kernel.registry:kernels",
    "parley.models.feature_model.FeatureSpec": "parley.models:feature_maps",
}
"""The type of a field -> the registry of what may stand there: `[algorithm.server] name = "adam"`.

By name: a study loads what it uses.
"""


def build(cls: type[T], table: Any, where: str, what: str) -> T:
    """An instance of the dataclass `cls` from its table; `what` names it in sentences ("algorithm 'fedavg'")."""
    values = checked(settings_of(cls), as_table(table, where), where, what)
    try:
        return cls(**values)
    except InputError as error:
        raise located(error, where) from None


def choose(registry: Registry[type[T]], table: Any, where: str) -> T:
    """An instance of the class that the table's `name` chooses."""
    table = as_table(table, where)
    if "name" not in table:
        raise InputError(f"{where}.name is missing: choose one of {', '.join(registry)}.")
    name = check(str, table["name"], f"{where}.name")
    rest = {key: value for key, value in table.items() if key != "name"}
    chosen: Any = registry[name]
    what = f"{registry.kind} '{name}'"
    if isinstance(chosen, type) and is_dataclass(chosen):
        return cast(T, build(chosen, rest, where, what))
    if registry.kind != "model" or not callable(chosen):
        raise InputError(f"{what} must be a dataclass, whose fields are its settings.")
    options = options_of(chosen)
    return cast(T, Made(name, chosen, checked(options, rest, where, what)))


@dataclass(frozen=True)
class Made:
    """A model of the user's own that is no dataclass: a function that builds a module, or a module's class."""

    name: str
    make: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.make(**self.options)


def checked(settings: Sequence[Setting], table: Mapping[str, Any], where: str, what: str) -> dict[str, Any]:
    """The table's values, each checked against its setting; unknown and missing ones are refused."""
    known = {setting.name: setting for setting in settings}
    for key in table:
        if key not in known:
            hint = nearest(key, known) if known else "it has no settings."
            raise InputError(f"{what} has no setting '{key}': {hint}")
    for name, setting in known.items():
        if setting.required and name not in table:
            raise InputError(f"{_dotted(where, name)} is missing: {what} needs {type_text(setting.hint)}.")
    return {key: _value(known[key], value, _dotted(where, key)) for key, value in table.items()}


def check(hint: Any, value: Any, path: str) -> Any:
    """The value as the type says, or a sentence."""
    wrong = unsound(value)
    if wrong is not None and (not isinstance(value, float) or fits(hint, 0)):
        raise InputError(f"{path} {wrong}.")
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (TypeError, ValueError) as error:
        wanted = _wanted(hint, error) if isinstance(error, ValidationError) else type_text(hint)
        raise InputError(f"{path} must be {wanted}, not {shown(value)}.") from None


def as_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a section, not {shown(value)}: write [{where}] and its settings below it.")
    return dict(value)


def plain(value: Any) -> Any:
    """The JSON form of a setting's value; what came from a registry begins with its name."""
    if is_dataclass(value) and not isinstance(value, type):
        registry = _registry_of(type(value))
        name = {"name": registry.name_of(type(value))} if registry else {}
        return name | {field.name: _inner(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, bool | str) or value is None or value is MISSING:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else opaque(value)


def _inner(value: Any) -> Any:
    """A field's value; a dataclass that no registry knows is a part that only Python can make."""
    if is_dataclass(value) and not isinstance(value, type) and _registry_of(type(value)) is None:
        return opaque(value)
    return plain(value)


def located(error: InputError, where: str) -> InputError:
    """The same sentence, saying in which section, unless it says so itself."""
    text = str(error)
    return error if text.startswith(f"{where}.") else InputError(f"[{where}] {text}")


def _value(setting: Setting, value: Any, path: str) -> Any:
    if get_origin(setting.hint) is dict and is_dataclass(each := get_args(setting.hint)[1]):
        cls, named = cast(type[Any], each), as_table(value, path)
        return {name: build(cls, inner, f"{path}.{name}", f"[{path}.{name}]") for name, inner in named.items()}
    options = (setting.hint, *get_args(setting.hint))
    base = next((option for option in options if is_dataclass(option) or _full_name(option) in NESTED), None)
    if not isinstance(base, type) or value is None:
        return check(setting.hint, value, path)
    table = as_table(value, path)
    registry = _registry_of(base)
    # Without a name, the default's own class is kept.
    default = setting.default if is_dataclass(setting.default) else None
    if registry is not None and ("name" in table or default is None):
        chosen = choose(registry, table, path)
        if is_dataclass(base) and not isinstance(chosen, base):
            raise InputError(f"{path}.name = '{table['name']}' does not fit there.")
        return chosen
    start: Any = base() if default is None else default
    what = f"{registry.kind} '{registry.name_of(type(start))}'" if registry else path
    values = checked(settings_of(type(start)), table, path, what)
    try:
        return replace(start, **values)
    except InputError as error:
        raise located(error, path) from None


def _registry_of(kind: Any) -> Registry[Any] | None:
    """The registry of a field's type or of a value's class, which is registered if its kind's module is loaded."""
    if _full_name(kind) in NESTED:
        return _nested(_full_name(kind))
    loaded = (_nested(base) for base in NESTED if base.rpartition(".")[0] in sys.modules)
    return next((registry for registry in loaded if registry.knows(kind)), None)


def _nested(base: str) -> Registry[Any]:
    module, _, name = NESTED[base].partition(":")
    return cast("Registry[Any]", getattr(import_module(module), name))


def _full_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def _wanted(hint: Any, error: ValidationError) -> str:
    first = error.errors()[0]
    limits = first.get("ctx", {})
    words = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "above {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "below {lt}",
    }
    if first["type"] in words:
        return words[first["type"]].format(**limits)
    return type_text(hint)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
