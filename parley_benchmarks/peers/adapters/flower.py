"""Flower: its strategies FedAvg and FedProx; local training is in flower_client.

Messages are handed over within the process instead of through Ray: what is looked at is the strategies' arithmetic.
"""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.supercore.task_identity import TaskIdentity

from .flower_client import app
from .protocol import Asked, answer, private_output, weights_of


class Here(Grid):
    """Delivers each message to the ClientApp at once; nodes are called 1, 2, ..."""

    def __init__(self, nodes: int) -> None:
        self.contexts = {
            node: Context(0, node, {"partition-id": node - 1, "num-partitions": nodes}, RecordDict(), {})
            for node in range(1, nodes + 1)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [app(message, self.contexts[message.metadata.dst_node_id]) for message in messages]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **others: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def train(given: Asked, rounds: int) -> list[float]:
    n = len(given.sizes)
    common: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": n, "min_available_nodes": n}
    strategy = FedAvg(**common) if given.method == "fedavg" else FedProx(**common, proximal_mu=given.alpha)
    result = strategy.start(
        grid=Here(n),
        initial_arrays=ArrayRecord(given.model().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"asked": json.dumps(asdict(given))}),
    )
    model = given.model()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    return weights_of(model)


if __name__ == "__main__":
    # What Flower sets in the processes it starts; messages carry it.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    answer(private_output(), ("flwr",), train)
