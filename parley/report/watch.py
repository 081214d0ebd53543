"""Following runs that other processes train, from the store alone."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from parley.core.errors import InputError
from parley.display.progress import UPDATES, Progress
from parley.engine.stopping import Headline, headline_of
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunInfo, RunStore

POLL = 0.5
"""Seconds between two looks at the store."""
GRACE = 5.0
"""Seconds in which the next of several seeds may begin."""
_SHOWN = (
    "central/accuracy",
    "central/loss",
    "clients/accuracy",
    "clients/loss",
    "up/bytes",
    "cohort",
    "privacy/epsilon",
    "seconds",
    "evaluate/seconds",
)


class StoredProgress(Progress):
    """Shows a run by what is stored of it: its pace and duration are those of its rounds, whoever watches since when.

    Its name is the run's id, and its seed stands before the figures, so that runs of one study can be told apart.
    """

    def __init__(self, console: Console, info: RunInfo) -> None:
        super().__init__(console)
        self.info, self.stands = info, ""
        self.begin(info.id, int(info.config.get("rounds", 1)), [])

    def parts(self) -> list[str]:
        seed = self.info.config.get("seed")
        return [*([] if seed is None else [f"seed {seed}"]), *super().parts()]

    def spent(self) -> tuple[float, int]:
        waited = max(0.0, time.time() - self.info.created.timestamp())
        running = self._status == "running" and self.figures.round == 0
        return waited if running else self.figures.seconds, self.figures.round

    def say(self) -> None:
        """A line about how the run stands, unless the last one said the same."""
        if (stands := repr((self._status, self.figures))) != self.stands:
            self.stands = stands
            super().say()


@dataclass(eq=False)
class Watched:
    """One run and how far it was seen."""

    info: RunInfo
    progress: StoredProgress
    seen: int = -1
    over: bool = False
    judged: list[Headline] = field(init=False)
    """What the run may be judged by, if its study says so: which of them it is, the records tell."""

    def __post_init__(self) -> None:
        self.judged = _headlines(self.info)

    def look(self, store: RunStore) -> bool:
        """Take in the rounds since; True if something is new."""
        info = store.info(self.info.id)
        fresh = info.rounds > self.seen
        if fresh:
            self._take(store)
        if info.status != "running" and not self.over:
            self.over = True
            self.progress.ended(info.status)
            return True
        return fresh

    def _take(self, store: RunStore) -> None:
        metrics_by_round: dict[int, dict[str, Metric]] = {}
        figures, wanted = self.progress.figures, (*_SHOWN, *(headline.name for headline in self.judged))
        for name, (rounds, values) in store.curves(self.info.id, wanted).items():
            for number, value in zip(rounds.tolist(), values.tolist(), strict=True):
                if number > self.seen:
                    metrics_by_round.setdefault(number, {})[name] = Metric(value)
        recorded = {name for metrics in metrics_by_round.values() for name in metrics}
        figures.headline = figures.headline or next(
            (headline for headline in self.judged if headline.name in recorded), None
        )
        for number in sorted(metrics_by_round):
            figures.add(RoundRecord(number, metrics_by_round[number]))
        figures.failures = len(store.failures(self.info.id))
        self.seen = max(metrics_by_round, default=self.seen)


def _headlines(info: RunInfo) -> list[Headline]:
    wanted = info.headline or headline_of([info.config])
    if not wanted:
        return []
    names = [wanted] if "/" in wanted else [f"central/{wanted}", f"clients/{wanted}"]
    return [Headline.judged(name, (info.config.get("evaluate") or {}).get("headline")) for name in names]


@dataclass
class Watch:
    """All runs that are going on, or the one that is named."""

    store: RunStore
    console: Console
    run: str | None = None
    """None follows whatever is running, and what begins within a few seconds of an end."""
    runs: dict[str, Watched] = field(default_factory=dict)

    def follow(self, limit: float | None = None) -> list[Watched]:
        """Show them until the last one ends, or for so many seconds; gives what was seen.

        Where the output is not a terminal: a line for each at once, now and then, and at the end.
        """
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise InputError(f"the seconds to watch must be a finite number, 0 or more, not {limit:g}.")
        if not self.console.is_terminal:
            self._follow(limit)
            for watched in self.runs.values():
                watched.progress.say()
            return list(self.runs.values())
        with Live(get_renderable=self.drawn, console=self.console, refresh_per_second=UPDATES) as live:
            self._follow(limit)
            live.refresh()
        return list(self.runs.values())

    def _follow(self, limit: float | None) -> None:
        begin = quiet_since = time.monotonic()
        while True:
            for info in self._wanted():
                if info.id not in self.runs or self.runs[info.id].over:
                    self.runs[info.id] = Watched(info, StoredProgress(self.console, info))
            for watched in self.runs.values():
                if not watched.over:
                    first, changed = not watched.progress.stands, watched.look(self.store)
                    if not self.console.is_terminal and changed:
                        watched.progress.say() if first or watched.over else watched.progress.say_now_and_then()
            now = time.monotonic()
            if any(not watched.over for watched in self.runs.values()):
                quiet_since = now
            elif self.run is not None or not self.runs or now - quiet_since > GRACE:
                return
            if limit is not None and now - begin >= limit:
                return
            time.sleep(POLL if limit is None else min(POLL, limit - (now - begin)))

    def _wanted(self) -> list[RunInfo]:
        if self.run is not None:
            return [self.store.info(self.run)] if not self.runs else []
        return [info for info in self.store.runs() if info.status == "running"]

    def drawn(self) -> RenderableType:
        """As many of the runs as there is room for, those that are going on first, and how many more there are."""
        runs = list(self.runs.values())
        room = max(1, (self.console.height - 2) // 2)
        if len(runs) > room:
            shown = sorted(runs, key=lambda run: run.over)[:room]
            runs = [run for run in runs if run in shown]
        hidden = len(self.runs) - len(runs)
        more = f"and {hidden} more {'run' if hidden == 1 else 'runs'}; there is no room for them here"
        return Group(*(run.progress.drawn() for run in runs), *([Text(more, style="dim")] if hidden else []))
