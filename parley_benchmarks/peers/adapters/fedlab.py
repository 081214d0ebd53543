"""FedLab: its serial trainers and server handlers, run by its StandalonePipeline."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from .protocol import Asked, answer, import_torchvision, private_output, weights_of

import_torchvision()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler  # noqa: E402
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler  # noqa: E402
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler  # noqa: E402
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


@dataclass(frozen=True)
class Clients:
    """What FedLab's trainers ask of a data set."""

    given: Asked

    def get_dataloader(self, number: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(*self.given.client(number)), batch_size=batch_size)


def train(given: Asked, rounds: int) -> list[float]:
    model, alpha = given.model(), given.alpha
    # The trainer, what it is told beside epochs, batch and step size, the server, and what that is told.
    parts: dict[str, tuple[Any, tuple[float, ...], Any, dict[str, Any] | None]] = {
        "fedavg": (SGDSerialClientTrainer, (), SyncServerHandler, None),
        "fedprox": (FedProxSerialClientTrainer, (alpha,), FedProxServerHandler, None),
        "scaffold": (ScaffoldSerialClientTrainer, (), ScaffoldServerHandler, {"lr": 1.0}),
        "fednova": (FedNovaSerialClientTrainer, (), FedNovaServerHandler, {}),
        "feddyn": (FedDynSerialClientTrainer, (alpha,), FedDynServerHandler, {"alpha": alpha}),
    }
    trainer_class, extra, server_class, server_settings = parts[given.method]
    trainer = trainer_class(model, len(given.sizes))
    trainer.setup_dataset(Clients(given))
    trainer.setup_optim(given.epochs, given.batch, given.lr, *extra)
    trainer.criterion = nn.MSELoss()  # setup_optim sets the cross-entropy
    server = server_class(model, global_round=rounds, sample_ratio=1.0)
    if server_settings is not None:
        server.num_clients = len(given.sizes)
        server.setup_optim(**server_settings)
    StandalonePipeline(server, trainer).main()
    return weights_of(server.model)


if __name__ == "__main__":
    answer(private_output(), ("fedlab",), train)
