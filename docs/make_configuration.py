"""Writes docs/configuration.md from the settings' own types, defaults and docstrings.

    python docs/make_configuration.py

A test compares the page with the code, so run this after changing a setting.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parley.algorithms import algorithms
from parley.algorithms.base.server import server_optimizers
from parley.core.fields import Setting, settings_of, summary, type_text
from parley.core.registry import Registry
from parley.data import datasets, partitioners
from parley.learn.schedules import schedules
from parley.learn.weak import learners
from parley.models import feature_maps, models
from parley.study.data_section import loader_settings, own_settings
from parley.study.sections import plain
from parley.study.study import SECTIONS, General
from parley.study.tuning.settings import Tuning
from parley.theory.kernel.registry import kernels

PAGE = Path(__file__).with_name("configuration.md")
sys.path.insert(0, str(PAGE.parent))

from pages import rows  # noqa: E402

INTRODUCTION = """\
# Configuration

<!-- Made by docs/make_configuration.py from the code; do not edit. -->

A study is a TOML file: what to train, on which data, how. `parley run study.toml` trains it,
`--set section.setting=value` overrides a setting, and the stored run keeps the whole configuration with all defaults.
An unknown setting is refused with the nearest one that exists. Required are only `[data]` with a `name`, a `folder` or
a `file`, `[model]` with a `name` and `[algorithm]` with a `name`. A complete, commented study is
[examples/digits.toml](../examples/digits.toml).

On the command line, `parley list` shows the choices and `parley list algorithms fedprox` the settings of one.
"""

KERNELS = """\
The kernel of `kernel-fedavg` and `kernel-fedprox`, and of Nystrom features as `[model.map.kernel]`; x and z are samples
as vectors. Without a name, RBF.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Above the first section\n", table(settings_of(General))]
    data = {s.name: s for s in [*own_settings("name"), *own_settings("file"), *own_settings("folder")]}
    parts += ["## [data]\n", f"{described('Which samples there are and who has them.')}\n", table(data.values())]
    parts += ["### Data sets and their options\n", "Options stand in `[data]` beside the name.\n"]
    about = ([f"`{name}`", datasets[name].title, ", ".join(map(_option, loader_settings(name)))] for name in datasets)
    parts.append(rows(("data set", "about", "options"), about))
    parts += ["## [data.partition]\n", choices(partitioners)]
    parts += ["## [model]\n", choices(models)]
    parts += ["## [model.map]\n", "The features of the model `features`.\n", choices(feature_maps)]
    parts += ["## [algorithm]\n", choices(algorithms, "local-update")]
    parts += ["## [algorithm.server]\n", "Without a name, the algorithm's own default class is kept.\n"]
    parts.append(choices(server_optimizers))
    parts += ["## [algorithm.schedule]\n", "How the step size changes with the rounds or steps taken.\n"]
    parts.append(choices(schedules))
    parts += ["## [algorithm.learner]\n", "The weak learner of `ffgb`; without a name, a tree.\n", choices(learners)]
    parts += ["## [algorithm.kernel]\n", KERNELS, choices(kernels)]
    for name, cls in SECTIONS.items():
        parts += [f"## [{name}]\n", f"{summary(cls)}\n", table(settings_of(cls))]
    parts += ["## [tune]\n", f"{summary(Tuning)}\n", table(settings_of(Tuning))]
    return "\n".join(parts)


def choices(registry: Registry[Any], family: str | None = None) -> str:
    """A paragraph and a table for each registered class; members of the family show only what they change."""
    head = registry[family] if family is not None else None
    common = {s.name: s for s in settings_of(head)} if head is not None else {}
    parts = []
    for name in registry:
        cls = registry[name]
        settings = settings_of(cls)
        member = head is not None and issubclass(cls, head) and cls is not head
        own = [s for s in settings if not member or not _same(s, common.get(s.name))]
        parts.append(f"### `{name}`\n\n{described(summary(cls))}\n")
        if own:
            parts.append(table(own))
        if len(own) < len(settings):
            others = "The other settings are" if own else "Its settings are"
            parts.append(f"{others} those of [`{family}`](#{family}).\n")
        elif not own:
            parts.append("It has no settings.\n")
    return "\n".join(parts)


def table(settings: Iterable[Setting]) -> str:
    return rows(
        ("setting", "type", "default", "meaning"),
        ([f"`{s.name}`", type_text(s.hint), _default(s), described(s.doc)] for s in settings),
    )


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
    if isinstance(value, dict) and "name" in value:
        inner = ", ".join(f"{key} = {json.dumps(field)}" for key, field in value.items() if key != "name")
        return f"`{value['name']}` ({inner})" if inner else f"`{value['name']}`"
    return "" if value is None or value == {} else f"`{json.dumps(value)}`"


def _option(setting: Setting) -> str:
    return f"`{setting.name}` ({type_text(setting.hint)}, {_default(setting)})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
