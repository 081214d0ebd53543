"""Whom a deployed study was proposed to, and whose owners approved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.report.groups import Group
from parley.report.page.clients import Names
from parley.report.page.markup import section, table, text
from parley.store.runs import RunStore

Consents = Sequence[tuple[str, Mapping[str, Any]]]
"""Run -> what its server knows of consent, of the deployed runs alone."""


def consents(store: RunStore, groups: Sequence[Group]) -> Consents:
    """Those of the runs in these groups that were deployed."""
    known = ((run.id, store.attached(run.id, "consent")) for group in groups for run in group.every if run.id)
    return [(run, facts) for run, facts in known if facts and isinstance(facts.get("nodes"), dict)]


def consent(known: Consents, names: Names) -> str:
    """A table per deployed run: its nodes, their keys, and what they took part with."""
    parts = []
    for run, facts in known:
        rows = [
            (names.call(name), _part(node), node.get("samples"), node.get("test_samples"))
            + ((node.get("key"),) if names.shown else ())
            for name, node in facts["nodes"].items()
        ]
        read = ", ".join(facts.get("discloses", ())) or "nothing but what the method's sums and means imply"
        sentence = f"{run}: owners approved study {str(facts.get('study'))[:12]}. Read off clients' replies: {read}."
        heads = ("node", "took part", "samples", "held out") + (("fingerprint of its key",) if names.shown else ())
        parts += [
            f"<p>{text(sentence)}</p>",
            table(heads, rows, caption=f"Nodes of {run}", numeric=(2, 3), stacked=True),
        ]
    about = (
        "A node enrols only after its owner, or the policy its owner wrote, has approved the study. What it answered "
        "since stands in its own log: parley node log."
    )
    return section("consent", "Nodes and consent", *parts, about=about)


def _part(node: Mapping[str, Any]) -> str:
    if "party" in node:
        return f"as the {node['party']}"
    return "with its data" if "samples" in node else "no"
