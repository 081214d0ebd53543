"""Apple's pfl-research, used as its own CIFAR10 benchmark uses it, without evaluation in the timed rounds.

One process: `python -m contestants.pfl`. Several: pfl spreads a cohort over the processes of `torchrun`, which
all-reduce their sums with gloo; the first process speaks the protocol and passes the commands on to the others.
"""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
import asyncio
import types
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .protocol import Work, options, private_output, serve

NEVER = 10**9
"""An evaluation frequency that only round 0 meets, and round 0 is the warm-up."""
RESET, RUN, QUIT = range(3)


def loss(self: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The method pfl calls for a batch."""
    return nn.functional.cross_entropy(self(inputs), labels)


def metrics(self: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """pfl wants the method to exist; it is called in the warm-up round alone."""
    from pfl.metrics import Weighted

    with torch.no_grad():
        return {"loss": Weighted(loss(self, inputs, labels).item() * len(labels), len(labels))}


class Pfl:
    """pfl's FederatedAveraging on its SimulatedBackend. Its users are the visits of the work, in order."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.visits: Iterator[tuple[int, int]] = iter(())
        dataset = FederatedDataset(self.dataset_of, lambda: next(self.visits))
        self.backend = SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByUser()])
        self.algorithm = FederatedAveraging()
        self.iterations = 0
        self.reset(work.dropout)

    def dataset_of(self, visit: tuple[int, int]) -> Dataset:
        return Dataset(self.work.visit(*visit), user_id=str(visit))

    def reset(self, dropout: bool) -> None:
        module: Any = self.work.model(dropout)
        module.loss = types.MethodType(loss, module)
        module.metrics = types.MethodType(metrics, module)
        self.model = PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )

    def run(self, start: int, stop: int) -> None:
        work = self.work
        self.visits = ((number, slot) for number in range(start, stop) for slot in range(work.cohort))
        self.iterations += stop - start
        self.model = self.algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=self.iterations,
                evaluation_frequency=NEVER,
                train_cohort_size=work.cohort,
                val_cohort_size=0,
            ),
            backend=self.backend,
            model=self.model,
            model_train_params=NNTrainHyperParams(
                local_learning_rate=work.lr, local_num_epochs=work.epochs, local_batch_size=work.batch
            ),
        )

    def parameters(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.model.pytorch_model.state_dict()
        return weights


class Leader:
    """The first of several processes: it tells the others what to do and does it too."""

    def __init__(self, contestant: Pfl) -> None:
        self.contestant = contestant

    def reset(self, dropout: bool) -> None:
        tell(RESET, int(dropout))
        self.contestant.reset(dropout)

    def run(self, start: int, stop: int) -> None:
        tell(RUN, start, stop)
        self.contestant.run(start, stop)

    def parameters(self) -> Mapping[str, Tensor]:
        return self.contestant.parameters()


def tell(what: int, first: int = 0, second: int = 0) -> list[int]:
    """Send an instruction from the first process to the others; returns it in all of them."""
    message = torch.tensor([what, first, second])
    torch.distributed.broadcast(message, src=0)
    order: list[int] = message.tolist()
    return order


def follow(contestant: Pfl) -> None:
    """The life of every process but the first."""
    while (order := tell(QUIT))[0] != QUIT:
        if order[0] == RESET:
            contestant.reset(bool(order[1]))
        else:
            contestant.run(order[1], order[2])


if __name__ == "__main__":
    output = private_output()
    # pfl asks for the current event loop, which newer Pythons no longer create by themselves.
    asyncio.set_event_loop(asyncio.new_event_loop())
    work = Work(options().work)
    contestant = Pfl(work)
    if distributed.world_size == 1:
        serve(contestant, work, output, {"pfl": version("pfl")})
    elif distributed.global_rank == 0:
        serve(Leader(contestant), work, output, {"pfl": version("pfl")})
        tell(QUIT)
    else:
        follow(contestant)
    if distributed.world_size > 1:
        torch.distributed.destroy_process_group()
