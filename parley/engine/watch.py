"""Following runs that other processes train, from the store alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live

from parley.engine.progress import UPDATES, Progress
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunInfo, RunStore

POLL = 0.5
"""Seconds between two looks at the store."""
GRACE = 5.0
"""Seconds in which the next of several seeds may begin."""
_SHOWN = (
    "central/accuracy", "central/loss", "clients/accuracy", "clients/loss", "up/bytes", "cohort", "privacy/epsilon",
)  # fmt: skip


@dataclass
class Watched:
    """One run and how far it was seen."""

    info: RunInfo
    progress: Progress
    seen: int = -1
    over: bool = False

    def look(self, store: RunStore) -> bool:
        """Take in the rounds since; True if something is new."""
        info = store.info(self.info.id)
        fresh = info.rounds > self.seen or (self.seen < 0 and info.rounds == 0)
        if fresh:
            self._take(store)
        if info.status != "running" and not self.over:
            self.over = True
            self.progress.ended(info.status)
            return True
        return fresh

    def _take(self, store: RunStore) -> None:
        found: dict[int, dict[str, Metric]] = {}
        for name, (rounds, values) in store.curves(self.info.id, _SHOWN).items():
            for number, value in zip(rounds.tolist(), values.tolist(), strict=True):
                if number > self.seen:
                    found.setdefault(number, {})[name] = Metric(value)
        records = [RoundRecord(number, found[number]) for number in sorted(found)]
        if self.seen < 0:
            self.progress.begin(self.info.name, int(self.info.config.get("rounds", 1)), records)
        else:
            for record in records:
                self.progress.figures.add(record)
        self.progress.figures.failures = len(store.failures(self.info.id))
        self.seen = max(found, default=self.seen)


@dataclass
class Watch:
    """All runs that are going on, or the one that is named."""

    store: RunStore
    console: Console
    run: str | None = None
    """None follows whatever is running, and what begins within a few seconds of an end."""
    runs: dict[str, Watched] = field(default_factory=dict)

    def follow(self, limit: float | None = None) -> list[Watched]:
        """Show them until the last one ends, or for so many seconds; gives what was seen."""
        if not self.console.is_terminal:
            self._follow(limit)
            return list(self.runs.values())
        with Live(get_renderable=self._drawn, console=self.console, refresh_per_second=UPDATES) as live:
            self._follow(limit)
            live.refresh()
        return list(self.runs.values())

    def _follow(self, limit: float | None) -> None:
        begin = quiet_since = time.monotonic()
        while True:
            for info in self._wanted():
                if info.id not in self.runs:
                    self.runs[info.id] = Watched(info, Progress(self.console))
            for one in self.runs.values():
                if not one.over:
                    changed = one.look(self.store)
                    if not self.console.is_terminal and changed:
                        one.progress.say() if one.over else one.progress.say_now_and_then()
            now = time.monotonic()
            if any(not one.over for one in self.runs.values()):
                quiet_since = now
            elif self.run is not None or not self.runs or now - quiet_since > GRACE:
                return
            if limit is not None and now - begin > limit:
                return
            time.sleep(POLL)

    def _wanted(self) -> list[RunInfo]:
        if self.run is not None:
            return [self.store.info(self.run)] if not self.runs else []
        return [info for info in self.store.runs() if info.status == "running"]

    def _drawn(self) -> Group:
        return Group(*(one.progress.drawn() for one in list(self.runs.values())[-12:]))
