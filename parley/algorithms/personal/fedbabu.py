"""FedBABU: federated averaging of the body with body update only (Oh et al., ICLR 2022, Algorithm 1).

    client   phi_i <- K steps on f_i(., h_0) from phi, the head h_0 fixed at its beginning;  send phi_i
    server   phi <- sum_i w_i phi_i
    in the end, every client on its own   (phi, h_0) -> fine-tuned on f_i: all of it, the head or the body

The head is the one that the model begins with, the same at all clients; it is neither trained nor sent, so that all
bodies are learned for one head. What the paper evaluates is the fine-tuned model of each client. Rounds after
`personalise_after` make it: all clients that have not done so fine-tune what the server has, and keep the result; the
server's model no longer changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Exchange, Reply, ask, exchange
from parley.algorithms.parts.parts import Part, body_and_head, parameters_of
from parley.algorithms.protocol import Cohort, Contexts, Learned, Questions, algorithm
from parley.core.errors import InputError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.tree import Tree, subtract
from parley.training.batches import Work
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("fedbabu")
@dataclass(frozen=True)
class FedBABU(FedAvg):
    """FedBABU (Oh et al., 2022): the body is trained and averaged under a fixed random head; then clients fine-tune.

    Without `personalise_after` the model that is evaluated is the server's, body and random head. With it, it is each
    client's: train for one round more than that, or for a few more where clients may drop out.
    """

    layers: int | None = None
    """Number of first layers in the body; by default all but the last."""
    personalise_after: int | None = None
    """Rounds of federated training, after which all clients fine-tune the server's model on their own data; by
    default none do."""
    finetune: Literal["all", "head", "body"] = "all"
    """What clients fine-tune."""
    finetune_steps: int | None = None
    """Steps of fine-tuning."""
    finetune_epochs: int | None = None
    """Passes of fine-tuning over the client's data, in place of finetune_steps; without both, 5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.personalise_after is not None and self.personalise_after < 1:
            raise InputError(f"personalise_after counts rounds and must be at least 1, not {self.personalise_after}.")
        self.finetune_work()

    def finetune_work(self) -> Work:
        """How much a client fine-tunes."""
        epochs = 5 if self.finetune_steps is None and self.finetune_epochs is None else self.finetune_epochs
        return replace(self.work(), steps=self.finetune_steps, epochs=epochs)

    def exchanges(self) -> tuple[Exchange, ...]:
        every, finetunes = super().exchanges(), self.personalise_after is not None
        return tuple(each for each in every if finetunes or each.name != "personalise")

    def parts(self, task: Task) -> tuple[Part, Part]:
        """The body and the head."""
        return body_and_head(task.network, self.layers)

    def start(self, task: Task) -> Tree:
        return parameters_of(task.initial(), self.parts(task)[:1])

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        if self.personalise_after is None or number <= self.personalise_after:
            return (yield from super().round(task, state, cohort, number, key))
        waiting = [i for i in cohort.everyone if (cohort.since.get(i) or 0) <= self.personalise_after]
        if waiting:
            yield ask(self.personalise, dict.fromkeys(waiting, self.broadcast(task, state, number)))
        return state

    def shared(self, task: Task) -> Form:
        return Form(parameters_of(task.form, self.parts(task)[:1]))

    @exchange(like=FedAvg.client, rounds=lambda self: (1, self.personalise_after), bias=None)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        body, _ = self.parts(task)
        x = {**task.initial(), **message["model"]}
        local = self.train(task, x, message, memory, data, context, only=body.parameters, transform=self.proximal(x))
        return self.reply(task, local, send={"update": subtract(message["model"], local.parameters)})

    @exchange(
        form=lambda self, task, message: Form(),
        accepts=lambda self, task, message: self.form_of(task, model=self.shared(task)),
        reads="nothing",
        asks="everyone",
        rounds=lambda self: ((self.personalise_after or 0) + 1, None),
    )
    def personalise(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Fine-tunes the server's model and keeps it; nothing is sent."""
        body, head = self.parts(task)
        only: dict[str, Collection[str] | None] = {"all": None, "head": head.parameters, "body": body.parameters}
        x = {**task.initial(), **message["model"]}
        local = self.train(
            task, x, message, memory, data, context, only=only[self.finetune], work=self.finetune_work(), phase="own"
        )
        kept = memory.replace(personal=local.parameters, statistics=local.buffers)
        return Reply(Message(), kept, local.observed)

    def learned(self, task: Task) -> Learned:
        return FineTuned(task, personal=self.personalise_after is not None, read=super().learned(task).read)


class FineTuned(Learned):
    """A client's fine-tuned model, or the server's body under the first head."""

    def weights(self, message: Message, memory: Memory | None = None) -> Tree:
        if memory is not None and "personal" in memory:
            return {**memory["personal"], **memory.get("statistics")}
        return {**self.task.initial(), **(super().weights(message, memory) or {})}
