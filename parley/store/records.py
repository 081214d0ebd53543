"""What a round leaves behind, plain numbers, and what the store knows about a run: all that reports see."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from parley.core.failure import Failure
from parley.core.show import Brief

COUNTS = "pooled counts"
"""What a summary calls the counts of `training.pooled`."""
__all__ = ["COUNTS", "Failure", "Metric", "RoundRecord", "RunInfo"]


@dataclass(frozen=True, slots=True, repr=False)
class Metric(Brief):
    """One metric of one round; `clients` holds its value for each client it was measured on."""

    value: float
    clients: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RoundRecord(Brief):
    """Round 0 is the evaluation before training; of a warm start by another method it has that one's traffic.

    Metric names: `central/accuracy`, `central/loss`, `clients/accuracy`, `clients/loss` (means over clients, values per
    client inside), `train/loss`, `up/bytes`, `down/bytes` (totals, per client inside), `up/raw/bytes` (up without
    channels, where there are any), `seconds` (wall time of the round without evaluation), `evaluate/seconds`, `cohort`
    (clients that answered).
    """

    number: int
    metrics: dict[str, Metric]
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class RunInfo:
    """What the store knows about a run besides its numbers."""

    id: str
    name: str
    status: str
    """running, finished, stopped (by its user or for lack of a quorum), failed, or interrupted (its process died)."""
    created: datetime
    rounds: int
    """The last round committed."""
    fingerprint: str
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def headline(self) -> str:
        """The full name of what it is judged by; empty where nothing is measured or an earlier Parley made it."""
        return str(self.summary.get("headline", ""))

    @property
    def trial(self) -> str:
        """The search whose trial it is; empty for other runs."""
        return str(self.summary.get("trial of", ""))
