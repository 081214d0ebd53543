"""DataShare: a small global set joins every client's data (Zhao et al., 2018, Section 4).

    before round 1   every client sends rows of its own, drawn uniformly over the samples of all: the global set G
    every round      FedAvg, where client i trains on what it has left and all of G

G reaches a client in the first message that it receives, which is counted like any other. This HANDS OUT RAW DATA:
every client, and the server, see the rows of G.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parley.algorithms.base.exchange import Reply, ask, exchange
from parley.algorithms.base.protocol import Cohort, Contexts, Questions, algorithm
from parley.algorithms.local_update import FedAvg
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.learn.stack import Data
from parley.learn.task import Task


@algorithm("datashare")
@dataclass(frozen=True)
class DataShare(FedAvg):
    """DataShare (Zhao et al., 2018): FedAvg where a global set of a tenth of all samples joins every client's data.

    The samples of the global set are shown to everybody.
    """

    share: float = 0.1
    """Samples in the global set, as a share of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise InputError(f"share must lie between 0 and 1, not {self.share}.")

    def init(self, task: Task, key: Key) -> State:
        return super().init(task, key).replace(seed=key.fold("shared rows").seed)

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        seed = state.scalars["seed"]
        if "common" not in state:
            replies = yield ask(self.shared_rows, dict.fromkeys(cohort.everyone, Message.of(seed=seed)))
            state = state.replace(common={n: torch.cat([r["rows"][n] for r in replies.values()]) for n in ("x", "y")})
        message = self.broadcast(task, state, number).replace(seed=seed)
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
    )
    def shared_rows(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The client's rows of the global set."""
        assert isinstance(data, ClientData)
        given = self._given(data, message, context)
        return Reply(Message.of(rows={"x": data.x[given], "y": data.y[given]}))

    @exchange(form=lambda self, task, message: self.form_of(task, update=task.form), reads="mean", compress=("update",))
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        common = message.get("common") or memory.get("common")
        left = ~self._given(data, message, context)
        joined = ClientData(torch.cat([data.x[left], common["x"]]), torch.cat([data.y[left], common["y"]]))
        reply = super().client(task, message, memory, joined, context)
        return replace(reply, memory=(reply.memory or Memory()).replace(common=common))

    def _given(self, data: Data, message: Message, context: Contexts) -> Tensor:
        """Which of the client's rows are in the global set, bool [n]: each with the chance `share`."""
        draws = Key(int(message.number("seed"))).fold(context.id).numpy().random(len(data))
        return torch.from_numpy(draws < self.share)
