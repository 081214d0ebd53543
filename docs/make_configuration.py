"""Writes docs/configuration.md and docs/configuration/*.md from the settings' own types, defaults and docstrings.

    python docs/make_configuration.py

A test compares the page with the code, so run this after changing a setting.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parley.algorithms.averaging.server import server_optimizers
from parley.algorithms.boosting.weak import learners
from parley.algorithms.protocol import Algorithm
from parley.core.fields import Setting, settings_of, summary, type_text
from parley.core.registry import Registry
from parley.data import datasets, partitioners
from parley.data.columns import Column
from parley.data.preprocessing import Preprocessing
from parley.models import feature_maps, models
from parley.study.data_section import loader_settings, own_settings
from parley.study.sections import plain
from parley.study.toml import SECTIONS, General
from parley.study.tuning_settings import Tuning
from parley.theory.kernel.registry import kernels
from parley.training.schedules import schedules

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

MADE = "<!-- Made by docs/make_configuration.py from the code; do not edit. -->"
INTRODUCTION = f"""\
# Configuration

{MADE}

A study is a TOML file: what to train, on which data, how. `parley run study.toml` trains it,
`--set section.setting=value` overrides a setting, and the stored run keeps the whole configuration with all defaults.
An unknown setting is refused with the nearest one that exists. The tables show a setting's default, then its other
choices, or in parentheses the type of a setting without a default. Required are only `[data]` with a `name`, a `folder`
or a `file`, `[model]` with a `name` and `[algorithm]` with a `name`. A complete, commented study is
[examples/digits.toml](../examples/digits.toml).

Here are the general sections. Those with a choice have pages of their own: [`[data]`](configuration/data.md),
[`[model]`](configuration/model.md), [`[algorithm]`](configuration/algorithm.md). On the command line, `parley list`
shows the choices and `parley list algorithms fedprox` the settings of one.
"""

KERNELS = """\
The kernel of `kernel-fedavg` and `kernel-fedprox`, and of Nystrom features as `[model.map.kernel]`; x and z are samples
as vectors. Without a name, RBF.
"""


def pages() -> dict[str, str]:
    """Every page by its path below docs/: the general settings, and those of data, models and algorithms."""
    general = [INTRODUCTION, "## Above the first section\n", table(settings_of(General))]
    for name, cls in SECTIONS.items():
        general += [f"## [{name}]\n", f"{summary(cls)}\n", table(settings_of(cls))]
        if cls is Preprocessing:
            general += ["### [preprocessing.table.COLUMN]\n", f"{summary(Column)}\n", table(settings_of(Column))]
    general += ["## [tune]\n", f"{summary(Tuning)}\n", table(settings_of(Tuning))]
    general.append("```{toctree}\n:hidden:\n\nconfiguration/data\nconfiguration/model\nconfiguration/algorithm\n```\n")
    return {
        "configuration.md": "\n".join(general),
        "configuration/data.md": "\n".join(_data()),
        "configuration/model.md": "\n".join(_model()),
        "configuration/algorithm.md": "\n".join(_algorithm()),
    }


def _data() -> list[str]:
    settings = {s.name: s for s in [*own_settings("name"), *own_settings("file"), *own_settings("folder")]}
    options = (
        [f"`{name}`", ", ".join(map(_option, loader_settings(name)))] for name in datasets if loader_settings(name)
    )
    return [
        f"# Configuration: data\n\n{MADE}\n",
        "## [data]\n\nWhich samples there are and who has them ([data](../data.md)).\n",
        table(settings.values()),
        "## Options of data sets\n\nThey stand beside the name; [all sets](../data.md#data-sets).\n",
        rows(("data set", "options"), options),
        "## [data.partition]\n",
        choices(partitioners),
    ]


def _model() -> list[str]:
    return [
        f"# Configuration: models\n\n{MADE}\n",
        "## [model]\n",
        choices(models),
        "## [model.map]\n\nThe features of the model `features`.\n",
        choices(feature_maps),
    ]


def _algorithm() -> list[str]:
    return [
        f"# Configuration: algorithms\n\n{MADE}\n",
        "## [algorithm]\n\nThe name of a [method](../algorithms.md), whose page has its settings.\n",
        "## [algorithm.server]\n\nWithout a name, the algorithm's own default class is kept.\n",
        choices(server_optimizers),
        "## [algorithm.schedule]\n\nHow the step size changes with the rounds or steps taken.\n",
        choices(schedules),
        "## [algorithm.learner]\n\nThe weak learner of `ffgb`; without a name, a tree.\n",
        choices(learners),
        f"## [algorithm.kernel]\n\n{KERNELS}",
        choices(kernels),
    ]


def choices(registry: Registry[Any]) -> str:
    """A paragraph and a table for each registered class; a table that was shown before is named."""
    parts, shown = [], {}
    for name in registry:
        settings = table(settings_of(registry[name])) if settings_of(registry[name]) else "It has no settings.\n"
        same = shown.setdefault(settings, name)
        parts.append(f"### `{name}`\n\n{described(summary(registry[name]))}\n")
        parts.append(settings if same == name or settings.count("\n") == 1 else f"Settings as of `{same}`.\n")
    return "\n".join(parts)


def table(settings: Iterable[Setting]) -> str:
    return rows(("setting", "default", "meaning"), ([f"`{s.name}`", _value(s), described(s.doc)] for s in settings))


def _value(setting: Setting) -> str:
    """The default, then other choices; the type in parentheses where there is no default, whose form would show it."""
    default = _default(setting)
    words = re.sub(r"\ba list of values, each .*", "a list", type_text(setting.hint)).replace("whole number", "integer")
    options = [_option_text(part) for part in re.split(r", | or (?!false)", words)]
    if default in ("", "required"):
        return f"({', '.join(options)})" if default == "" else f"{', '.join(options)}; required"
    others = [part for part in options if part != default]
    is_choice = len(options) > len(others) or len(options) > 1
    return ", ".join([default, *others]) if is_choice else default


def _option_text(part: str) -> str:
    return f'`"{part[1:-1]}"`' if part[0] == "'" else part.removeprefix("a ")


def described(text: str) -> str:
    return " ".join(text.split())


def _same(setting: Setting, other: Setting | None) -> bool:
    return other is not None and (setting.hint, setting.default, setting.doc) == (other.hint, other.default, other.doc)


def _default(setting: Setting) -> str:
    if setting.default is dataclasses.MISSING:
        return "required"
    value = plain(setting.default)
    if setting.name == "partition":
        return "`iid`"
    if isinstance(setting.default, Algorithm):
        return f"`{value['name']}` with its defaults"
    if isinstance(value, dict) and "name" in value:
        inner = ", ".join(f"{key} = {json.dumps(field)}" for key, field in value.items() if key != "name")
        return f"`{value['name']}` ({inner})" if inner else f"`{value['name']}`"
    return "" if value is None or value == {} else f"`{json.dumps(value)}`"


def _option(setting: Setting) -> str:
    return f"`{setting.name}` {_value(setting) if _default(setting) == '' else f'({_value(setting)})'}"


if __name__ == "__main__":
    (DOCS / "configuration").mkdir(exist_ok=True)
    for path, text in pages().items():
        (DOCS / path).write_text(text, encoding="utf-8")
