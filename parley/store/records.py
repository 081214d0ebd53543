"""What a round leaves behind: plain numbers, the only thing the store, listeners and reports see."""

from __future__ import annotations

from dataclasses import dataclass, field

from parley.core.failure import Failure
from parley.core.show import Brief

__all__ = ["Failure", "Metric", "RoundRecord"]


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
