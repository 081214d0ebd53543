"""Do runs belong side by side? What is said of groups with different data, losses, metrics or clients measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parley.core.text import printable
from parley.report.groups import Group

_MOST_NAMED = 5
_DEALING = (
    "seed",
    "partition",
    "clients",
    "client",
    "test_fraction",
    "public_fraction",
    "public",
    "standardise",
    "missing",
    "dtype",
    "verify",
)
"""Settings of [data] that say who has which samples, and in what form; the samples are the same."""


_FORM = ("standardise", "missing", "dtype", "verify", "categories", "dates")
"""Settings of [data] that say in what form samples are, as [preprocessing] does."""


def same_data(first_config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configurations have the same samples at the same clients, by fingerprint; by description where one
    has none, or where the same files are preprocessed differently, which changes the fingerprint."""
    (ours, our_form), (theirs, their_form) = (_data_in_form(config) for config in (first_config, other))
    if ours and theirs and our_form != their_form:
        return bool(ours == theirs and first_config.get("seed") == other.get("seed"))
    for key in ("data_fingerprint", "data"):
        first, second = first_config.get(key), other.get(key)
        if first is not None and second is not None:
            return bool(first == second)
    return True


def _data_in_form(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """What [data] says of samples from a set or a file, and in what form they are; nothing of data made in Python."""
    data = config.get("data")
    if not isinstance(data, Mapping) or not any(data.get(key) for key in ("name", "folder", "file")):
        return {}, None
    form = {key: data.get(key) for key in _FORM}
    return {key: value for key, value in data.items() if key not in _FORM}, (form, config.get("preprocessing"))


def warnings(groups: Sequence[Group], metric: str) -> list[str]:
    """What speaks against reading the groups' numbers side by side, as sentences."""
    sentences = (data_words(groups), loss_words(groups, metric), coverage_words(groups, metric))
    return [sentence for sentence in sentences if sentence]


def data_words(groups: Sequence[Group]) -> str:
    """Which groups have which data set, as a sentence; empty where nothing says that they differ.

    Other seeds and partitions are the same data set, dealt to clients differently.
    """
    classes: list[list[_Data]] = []
    for data in map(_Data.of, groups):
        matching = next((alike for alike in classes if not any(data.differs(other) for other in alike)), None)
        if matching is None:
            classes.append([data])
        else:
            matching.append(data)
    if len(classes) < 2:
        return ""
    listed = [f"{_named([data.group for data in alike])}{alike[0].title}" for alike in classes]
    return f"Different data, so their numbers cannot be compared: {_listed(listed, '; ')}."


def loss_words(groups: Sequence[Group], metric: str) -> str:
    """Which groups have which loss, as a sentence, where they are compared by loss and it is not the same function."""
    if metric.rpartition("/")[2] != "loss":
        return ""
    losses: dict[str, list[Group]] = {}
    for group in groups:
        loss = group.config.get("loss")
        name = loss.get("python") if isinstance(loss, Mapping) else loss
        if name is not None:
            losses.setdefault(str(name), []).append(group)
    if len(losses) < 2:
        return ""
    listed = [f"{printable(loss)} ({_named(labels)})" for loss, labels in losses.items()]
    return f"Their losses are different functions, which cannot be compared: {_listed(listed, '; ')}."


def coverage_words(groups: Sequence[Group], metric: str) -> str:
    """Over how many of their clients the groups' means are, as a sentence; empty where everybody has a value."""
    over: dict[str, list[Group]] = {}
    for group in groups:
        if words := group.coverage(metric):
            over.setdefault(words, []).append(group)
    if not over:
        return ""
    listed = [f"means over {words} clients ({_named(labels)})" for words, labels in over.items()]
    return f"{printable(metric)}: {_listed(listed, '; ')}; the other clients have no value."


def metric_words(groups: Sequence[Group], measured: Sequence[Iterable[str]], metric: str, usual: Iterable[str]) -> str:
    """Why groups are not compared by the first of the `usual` metrics that half of them have: which do not."""
    count = Counter(name for names in measured for name in set(names))
    most = next((name for name in usual if 2 * count[name] >= len(groups)), metric)
    without = [group for group, names in zip(groups, measured, strict=True) if most not in set(names)]
    if most == metric or not without:
        return ""
    return f"By {metric}, since {most} was not measured in {_named(without)}."


@dataclass(frozen=True)
class _Data:
    """What is known of a group's data."""

    group: Group
    prints: Mapping[int | None, object]
    """Of the runs' data, by seed: the fingerprints, else the descriptions."""
    samples: str
    """What [data] says of the samples themselves; empty where it says nothing, as of data made in Python."""
    title: str
    """` (digits)`."""

    @classmethod
    def of(cls, group: Group) -> _Data:
        prints = {run.seed: run.config.get("data_fingerprint") or run.config.get("data") for run in group.runs}
        known = {seed: fingerprint for seed, fingerprint in prints.items() if fingerprint is not None}
        data = group.config.get("data")
        section = data if isinstance(data, Mapping) else {}
        name = str(section.get("name") or section.get("folder") or section.get("file") or "")
        if not isinstance(data, Mapping) or not name:
            return cls(group, known, "", "")
        shown = {key: value for key, value in data.items() if key not in _DEALING}
        title = printable(name.rstrip("/").rpartition("/")[2])
        return cls(group, known, json.dumps(shown, sort_keys=True, default=str), f" ({title})")

    def differs(self, other: _Data) -> bool:
        """Whether something says that these are other samples."""
        if self.samples and other.samples:
            return self.samples != other.samples
        # Of data made in Python another seed may have dealt the same samples anew; the same seed has not.
        both = [(fingerprint, other.prints[seed]) for seed, fingerprint in self.prints.items() if seed in other.prints]
        return bool(both) and all(ours != theirs for ours, theirs in both)


def _named(groups: Sequence[Group]) -> str:
    return _listed([printable(group.label) for group in groups])


def _listed(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return between.join(names[:_MOST_NAMED]) + more
