"""What the report tells of clients: how they fare one by one, and who was missing; unnamed unless it was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parley.core.text import without_paths
from parley.report.groups import Group, lower_is_better
from parley.report.page.markup import chart, folded, section, table, text
from parley.report.page.numbers import show

_MOST_ABSENT = 30
_MOST_BEHIND = 12
_MOST_ROWS = 1200
"""Rows of the table of clients left behind."""


@dataclass(frozen=True)
class Names:
    """What clients are called: by their names, or by a number each, the same in all parts of a page."""

    shown: bool
    numbers: dict[str, int]

    @classmethod
    def of(cls, shown: bool, groups: Iterable[Group], others: Iterable[str] = ()) -> Names:
        """For the clients of these groups, and others."""
        every = set(others)
        for group in groups:
            every.update(item.client for item in group.clients)
            every.update(item.client for item in group.absences)
        return cls(shown, {client: number for number, client in enumerate(sorted(every, key=_natural), 1)})

    def call(self, client: str) -> str:
        return client if self.shown else f"client {self.numbers[client]}"

    def hide(self, words: str) -> str:
        """A sentence without paths and clients' names: in quotes, after the word client, or as words that are no
        numbers."""
        words = without_paths(words)
        mentioned = [] if self.shown else [client for client in self.numbers if client and client in words]
        if not mentioned:
            return words
        ways = []
        for client in sorted(mentioned, key=len, reverse=True):
            name = re.escape(client)
            ways += [rf"(?:\bclient )?'{name}'", rf"\bclient {name}(?!\w)"]
            if len(client) > 1 and not re.fullmatch(r"[\d.]+", client):
                ways.append(rf"(?<!\w){name}(?!\w)")
        return re.sub("|".join(ways), self._number, words)

    def _number(self, match: re.Match[str]) -> str:
        number, bare = match[0], match[0].removeprefix("client ")
        for client in (number, bare, bare.strip("'")):
            if client in self.numbers:
                return f"client {self.numbers[client]}"
        return "a client"


def _natural(name: str) -> list[tuple[int, str]]:
    """`client-9` before `client-10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def fairness(groups: Sequence[Group], names: Names) -> str:
    """How clients fare one by one, and who is left behind; those of all seeds together."""
    rows, behind = [], []
    behind_each = max(1, min(_MOST_BEHIND, _MOST_ROWS // len(groups)))
    several = any(len(group.runs) > 1 for group in groups)
    for group in groups:
        if not group.clients:
            continue
        metric = group.judged_by
        quantiles = group.quantiles((0, 0.1, 0.5, 0.9, 1))
        count = len({client.client for client in group.clients})
        last = max(run.judged.round for run in group.runs if run.judged is not None)
        seeds = (len(group.runs),) if several else ()
        rows.append((group.label, metric, last, count, *seeds, *(show(metric, v) for v in quantiles)))
        order = sorted(group.clients, key=lambda client: client.value, reverse=lower_is_better(metric))
        for client in order[: min(behind_each, max(1, len(order) // 10))]:
            seed = (client.seed,) if several else ()
            behind.append((group.label, names.call(client.client), *seed, show(metric, client.value)))
    if not rows:
        return ""
    heads = ("run", "metric", "round", "clients", *(("seeds",) if several else ()))
    heads += ("lowest", "10%", "median", "90%", "highest")
    together = ", all seeds together" if several else ""
    spread = table(
        heads,
        rows,
        caption=f"Clients on their own held-out samples{together}",
        numeric=range(2, len(heads)),
        stacked=True,
    )
    plot = chart(
        "clients",
        "Clients sorted by their value; the quantiles are in the table.",
        f"Clients sorted from the lowest to the highest value{together}.",
    )
    columns = ("run", "client", *(("seed",) if several else ()), "value")
    worst = folded(
        "Who is left behind: the worst tenth",
        table(columns, behind, caption="The worst tenth", numeric=range(2, len(columns))),
    )
    about = (
        "Clients are numbered, alike on the whole page; parley report --names shows their names. Where each seed "
        "partitions the data anew, a client's samples differ from seed to seed."
    )
    return section("clients-section", "Clients", plot, spread, worst, about="" if names.shown else about)


def roll_call(groups: Sequence[Group], names: Names) -> str:
    """Who was missing, how often and why."""
    rows, more = [], 0
    several = any(len(group.every) > 1 for group in groups)
    for group in groups:
        absences: dict[str, list[tuple[int, str]]] = {}
        for absence in group.absences:
            absences.setdefault(absence.client, []).append((absence.round, absence.reason))
        worst = sorted(absences, key=lambda client: -len(absences[client]))
        more += max(0, len(worst) - _MOST_ABSENT)
        for client in worst[:_MOST_ABSENT]:
            last, reason = max(absences[client], key=lambda absence: absence[0])
            rows.append((group.label, names.call(client), len(absences[client]), last, names.hide(reason)))
    unknown = [group for group in groups if not any(run.rounds for run in group.runs)]
    parts = []
    if unknown:
        which = "" if len(unknown) == len(groups) else f" of {', '.join(group.label for group in unknown)}"
        parts.append(f"<p>{text(f'No round{which} was finished.')}</p>")
    if rows:
        heads = ("run", "client", "replies missing", "last in round", "why, the last time")
        caption = "Replies that did not come, or could not be used" + (", of all seeds" if several else "")
        parts.append(table(heads, rows, caption=caption, numeric=(2, 3), stacked=True))
    elif len(unknown) < len(groups):
        parts.append(
            f"<p>Everybody who was asked answered, in every round{' that was finished' if unknown else ''}.</p>"
        )
    if more:
        parts.append(f"<p>and {more} others; parley runs export RUN missing.csv --failures writes all.</p>")
    return section("roll-call", "Roll-call", *parts)
