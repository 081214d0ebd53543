"""What an estimate of gains says: a row per client, a paragraph, and the table as CSV or JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from parley.advise.gain.stop import StopAdvice
from parley.core.show import as_html
from parley.core.text import csv_text

NEW_DATA = "new samples from the same distribution, rare classes included"
"""Of which data the gains speak; see docs/gain.md."""
Decision = Literal["join", "stay alone", "undecided", "too few samples"]


@dataclass(frozen=True)
class ClientGain:
    """One client: errors on held-out samples, their ratio and what follows."""

    client: str
    samples: int
    local_error: float = math.nan
    """Of the client's own best model; NaN where there are too few samples to judge."""
    federated_error: float = math.nan
    gain: float = math.nan
    low: float = 0.0
    high: float = math.inf
    decision: Decision = "too few samples"


@dataclass(frozen=True, eq=False, repr=False)
class Gains:
    """All judged clients, and what the figures rest on."""

    clients: tuple[ClientGain, ...]
    population: int
    """Clients in the federation; all took part in training."""
    measure: str
    """What an error is: `cross-entropy`, `error rate`, `mean squared error`, ..."""
    level: float
    how: str
    """How the models were made and judged."""
    stop: StopAdvice
    notes: tuple[str, ...] = ()
    trainings: int = 1
    """Seeds trained with; from two on the intervals are for one training, its luck included."""

    def __repr__(self) -> str:
        decisions = Counter(client.decision for client in self.clients)
        return (
            f"<Gains of {len(self.clients)} clients: {', '.join(f'{many} {what}' for what, many in decisions.items())}>"
        )

    def _repr_html_(self) -> str:
        return as_html("Who gains by joining", self.rows(), self.heads(), [self.summary()])

    def heads(self) -> tuple[str, ...]:
        """The columns of `rows`."""
        return "client", "samples", "own error", "federated", "gain", f"{self.level:.0%} interval", "decision"

    def rows(self) -> list[tuple[object, ...]]:
        """A row for every client, as it is shown."""
        return [_row(client) for client in self.clients]

    def count(self, decision: Decision) -> int:
        return Counter(client.decision for client in self.clients)[decision]

    def summary(self) -> str:
        """Who seems to gain, who surely does, and what the figures mean, in one paragraph."""
        join, alone, open_, few = (self.count(decision) for decision in get_args(Decision))
        whom = f"{len(self.clients)} clients" if len(self.clients) != 1 else "one client"
        if len(self.clients) < self.population:
            whom += f" (drawn from {self.population})"
        above, below = (sum(sign * client.gain > sign for client in self.clients) for sign in (1, -1))
        low, high = (sum(ends) for ends in zip(*((o.low > 1, o.high < 1) for o in self.clients), strict=True))
        text = (
            f"Of {whom}, {above} {_have(above)} an estimated gain above 1 and {below} below; the interval lies above 1 "
            f"for {low} of them and below 1 for {high}. Controlling errors over all clients: {join} "
            f"gain{'s' * (join == 1)}, {alone} lose{'s' * (alone == 1)}, {open_} undecided"
        )
        return (
            text
            + (f", {few} {_have(few)} too few samples. " if few else ". ")
            + (
                f"Gain = error of the client's own best model / error of the federated model ({self.measure}), both on "
                f"new data of that client: {NEW_DATA}. It includes the noise no model can predict, so it is nearer "
                f"to 1 than the gain in estimating the truth. Intervals have {self.level:.0%} coverage per client and "
                f"{self._luck}; who joins is decided for all together, so that at most about "
                f"{(1 - self.level) / 2:.0%} of the decisions are expected to be wrong."
            )
        )

    @property
    def _luck(self) -> str:
        if self.trainings > 1:
            return f"include variance between training runs ({self.trainings} seeds)"
        return "exclude variance between training runs"

    def csv(self) -> str:
        """The table, one line per client; empty cells where there are too few samples."""
        columns = [field.name for field in fields(ClientGain)]
        return csv_text([dict(zip(columns, _plain(client).values(), strict=True)) for client in self.clients], columns)

    def json(self) -> str:
        """Everything, with null for what is not known or infinite."""
        decisions = {decision: self.count(decision) for decision in get_args(Decision)}
        stop: dict[str, object] = {
            "round": self.stop.round,
            "low": self.stop.low,
            "high": self.stop.high,
            "reason": self.stop.reason,
        }
        if self.stop.rule is not None:
            stop |= {"sigma": self.stop.rule.sigma, "norm": self.stop.rule.norm}
        whole = {
            "measure": self.measure,
            "new_data": NEW_DATA,
            "level": self.level,
            "population": self.population,
            "trainings": self.trainings,
            "how": self.how,
            "notes": list(self.notes),
            "decisions": decisions,
            "stop": stop,
            "clients": [_plain(client) for client in self.clients],
        }
        return json.dumps(whole, indent=2) + "\n"


def _row(client: ClientGain) -> tuple[object, ...]:
    if client.decision == "too few samples":
        return client.client, client.samples, None, None, None, None, client.decision
    sure = f"{client.low:.2f} - {client.high:.2f}" if client.high < 1e4 else "-"
    errors = f"{client.local_error:.3g}", f"{client.federated_error:.3g}"
    return client.client, client.samples, *errors, f"{client.gain:.2f}", sure, client.decision


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _plain(client: ClientGain) -> dict[str, object]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(client).items()}
