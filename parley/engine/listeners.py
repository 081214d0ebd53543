"""Listeners: told what happens in a run, never asked.

A listener ends a run well by raising `StopRun`, as a hyperparameter search does with a run that leads nowhere: the run
is saved with the status `stopped` and given back. Any other exception is a failure; what was done until then is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from parley.core.message import Message, State
from parley.core.registry import Registry
from parley.store.records import Metric, RoundRecord

if TYPE_CHECKING:
    from parley.engine.run import Run


class Listener:
    """Hears everything and does nothing; override what you need."""

    wants: tuple[str, ...] = ()
    """What it needs to see of clients besides the loss: `model`, `drift`, `gradient` (see `training.local`)."""

    def start(self, run: Run, rounds: int) -> None:
        """A run begins, or goes on after `len(run.records)` records."""

    def note(self, text: str) -> None:
        """Something a user may want to know: which runtime was chosen, from which round a run goes on."""

    def warning(self, text: str) -> None:
        """Something a user must know, such as clients that never contributed; a note unless this is overridden."""
        self.note(text)

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Metric] | None:
        """What clients of a round let be observed, by client and name (simulation only).

        Metrics made of it are returned and become part of the round's record.
        """
        return None

    def evaluate(self, number: int, state: State) -> Mapping[str, Metric] | None:
        """The server's state after a round, which `run.learned.message(state)` makes a model of.

        Metrics made of it are returned and become part of the round's record.
        """
        return None

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, Message], replies: Mapping[Any, Message]
    ) -> None:
        """An exchange of a round is over: what was sent and what came back, by recipient, channels undone."""

    def round(self, record: RoundRecord) -> None:
        """A round is over."""

    def end(self, run: Run) -> None:
        """The run is over, whatever the reason (see `run.status`)."""


listeners: Registry[type[Listener]] = Registry("listener")
"""Those that a study can name: `listeners = ["drift"]`."""
