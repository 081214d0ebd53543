"""What is advised, and why: a recommendation per decision, the study that follows from them, and what stays unknown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from parley.advise.gain.result import Gains
from parley.advise.plan.choose import Goal, Ranked
from parley.advise.plan.measure import Measured
from parley.advise.plan.pilot import Pilot
from parley.core.errors import InputError
from parley.core.show import as_html
from parley.core.text import shown
from parley.engine.settings import Evaluation
from parley.study.sections import plain
from parley.study.study import Study
from parley.study.toml import to_toml

_SHOWN = {("algorithm", each) for each in ("name", "lr", "steps", "epochs", "batch")}
"""Settings of a method that are written even if they are its defaults."""


@dataclass(frozen=True)
class Recommendation:
    """One decision."""

    what: str
    value: str
    reason: str
    formula: str = ""
    """What it was computed from; empty where it rests on no formula."""


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """Everything that `parley advise` says."""

    study: Study
    """The study that was asked about."""
    best: Study
    """The study that is advised; `train` takes it."""
    goal: Goal
    measured: Measured
    recommendations: tuple[Recommendation, ...]
    ranked: tuple[Ranked, ...]
    """The advised candidate and the next best ones, as forecast; empty where nothing could be forecast."""
    unknown: tuple[str, ...]
    """What could not be estimated, one sentence each."""
    gains: Gains | None = None
    pilot: Pilot | None = None
    first: Ranked | None = None
    """What the forecast alone advises; with a pilot it may not be what is advised."""

    def __repr__(self) -> str:
        advised = ", ".join(f"{recommendation.what} {recommendation.value}" for recommendation in self.recommendations)
        return f"<Advice for {self.budget()}: {shown(advised, 400)}>"

    def _repr_html_(self) -> str:
        rows = [
            (recommendation.what, recommendation.value, recommendation.reason)
            for recommendation in self.recommendations
        ]
        return as_html(f"Advice for {self.budget()}", rows, ("decision", "advised", "why"), self.unknown)

    def toml(self) -> str:
        """The advised study as a file for `parley run`."""
        text = to_toml(self.best.resolved())
        if text is None:
            raise InputError(
                "parts of this study were made in Python and cannot be written to a file; train advice.best."
            )
        return f"# Advised by parley advise for {self.budget()}.\n{text}"

    def lines(self) -> str:
        """The sections of `toml` that differ from the study's, without what is at its default; rounds, method and
        channels always."""
        after, before = self.best.resolved(), self.study.resolved()
        usual = {"algorithm": plain(type(self.best.algorithm)()), "evaluate": plain(Evaluation())}
        parts: dict[str, Any] = {}
        for name in ("rounds", "model", "algorithm", "channels", "evaluate"):
            if name in ("model", "evaluate") and after[name] == before[name]:
                continue
            parts[name] = after[name]
            if isinstance(default := usual.get(name), dict) and isinstance(after[name], dict):
                parts[name] = {k: v for k, v in after[name].items() if v != default.get(k) or (name, k) in _SHOWN}
        return to_toml(parts) or ""

    def budget(self) -> str:
        """What it is advised for, in words."""
        named = [] if self.goal.megabytes is None else [f"{self.goal.megabytes:g} MB"]
        named += [] if self.goal.rounds is None else [f"{self.goal.rounds:,} rounds"]
        return " and ".join(named)

    def named(self, what: str) -> Recommendation:
        """The recommendation about something."""
        recommendation = next((each for each in self.recommendations if each.what == what), None)
        if recommendation is None:
            known = ", ".join(each.what for each in self.recommendations)
            raise InputError(f"there is no recommendation about '{what}'; there are: {known}.")
        return recommendation

    def json(self) -> str:
        """Everything as JSON."""
        whole: dict[str, Any] = {
            "budget": {"rounds": self.goal.rounds, "megabytes": self.goal.megabytes},
            "measured": self.measured.plain(),
            "recommendations": [vars(item) for item in self.recommendations],
            "unknown": list(self.unknown),
            "study": None if to_toml(self.best.resolved()) is None else self.best.resolved(),
        }
        if self.pilot is not None:
            whole["pilot"] = {
                "rounds": self.pilot.rounds,
                "of": self.pilot.of,
                "tried": [vars(item) for item in self.pilot.tried],
            }
        if self.gains is not None:
            whole["gains"] = json.loads(self.gains.json())
        return json.dumps(whole, indent=2, default=str) + "\n"
