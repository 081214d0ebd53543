"""DataShare: a small global set joins every client's data (Zhao et al., 2018, Section 4).

    before round 1   every client sends rows of its own, drawn uniformly over the samples of all: the global set G
    every round      FedAvg, where client i trains on what it has left and all of G

G is part of the first message to a client, which is counted. This SENDS RAW DATA: every client, and the server, see the
rows of G.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Cohort, Contexts, Questions, algorithm
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.training.stack import Data
from parley.training.task import Task

_HELD = 2**16
"""Numbers of a client's inputs that its draw follows from."""


@algorithm("datashare")
@dataclass(frozen=True)
class DataShare(FedAvg):
    """DataShare (Zhao et al., 2018): FedAvg where a global set of a tenth of all samples joins every client's data.

    The samples of the global set are shown to everybody.
    """

    share: float = 0.1
    """Samples in the global set, as a share of all."""
    draw: int = 0
    """Another number draws other samples. The run's seed does not: a server that could choose it would see them all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise InputError(f"share must lie between 0 and 1, not {self.share}.")

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        if "common" not in state:
            replies = yield ask(self.shared_rows, dict.fromkeys(cohort.everyone, Message()))
            state = state.replace(common={n: torch.cat([r["rows"][n] for r in replies.values()]) for n in ("x", "y")})
        message = self.broadcast(task, state, number)
        first = message.replace(common=state["common"])
        sent = {i: first if cohort.since.get(i) is None else message for i in cohort.ids}
        replies = yield ask(self.client, sent)
        return self.aggregate(task, state, replies, number, key)

    @exchange(
        form=lambda self, task, message: Form({"rows/x": None, "rows/y": None}),
        accepts=lambda self, task, message: Form(),
        asks="everyone",
        reorder=("rows",),
        discloses=("inputs", "labels"),
        stack=False,
    )
    def shared_rows(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The client's rows of the global set."""
        assert isinstance(data, ClientData)
        given = self._given(data, context)
        return Reply(Message.of(rows={"x": data.x[given], "y": data.y[given]}))

    @exchange(
        form=lambda self, task, message: self.form_of(task, update=task.form),
        accepts=lambda self, task, message: self._accepted(task, message),
        reads="mean",
        compress=("update",),
    )
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        common = message.get("common") or memory.get("common")
        if not common:
            raise InputError("has not been sent the global set.")
        left = ~self._given(data, context)
        joined = ClientData(torch.cat([data.x[left], common["x"]]), torch.cat([data.y[left], common["y"]]))
        reply = super().client(task, message, memory, joined, context)
        return replace(reply, memory=(reply.memory or Memory()).replace(common=common))

    def _accepted(self, task: Task, message: Message) -> Form:
        form = self.form_of(task, model=task.form)
        if common := message.get("common"):
            x, y = (common.get(name, torch.zeros(0)) for name in ("x", "y"))
            if len(x) != len(y) or (
                task.info.kind == "classification" and not bool(((y >= 0) & (y < task.info.outputs)).all())
            ):
                raise WireError("the global set has rows without labels, or labels that there are not.")
            form |= Form.of(common={"x": (None, (None, *task.info.shape)), "y": (None, tuple([None] * y.ndim))})
        return Form(form)

    def _given(self, data: Data, context: Contexts) -> Tensor:
        """Which of the client's rows are in the global set, bool [n]: each with the chance `share`.

        They follow from the settings and the client's own data, so they are the same whatever a server says.
        """
        x = data.x.flatten()
        held = blake2b(data.y.cpu().numpy().tobytes(), digest_size=16)
        held.update(x[:: max(1, len(x) // _HELD)].cpu().numpy().tobytes())
        draws = Key(digest=held.digest()).fold("shared rows", self.draw, context.id).numpy().random(len(data))
        return torch.from_numpy(draws < self.share)
