"""Flower's simulation engine: a ServerApp with the FedAvg strategy, one Ray actor per core, one SuperNode per client.

Flower owns the main thread; the server app speaks the protocol and starts the strategy for each chunk of rounds.
"""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped,misc"
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

from .flower_client import app as client_app
from .protocol import Work, options, private_output, serve


class Scheduled(FedAvg):
    """FedAvg that asks for the visits of the work instead of drawing clients by itself."""

    def __init__(self, folder: Path, cohort: int, dropout: bool, start: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=cohort)
        self.folder, self.cohort, self.dropout, self.first = folder, cohort, dropout, start

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        nodes = list(grid.get_node_ids())[: self.cohort]
        return [
            Message(
                content=RecordDict({"arrays": arrays, "config": self.visit(server_round - 1 + self.first, slot)}),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
            )
            for slot, node in enumerate(nodes)
        ]

    def visit(self, number: int, slot: int) -> ConfigRecord:
        return ConfigRecord({"folder": str(self.folder), "dropout": self.dropout, "round": number, "slot": slot})


class Flower:
    """One strategy run per chunk, from the weights the last one ended with."""

    def __init__(self, grid: Grid, work: Work, folder: Path) -> None:
        self.grid, self.work, self.folder = grid, work, folder
        self.reset(work.dropout)

    def reset(self, dropout: bool) -> None:
        self.dropout = dropout
        self.arrays = ArrayRecord(self.work.initial)

    def run(self, start: int, stop: int) -> None:
        strategy = Scheduled(self.folder, self.work.cohort, self.dropout, start)
        self.arrays = strategy.start(grid=self.grid, initial_arrays=self.arrays, num_rounds=stop - start).arrays

    def parameters(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.arrays.to_torch_state_dict()
        return weights


if __name__ == "__main__":
    output = private_output()
    given = options()
    server_app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        work = Work(given.work)
        serve(Flower(grid, work, given.work), work, output, {"flwr": version("flwr"), "ray": version("ray")})

    server_app.main()(main)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=Work(given.work).clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": given.processes, "log_to_driver": False},
        },
    )
