"""Studies from TOML files, from the command line and from stored runs, and back into files.

study = load_study("digits.toml", overrides=["algorithm.lr=0.05"])
study.federation(), study.model, study.algorithm, ...
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from parley.algorithms import algorithms
from parley.core import plugins
from parley.core.checks import shown
from parley.core.errors import InputError, ParleyWarning, nearest
from parley.core.fields import settings_of
from parley.models import models
from parley.study.channel_names import named_channel
from parley.study.data_section import data_from_table
from parley.study.opaque import is_opaque
from parley.study.sections import as_table, build, check, checked, choose
from parley.study.study import SECTIONS, General, Study
from parley.study.tuning_settings import Tuning
from parley.study.warm_start import Source, WarmStart, as_source

__all__ = ["SECTIONS", "General", "Study", "load_study", "study_from_dict", "to_toml"]

_OPTIONAL = ("privacy", "robust", "preprocessing")
"""Sections that a study without them does not have."""
_STORED = ("data_fingerprint", "plugin_digests")
"""What a stored run keeps besides its study."""
LARGEST = 2**20
"""Bytes a study file may have."""


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file; `overrides` are settings such as `algorithm.lr=0.05`, values as in TOML."""
    return study_from_dict(study_table(path, overrides), Path(path).parent)


def load_clients(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """The same for a question about the clients' samples, which needs no [algorithm]."""
    table = study_table(path, overrides)
    return study_from_dict({"algorithm": {"name": "statistics"}} | table, Path(path).parent)


def study_table(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What is written in a TOML file, with these settings put in; nothing is checked but the form."""
    path = Path(path)
    table = _parsed(_text(path), str(path))
    for override in overrides:
        _override(table, override)
    return table


def study_from_dict(table: Mapping[str, Any], base: Path | str | None = None) -> Study:
    """The study that a table describes; a relative data folder or plugin is looked for under `base` (default: here)."""
    settings = settings_of(General)
    known = [*[setting.name for setting in settings], "data", "model", "algorithm", *SECTIONS, "tune"]
    for key in table:
        if key not in known:
            raise InputError(f"a study has no section or setting '{key}': {nearest(str(key), known)}")
    for section, hint in (("data", "a data set's name or a folder"), ("algorithm", "a name")):
        if section not in table:
            raise InputError(f"the study has no section [{section}]; add one with {hint}.")
    for section in ("data", "model", "algorithm"):
        if is_opaque(table.get(section)):
            raise InputError(f"the {section} was made in Python and cannot be rebuilt from its description.")
    tuning_of(table)  # what `parley tune` would do says nothing about a run, but must be right
    folder = Path(base or Path.cwd())
    general = General(**checked(settings, {s.name: table[s.name] for s in settings if s.name in table}, "", "a study"))
    code = _Code(folder, general)
    made: dict[str, Any] = {
        name: build(cls, table.get(name, {}), name, f"[{name}]")
        for name, cls in SECTIONS.items()
        if name != "init_from" and (name in table or name not in _OPTIONAL)
    }
    data = dict(as_table(table["data"], "data"))
    if "partition" in data:
        data["partition"] = code.named(data["partition"])
    runtime = made["runtime"]
    method, named = choose(algorithms, code.named(table["algorithm"]), "algorithm"), table.get("model")
    if named is None and method.needs.network:
        raise InputError("the study has no section [model]; add one with a name.")
    return Study(
        algorithm=method,
        data=data_from_table(data, folder),
        model=None if named is None else choose(models, code.named(named), "model"),
        rounds=general.rounds,
        cohort=made["cohort"],
        seed=general.seed,
        loss=None if general.loss is None else code.name(general.loss),
        buffers=general.buffers,
        precision=general.precision,
        faults=made["faults"],
        evaluation=replace(made["evaluate"], metrics=tuple(map(code.name, made["evaluate"].metrics))),
        runtime=runtime.name,
        workers=runtime.workers,
        address=runtime.address,
        device=runtime.device,
        checkpoint=made["store"].checkpoint,
        channels=tuple(named_channel(code.name(text)) for text in made["channels"].up),
        privacy=made.get("privacy"),
        robust=made.get("robust"),
        preprocessing=made.get("preprocessing"),
        name=general.name or "",
        logging=made["logging"],
        plugins=tuple(code.files),
        observers=tuple(map(code.name, general.listeners)),
        revision=general.revision,
        data_fingerprint=general.data_fingerprint,
        init_from=_start(table["init_from"], code) if "init_from" in table else None,
    )


def to_toml(resolved: Mapping[str, Any]) -> str | None:
    """The study file of a resolved study or a stored run's configuration; None if parts of it only Python can make."""
    if any(is_opaque(value) for value in resolved.values()):
        return None
    kept = {key: value for key, value in resolved.items() if key not in _STORED}
    method = kept.get("algorithm")
    if isinstance(method, Mapping) and method.get("batch", 0) is None:  # left out, it would mean the usual batches
        kept["algorithm"] = {**method, "batch": 0}
    return tomli_w.dumps(_without_none(kept))


def _without_none(value: Any) -> Any:
    """TOML has no word for None: such settings are left out."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def tuning_of(table: Mapping[str, Any]) -> Tuning:
    """The section [tune] of a study's table."""
    return build(Tuning, table.get("tune", {}), "tune", "[tune]")


def _start(given: Any, code: _Code) -> Source | None:
    """`init_from`, a run or a file in one word, or the section of that name."""
    if not isinstance(given, Mapping):
        start = as_source(check(str, given, "init_from"))
    elif is_opaque(given):
        raise InputError("the weights of init_from were given in Python and cannot be rebuilt from their description.")
    else:
        table = {**given, "algorithm": code.named(given["algorithm"])} if "algorithm" in given else given
        start = build(WarmStart, table, "init_from", "[init_from]")
    return start.beside(code.base) if isinstance(start, WarmStart) else start


class _Code:
    """The files of the user's own that a study names; each is loaded when it is met."""

    def __init__(self, base: Path, general: General) -> None:
        self.base, self.files = base, dict.fromkeys(str(plugins.load(file, base).__file__) for file in general.plugins)
        known = general.plugin_digests
        if self.files and known and [plugins.digest_of(file) for file in self.files] != list(known):
            warnings.warn(
                f"the code of {', '.join(self.files)} has changed since this study was stored.",
                ParleyWarning,
                stacklevel=4,
            )

    def name(self, name: str) -> str:
        """The same name; that of a thing in a file with the whole path."""
        if not plugins.is_file_name(name):
            return name
        full = plugins.beside(name, self.base)
        self.files[full.rpartition(":")[0]] = None
        return full

    def named(self, table: Any) -> Any:
        """A section whose `name` may be that of a thing in a file."""
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            return table
        return {**table, "name": self.name(table["name"])}


def _text(path: Path) -> str:
    """What is in a study file; a pipe or a device would never end."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"the study file {path} cannot be read: it is not a file.")
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path} has more than {LARGEST // 2**20} MB, which no study has.")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no study file {path}.") from None
    except OSError as error:
        raise InputError(f"the study file {shown(str(path))} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"the study file {path} cannot be read: it is not UTF-8 text.") from None
    except ValueError:
        raise InputError("the study file's path contains the character NUL.") from None


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not valid TOML: {str(error).rstrip('.')}.") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        raise InputError(f"{where} is not valid TOML: {reason}.") from None


def _override(table: dict[str, Any], text: str) -> None:
    """Put `section.setting=value` into the table."""
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InputError(f"{shown(text)} is not of the form section.setting=value, such as algorithm.lr=0.05.")
    for depth, key in enumerate(keys[:-1], 1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(f"{shown(text)} cannot be set: {'.'.join(keys[:depth])} is not a section.")
    try:
        table[keys[-1]] = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        table[keys[-1]] = value.strip()
    except (ValueError, RecursionError):
        raise InputError(f"{'.'.join(keys)} cannot be {shown(value)}: too many digits, or nested too deeply.") from None
