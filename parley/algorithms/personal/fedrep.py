"""FedRep: one representation for all, a head for each (Collins et al., ICML 2021, Algorithm 1).

    client   h_i <- tau_h steps on f_i(phi, .) from the head it has, phi fixed
             phi_i <- tau_phi steps on f_i(., h_i) from phi, h_i fixed;  send phi_i
    server   phi <- sum_i w_i phi_i

At a fixed point every h_i minimises f_i(phi, .). With one representation step a round phi then minimises the paper's
objective sum_i w_i min_h f_i(phi, h), its eq. (1); with more, it drifts off like FedAvg's model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parley.algorithms.averaging.local_sgd import Local
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.parts.parts import Part, body_and_head, buffers_of, parameters_of
from parley.algorithms.protocol import Contexts, Learned, algorithm
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.core.tree import Tree, subtract
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.last_layer import clients_of, cut, joined, passed_through, replaced
from parley.training.stack import Data
from parley.training.task import Task


@algorithm("fedrep")
@dataclass(frozen=True)
class FedRep(FedAvg):
    """FedRep (Collins et al., 2021): a shared representation under a head of each client's own, which is fitted first.

    Steps, epochs and alpha are those of the representation. The heads, with the statistics in them, never travel; a
    client that has not trained yet has the head that the model begins with.
    """

    layers: int | None = None
    """Number of first layers in the representation; by default all but the last."""
    head_steps: int | None = None
    """Steps of the head per round (tau_h), before those of the representation."""
    head_epochs: int | None = None
    """Passes of the head over the client's data, in place of head_steps; without both, 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.head_work()

    def head_work(self) -> Work:
        """How much a client does for its head in a round."""
        epochs = 10 if self.head_steps is None and self.head_epochs is None else self.head_epochs
        return replace(self.work(), steps=self.head_steps, epochs=epochs)

    def parts(self, task: Task) -> tuple[Part, Part]:
        """The representation and the head."""
        return body_and_head(task.network, self.layers)

    def start(self, task: Task) -> Tree:
        return parameters_of(task.initial(), self.parts(task)[:1])

    def shared(self, task: Task) -> Form:
        return Form(parameters_of(task.form, self.parts(task)[:1]))

    @exchange(like=FedAvg.client, bias=None)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        phi, h = self.parts(task)
        x = {**task.initial(), **memory.get("head"), **message["model"]}
        fitted = self.fit_head(task, x, message, memory, data, context)
        local = self.train(
            task,
            {**x, **fitted.parameters},
            message,
            memory,
            data,
            context,
            only=phi.parameters,
            buffers=fitted.buffers,
            transform=self.proximal(x),
        )
        head = parameters_of(local.parameters, [h])
        update = subtract(message["model"], local.parameters)
        return self.reply(task, local, send={"update": update}, keep={"head": head, **fitted.kept})

    def fit_head(self, task: Task, x: Tree, message: Message, memory: Memory, data: Data, context: Contexts) -> Local:
        """The steps of the head. While phi stays, so does what it makes of a sample: it is computed once a round."""
        h = self.parts(task)[1]
        halves = None if task.buffer_form else cut(task.network, h.parameters)
        if halves is None:
            return self.train(
                task, x, message, memory, data, context, only=h.parameters, work=self.head_work(), phase="head"
            )
        (body, head), data = halves, joined(data)
        seen = passed_through(task, body, x, data)
        clients = tuple(ClientData(z, client.y) for z, client in zip(seen, clients_of(data), strict=True))
        alone = replace(task, module=head, observe=frozenset())
        return self.train(
            alone,
            parameters_of(x, [h]),
            message,
            memory,
            replaced(data, clients),
            context,
            work=self.head_work(),
            phase="head",
        )

    def sent_buffers(self, task: Task) -> Form:
        return Form(buffers_of(task.sent_buffers, self.parts(task)[:1]))

    def learned(self, task: Task) -> Learned:
        return WithHead(task, personal=True, read=super().learned(task).read)


class WithHead(Learned):
    """The shared representation under a client's own head, or under the first one."""

    def weights(self, message: Message, memory: Memory | None = None) -> Tree:
        kept = memory or Memory()
        statistics = {**message.get("buffers"), **kept.get("buffers")}
        return {**self.task.initial(), **kept.get("head"), **message["model"], **statistics}
