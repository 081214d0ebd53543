"""pfl-research: FederatedAveraging, FedProx and SCAFFOLD on its SimulatedBackend."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
import asyncio
import copy
import itertools
import types
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .protocol import Asked, answer, private_output, weights_of


def loss(self: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The method pfl calls for a batch."""
    return nn.functional.mse_loss(self(inputs), targets)


def metrics(self: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """pfl wants the method to exist."""
    with torch.no_grad():
        return {"loss": Weighted(loss(self, inputs, targets).item() * len(targets), len(targets))}


class Copies(InMemoryUserStateStorage):
    """Client states in memory, copied: `PyTorchModel.get_model_difference` returns the same tensors for all clients."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        super().save_state(copy.deepcopy(state), user_id, key)


def train(given: Asked, rounds: int) -> list[float]:
    everyone = len(given.sizes)
    users = itertools.cycle(range(everyone))  # a cohort of all clients is one turn
    dataset = FederatedDataset(lambda user: Dataset(given.client(user), user_id=str(user)), lambda: next(users))
    weighting = WeightByDatapoints() if given.weights == "samples" else WeightByUser()
    backend = SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[weighting])
    module: Any = given.model()
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    common: dict[str, Any] = {
        "central_num_iterations": rounds,
        "evaluation_frequency": 10**9,
        "train_cohort_size": everyone,
        "val_cohort_size": 0,
    }
    algorithm, params = {
        "fedavg": lambda: (FederatedAveraging(), NNAlgorithmParams(**common)),
        "fedprox": lambda: (FedProx(), FedProxParams(**common, mu=given.alpha)),
        "scaffold": lambda: (
            SCAFFOLD(),
            SCAFFOLDParams(
                **common,
                population=everyone,
                use_gradient_as_control_variate=given.variant == "option I",
                user_state_storage=Copies(),
            ),
        ),
    }[given.method]()
    local = NNTrainHyperParams(
        local_learning_rate=given.lr, local_num_epochs=given.epochs, local_batch_size=given.batch
    )
    trained = algorithm.run(algorithm_params=params, backend=backend, model=model, model_train_params=local)
    return weights_of(trained.pytorch_model)


if __name__ == "__main__":
    output = private_output()
    # pfl asks for the current event loop, which newer Pythons no longer create by themselves.
    asyncio.set_event_loop(asyncio.new_event_loop())
    answer(output, ("pfl",), train)
