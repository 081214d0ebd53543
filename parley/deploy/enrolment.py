"""Enrolment: before the first round, who takes part and what they have. Nothing of it changes during the run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from parley.core.errors import ParleyError, WireError
from parley.core.failure import Failure
from parley.data import Federation
from parley.data.sources import Elsewhere
from parley.deploy import carrier as carrying
from parley.deploy.answering import invitation
from parley.deploy.carrier import Carrier
from parley.deploy.node_data import agreed, check_described
from parley.deploy.proposal import Proposal
from parley.engine.settings import Faults
from parley.runtimes.frame import unpack

_AGAIN, _RARELY = 5.0, 300.0
"""Seconds after which a node whose owner has not decided is asked again, at first and in the end."""
_PATIENCE = 60.0
"""Seconds for the answer to one invitation."""


def enrol(
    carrier: Carrier,
    run: str,
    proposal: Proposal,
    seconds: float,
    faults: Faults,
    note: Callable[[str], None],
    parties: Sequence[str] = (),
    decision: float = 0.0,
) -> dict[str, Any]:
    """Node -> what it has, of all that take part; waits `seconds` for answers, and `decision` for owners who have to
    decide, if that is longer.

    A ParleyError says who is missing if the study needs more. `parties`: those that the method asks.
    """
    enrolled: dict[str, Any] = {}
    reasons = dict.fromkeys(carrier.numbers, "is not connected.")
    final: set[str] = set()
    undecided: set[str] = set()
    asked: dict[str, float] = {}
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < (max(seconds, decision) if undecided else seconds):
        if len(final) == len(carrier.numbers):
            break
        pause = min(max(_AGAIN, waited / 20), _RARELY)
        for name in sorted(carrier.online() - final - carrier.waiting()):
            if time.monotonic() - asked.get(name, -1e9) >= pause:
                asked[name] = time.monotonic()
                carrier.send(name, invitation(name, run, proposal), _PATIENCE)
        for name, answer in carrier.received().items():
            what, answer_data = _read(name, answer)
            if what != "later":
                undecided.discard(name)
            elif not isinstance(answer, Failure):
                undecided.add(name)
            if what == "enrolled":
                enrolled[name] = answer_data
                what_for = (
                    f"as the {answer_data['party']}"
                    if "party" in answer_data
                    else f"with {answer_data['samples']} samples"
                )
                note(f"{name} enrolled {what_for}.")
            elif answer_data != reasons[name]:
                reasons[name] = answer_data
                note(f"{name} {answer_data}")
            if what in ("enrolled", "refused"):
                final.add(name)
        time.sleep(carrying.POLL)
    _check(enrolled, reasons, faults)
    for party in parties:
        _check_party(party, [name for name, answer_data in enrolled.items() if answer_data.get("party") == party])
    return {name: enrolled[name] for name in sorted(enrolled)}


def _read(name: str, answer: bytes | Failure) -> tuple[str, Any]:
    """(enrolled, what it has), (refused, why) for good, or (later, why)."""
    if isinstance(answer, Failure):
        return "later", answer.reason
    try:
        head, _ = unpack(answer)
        if head.get("kind") == "enrolled" and "party" in head:
            return "enrolled", {"party": str(head["party"])[:100]}
        if head.get("kind") == "enrolled":
            return "enrolled", check_described(head.get("data"))
    except WireError as error:
        return "refused", f"sent bytes that are no answer: {error}"
    reason = str(head.get("reason", "gave no reason."))[:500]
    return ("later" if head.get("kind") == "pending" else "refused"), reason


def _check(enrolled: Mapping[str, Any], reasons: Mapping[str, str], faults: Faults) -> None:
    missing = {name: reason for name, reason in reasons.items() if name not in enrolled}
    explained = " ".join(f"{name} {reason}" for name, reason in missing.items())
    for name in faults.require:
        if name not in enrolled:
            raise ParleyError(f"'{name}', which faults.require names, {reasons.get(name, 'is not registered.')}")
    least, count = max(1, faults.at_least or 1), len(clients_of(enrolled))
    if count < least:
        raise ParleyError(f"only {count} nodes enrolled of the {least} that are needed. {explained}".strip())


def _check_party(party: str, nodes: list[str]) -> None:
    if not nodes:
        raise ParleyError(
            f"no node enrolled as the {party}, whom this study needs: parley node init --party '{party}'."
        )
    if len(nodes) > 1:
        raise ParleyError(f"{' and '.join(nodes)} both enrolled as the {party}; revoke one of them.")


def clients_of(enrolled: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Those with data."""
    return {name: data for name, data in enrolled.items() if "party" not in data}


def parties_of(enrolled: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Party -> the node that it is."""
    return {data["party"]: name for name, data in enrolled.items() if "party" in data}


def federation_of(enrolled: Mapping[str, Mapping[str, Any]]) -> Federation:
    """The federation as the server knows it: sizes and schema, no samples."""
    enrolled = clients_of(enrolled)
    info, form = agreed(enrolled)
    digest = blake2b(json.dumps(enrolled, sort_keys=True).encode(), digest_size=16).hexdigest()
    counts = tuple(int(node["samples"]) for node in enrolled.values())
    tests = tuple(int(node["test_samples"]) for node in enrolled.values())
    held_out = Elsewhere(tests, form, digest) if any(tests) else None
    return Federation(info, tuple(enrolled), Elsewhere(counts, form, digest), held_out=held_out)
