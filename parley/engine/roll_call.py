"""Who never contributed to a run, from its records: a run that went on without someone says so at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parley.store.records import RoundRecord

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
    return [Silent(client, *found) for (client, _), found in failed.items()]


def named(found: Sequence[Silent]) -> str:
    """Who they are and why, the first of them by name."""
    each = [f"'{one.client}' ({one.rounds} {_rounds(one.rounds)}: {one.reason.rstrip('.')})" for one in found[:_NAMED]]
    return ", ".join(each) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")


def sentence(found: Sequence[Silent]) -> str:
    who = "1 client" if len(found) == 1 else f"{len(found)} clients"
    return f"{who} never contributed: {named(found)}."


def _rounds(count: int) -> str:
    return "round" if count == 1 else "rounds"


def _failures(record: RoundRecord) -> dict[tuple[str, bool], str]:
    """(client, whether in evaluation) -> why."""
    return {(f.client, f.reason.startswith(UNEVALUATED)): f.reason for f in record.failures}


def _took_part(record: RoundRecord, client: str, evaluation: bool) -> bool:
    names = ("clients/loss", "central/loss") if evaluation else ("down/bytes",)
    return any(client in record.metrics[name].clients for name in names if name in record.metrics)
