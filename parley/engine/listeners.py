"""Listeners: told what happens in a run, never asked.

A listener that raises stops the run, as a hyperparameter search does with a run that leads nowhere; what was done until
then is saved like any other run that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from parley.core.errors import InputError
from parley.core.message import Message
from parley.store.records import Metric, RoundRecord

if TYPE_CHECKING:
    from parley.engine.run import Run


class Listener:
    """Hears everything and does nothing; override what you need."""

    wants: tuple[str, ...] = ()
    """What it needs to see of clients besides the loss: `model`, `drift`, `gradient` (see `learn.observe`)."""

    def start(self, run: Run, rounds: int) -> None:
        """A run begins, or goes on after `len(run.records)` records."""

    def note(self, text: str) -> None:
        """Something a user may want to know: which runtime was chosen, from which round a run goes on."""

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Metric] | None:
        """What clients of a round let be observed, by client and name (simulation only).

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


class TensorBoard(Listener):
    """Writes every metric as a scalar; needs the extra `parley-fl[tensorboard]`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("TensorBoard is not installed; pip install 'parley-fl[tensorboard]'.") from None
        self._writer = SummaryWriter(str(folder))

    def round(self, record: RoundRecord) -> None:
        for name, metric in record.metrics.items():
            self._writer.add_scalar(name, metric.value, record.number)

    def end(self, run: Run) -> None:
        self._writer.close()
