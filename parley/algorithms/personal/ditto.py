"""Ditto: a personal model beside the global one, held near it (Li et al., ICML 2021, Algorithm 1).

    client   w_k <- FedAvg's local steps from w;  send w - w_k
             v_k <- v_k - eta (gradient of f_k at v_k + lambda (v_k - w)),  s times;  keep v_k
    server   w <- SERVEROPT(w, sum_k p_k (w - w_k))

w is what FedAvg gives, bit for bit. Where it settles, at w*, v_k settles at argmin_v f_k(v) + lambda/2 ||v - w*||^2,
however many steps there are: lambda = 0 is training alone, a large one the global model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts, Learned, algorithm
from parley.core.errors import InputError
from parley.core.message import Memory, Message
from parley.core.tree import Tree
from parley.training.batches import Work
from parley.training.stack import Data
from parley.training.task import Task
from parley.training.transforms import pull


@algorithm("ditto")
@dataclass(frozen=True)
class Ditto(FedAvg):
    """Ditto (Li et al., 2021): FedAvg, and a model of each client's own that is pulled towards FedAvg's.

    No more traffic than FedAvg, twice its work. A client that has not trained yet predicts with the global model and
    begins from it. The personal models have statistics (BatchNorm) of their own.
    """

    lam: float = 0.1
    """Strength of the pull towards the global model (lambda)."""
    personal_steps: int | None = None
    """Steps of the personal model per round (s); by default it does what the global one does."""
    personal_epochs: int | None = None
    """Passes of the personal model over the client's data, in place of personal_steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lam >= 0:
            raise InputError(f"lam must be at least 0, not {self.lam}.")
        self.personal_work()

    def personal_work(self) -> Work:
        """How much a client does for its own model in a round."""
        if self.personal_steps is None and self.personal_epochs is None:
            return self.work()
        return replace(self.work(), steps=self.personal_steps, epochs=self.personal_epochs)

    @exchange(like=FedAvg.client, bias=None)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        reply = super().client(task, message, memory, data, context)
        w = message["model"]
        personal = self.train(
            task,
            memory.get("personal") or w,
            message,
            memory,
            data,
            context,
            transform=pull(w, self.lam),
            work=self.personal_work(),
            phase="personal",
            buffers=memory.get("statistics") or self.buffers(task, message, memory),
        )
        kept = reply.memory or Memory()
        return replace(
            reply, memory=kept.replace(personal=personal.parameters, statistics=personal.buffers, **personal.kept)
        )

    def learned(self, task: Task) -> Learned:
        return PersonalModel(task, personal=True, read=super().learned(task).read)


class PersonalModel(Learned):
    """The model in a client's memory as `personal`, with its `statistics`, or else the server's."""

    def weights(self, message: Message, memory: Memory | None = None) -> Tree | None:
        if memory is None or "personal" not in memory:
            return super().weights(message, memory)
        return {**memory["personal"], **memory.get("statistics")}
