"""Who is missing in a run, from its records: who never contributed, and over how many clients a mean is taken."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parley.core.text import without_paths
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.store.tables import Absence, absences

UNEVALUATED = "could not be evaluated: "
"""How the reason of a client begins that was left out of an evaluation."""
_NAMED = 10
"""Clients that are named; the records have all of them."""


@dataclass(frozen=True)
class Silent:
    """A client that failed in every round in which it was asked."""

    client: str
    rounds: int
    reason: str
    """Of the last time; the end of a sentence that begins with the client."""


def unevaluated(record: RoundRecord, metric: str) -> list[str]:
    """The clients that a mean over clients lacks because they could not be evaluated; none where it is no such mean."""
    pooled = metric.startswith("pooled/") and metric in record.metrics
    value = record.metrics.get("clients/loss" if pooled else metric)
    if value is None or not value.clients or not is_result(metric):
        return []
    return [f.client for f in record.failures if f.reason.startswith(UNEVALUATED) and f.client not in value.clients]


def coverage(values: Mapping[str, float], missing: Collection[str] = ()) -> str:
    """`3 of 5`: of how many of the clients that should have one there is a value; empty where it is all of them."""
    known = sum(not math.isnan(value) for value in values.values())
    every = len(values) + len(set(missing) - values.keys())
    return "" if known == every else f"{known} of {every}"


def over_clients(words: str) -> str:
    """What stands behind a mean over clients of whom some have no value: ` (3 of 5 clients)`; empty for empty words."""
    return f" ({words} clients)" if words else ""


def coverages(records: Sequence[RoundRecord]) -> dict[str, str]:
    """The means over clients that lack some the last time they were measured, with how many they are over."""
    latest = {name: record for record in records for name in record.metrics if is_result(name)}
    words_by_name = {name: coverage(r.metrics[name].clients, unevaluated(r, name)) for name, r in latest.items()}
    return {name: words for name, words in words_by_name.items() if words}


def stored_coverages(store: RunStore, run: str, metrics: Sequence[str], absences: Sequence[Absence]) -> dict[str, str]:
    """The same of a stored run, whose metrics and absences are these; only what may lack clients is read."""
    lost: dict[int, list[str]] = {}
    for absence in absences:
        if absence.reason.startswith(UNEVALUATED):
            lost.setdefault(absence.round, []).append(absence.client)
    coverages = {}
    for name in filter(is_result, metrics):
        if (lost or f"{name}/clients" in metrics) and (last := store.last_clients(run, name)) is not None:
            coverages[name] = coverage(last[1], lost.get(last[0], ()))
    return {name: words for name, words in coverages.items() if words}


def is_result(metric: str) -> bool:
    """Whether it is what a model is judged by on samples: `central/auc`, but not `clients/auc/clients`."""
    where, _, name = metric.partition("/")
    return where in ("central", "clients", "pooled") and bool(name) and "/" not in name


def silent(records: Sequence[RoundRecord]) -> list[Silent]:
    """The clients that were asked and never answered, and those that could never be evaluated, in order of failing."""
    failed: dict[tuple[str, bool], tuple[int, str]] = {}
    for record in records:
        for key, reason in _failures(record).items():
            failed[key] = (failed.get(key, (0, ""))[0] + 1, reason)
    for record in records if failed else ():
        out = _failures(record)
        for key in [key for key in failed if key not in out and _took_part(record, *key)]:
            del failed[key]
    return [Silent(client, *values) for (client, _), values in failed.items()]


def named(clients: Sequence[Silent]) -> str:
    """Who they are and why, the first of them by name."""
    each = [
        f"'{client.client}' ({client.rounds} {_rounds(client.rounds)}: {client.reason.rstrip('.')})"
        for client in clients[:_NAMED]
    ]
    return ", ".join(each) + (f" and {len(clients) - _NAMED} more" if len(clients) > _NAMED else "")


def sentence(clients: Sequence[Silent]) -> str:
    who = "1 client" if len(clients) == 1 else f"{len(clients)} clients"
    return f"{who} never contributed: {named(clients)}."


def _rounds(count: int) -> str:
    return "round" if count == 1 else "rounds"


def _failures(record: RoundRecord) -> dict[tuple[str, bool], str]:
    """(client, whether in evaluation) -> why."""
    return {(f.client, f.reason.startswith(UNEVALUATED)): f.reason for f in record.failures}


def _took_part(record: RoundRecord, client: str, evaluation: bool) -> bool:
    names = ("clients/loss", "central/loss") if evaluation else ("down/bytes",)
    return any(client in record.metrics[name].clients for name in names if name in record.metrics)


def left_out(records: Sequence[RoundRecord]) -> dict[str, dict[str, Any]]:
    """Client -> the rounds that went on without it, and why it was missing the last time."""
    missing: dict[str, dict[str, Any]] = {}
    for absence in absences(records):
        entry = missing.setdefault(absence.client, {"rounds": []})
        entry["rounds"].append(absence.round)
        entry["reason"] = without_paths(absence.reason)
    return missing
