"""When a run is over before its last round: a target that is reached, or no new best for a while.

Both follow from the records alone, so that a resumed run stops where an uninterrupted one would have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parley.engine.roll_call import unevaluated
from parley.engine.settings import Evaluation
from parley.store.records import RoundRecord

if TYPE_CHECKING:
    from parley.training.metrics import Scorer


@dataclass(frozen=True)
class Headline:
    """The metric that `best`, `target` and `patience` refer to.

    They go by evaluations of everybody who should have answered: without its worst client a model looks better.
    """

    name: str
    smaller: bool = False
    """Smaller is better."""

    @classmethod
    def judged(cls, name: str, setting: str | None, scorers: Mapping[str, Scorer] | None = None) -> Headline:
        """`setting`: `evaluate.headline`, which says with a minus sign that smaller is better."""
        from parley.training.metrics import smaller_is_better  # listing runs must not wait for torch

        return cls(name, (setting or "").startswith("-") or bool(smaller_is_better(name, scorers)))

    def of(self, record: RoundRecord) -> float | None:
        """Its value after a round, NaN included; None if it was not measured."""
        metric = record.metrics.get(self.name)
        return None if metric is None else metric.value

    def counted(self, record: RoundRecord) -> float | None:
        """The same; None too where clients are missing in it that should have been evaluated."""
        return None if unevaluated(record, self.name) else self.of(record)

    def better(self, value: float | None, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is a new best, by more than `by`; NaN never is."""
        if value is None or math.isnan(value):
            return False
        if than is None:
            return True
        return value < than - by if self.smaller else value > than + by

    def reaches(self, value: float | None, target: float) -> bool:
        return value is not None and (value <= target if self.smaller else value >= target)


def headline_of(configs: Iterable[Mapping[str, Any]]) -> str:
    """What studies say of their own that runs are judged by, as far as they agree; empty where they leave it open."""
    headlines = set()
    for config in configs:
        settings = config.get("evaluate")
        settings = settings if isinstance(settings, Mapping) else {}
        wanted = str(settings.get("headline") or settings.get("metric") or "").removeprefix("-")
        headlines.add("" if wanted == "auto" else wanted)
    return headlines.pop() if len(headlines) == 1 else ""


class Stopping:
    """Sees every record, those of a resumed run at first, and says why the run is over."""

    def __init__(self, headline: Headline | None, settings: Evaluation, records: Iterable[RoundRecord] = ()) -> None:
        self.headline, self.settings = headline, settings
        self.reason: str | None = None
        """Why the run should stop after the last record, as the end of a sentence."""
        self._best: float | None = None
        self._since, self._idle = 0, 0
        for record in records:
            self.see(record)

    def see(self, record: RoundRecord) -> None:
        value = None if self.headline is None else self.headline.counted(record)
        self.reason = None
        if self.headline is None or value is None:
            return
        if self.headline.better(value, self._best, self.settings.min_delta if self._best is not None else 0.0):
            self._best, self._since, self._idle = value, record.number, 0
        else:
            self._idle += 1
        name, target, patience = self.headline.name, self.settings.target, self.settings.patience
        if target is not None and self.headline.reaches(value, target):
            self.reason = f"{name} reached its target {target:g} in round {record.number}"
        elif patience is not None and self._idle >= patience:
            best = "was never a number" if self._best is None else f"was best in round {self._since} ({self._best:.4g})"
            self.reason = f"{name} {best} and no better in {self._idle} evaluations since"
