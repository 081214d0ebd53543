"""What differs between two resolved studies, and which differences a run may be resumed with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parley.core.checks import shown
from parley.core.errors import InputError, ParleyWarning
from parley.study.opaque import MARK

FREE = (
    "name",
    "rounds",
    "runtime",
    "store",
    "logging",
    "listeners",
    "faults.quorum",
    "faults.deadline",
    "faults.at_least",
    "faults.require",
    "evaluate.target",
    "evaluate.patience",
    "evaluate.min_delta",
    "init_from.store",
    "init_from.digest",
)
"""What may change while a run goes on: how it is carried out and when it ends, never what a round gives."""
_ENDING = ("rounds", "evaluate.target", "evaluate.patience", "evaluate.min_delta")
"""Of these, what decides with which round a run ends."""
_OPTIONAL = ("privacy", "robust", "preprocessing", "init_from")
"""Sections without which a study is another one."""
_MISSING = object()


@dataclass(frozen=True)
class Difference:
    """One setting that two studies do not share; None stands for one that a study does not have."""

    setting: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.setting} = {shown(self.first)}, not {shown(self.second)}"


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """The settings in which two resolved studies (`Study.resolved()`, `RunInfo.config`) differ, by dotted name.

    >>> [str(one) for one in difference({"seed": 0, "algorithm": {"lr": 0.1}}, {"seed": 0, "algorithm": {"lr": 0.2}})]
    ['algorithm.lr = 0.1, not 0.2']
    """
    return list(_walk(first, second, ""))


def essential(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved study without what may change while a run goes on."""
    kept = {key: value for key, value in resolved.items() if key not in FREE and key != "data_fingerprint"}
    for name in FREE:
        section, dot, setting = name.partition(".")
        if dot and isinstance(kept.get(section), Mapping):
            kept[section] = {key: value for key, value in kept[section].items() if key != setting}
    return kept


def ending(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What decides with which round a resolved study ends, by dotted name."""
    return {name: None if (value := _at(resolved, name)) is _MISSING else value for name in _ENDING}


def check_resumable(run: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was started with something else, naming the first difference."""
    if not stored:
        warnings.warn(
            f"run '{run}' was stored without a description; it cannot be checked that it goes on as it was started.",
            ParleyWarning,
            stacklevel=3,
        )
    before, after = essential(stored), essential(now)
    # What an older version did not know yet cannot be compared.
    differences = [
        change
        for change in difference(before, after)
        if _known(before, change.setting) or change.setting.endswith(".name") or change.setting in _OPTIONAL
    ]
    if differences:
        first = differences[0]
        if (file := _changed_file(first, stored, now)) is not None:
            raise InputError(f"{_changed(file, run)}; start a new run.")
        what = (
            f"another object as {first.setting.rpartition('.')[0]}"
            if first.setting.endswith(".digest")
            else f"{first.setting} = {shown(first.first)}, which is {shown(first.second)} now"
        )
        raise InputError(f"run '{run}' was started with {what}; resume it as it was, or start a new run.")
    data, here = stored.get("data_fingerprint"), now.get("data_fingerprint")
    if data is not None and here is not None and data != here:
        raise InputError(
            f"run '{run}' was started with other data (their fingerprint was {data[:12]}, now it is {here[:12]}); "
            "go on with what it was, or start a new run."
        )


def _changed_file(change: Difference, stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The file of the user's own code whose content is what two studies with the same files differ in."""
    files = now.get("plugins") or []
    if change.setting != "plugin_digests" or list(stored.get("plugins") or []) != list(files):
        return None
    digests = zip(files, change.first or [], change.second or [], strict=False)
    return next((str(file) for file, before, after in digests if before != after), None)


def why_not(run: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """In what a run differs from a study, for a sentence; None if it could go on."""
    differing = difference(essential(stored), essential(now))
    if not differing:
        return None
    file = _changed_file(differing[0], stored, now)
    return (
        f"run '{run}' differs in {differing[0]}"
        if file is None
        else f"{_changed(file, run)}: start it without --resume"
    )


def _changed(file: str, run: str) -> str:
    return f"the file {file} has changed since run '{run}' was started, and no run goes on with other code"


def _known(table: Any, setting: str) -> bool:
    return _at(table, setting) is not _MISSING


def _at(table: Any, setting: str) -> Any:
    for key in setting.split("."):
        if not isinstance(table, Mapping) or key not in table:
            return _MISSING
        table = table[key]
    return table


def _walk(first: Any, second: Any, path: str) -> Iterator[Difference]:
    if isinstance(first, Mapping) and isinstance(second, Mapping) and (first or second):
        names = [table.get("name", table.get(MARK)) for table in (first, second)]
        if path and names[0] != names[1]:
            # Another method or model: its settings are others too, and say nothing.
            yield Difference(f"{path}.name", *names)
            return
        for key in dict.fromkeys([*first, *second]):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(first.get(key, _MISSING), second.get(key, _MISSING), below)
    elif isinstance(first, tuple | list) and isinstance(second, tuple | list):
        if list(first) != list(second):
            yield Difference(path, first, second)
    elif first is _MISSING or second is _MISSING or first != second:
        yield Difference(path, None if first is _MISSING else first, None if second is _MISSING else second)
