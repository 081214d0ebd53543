"""FLGo: its algorithms' servers and clients on a task of its own format, run by the server `flgo.init` returns."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
import json
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from .protocol import Asked, answer, import_torchvision, private_output, weights_of

import_torchvision()

import flgo  # noqa: E402
from flgo.benchmark.base import BasicTaskCalculator, XYHorizontalTaskPipe  # noqa: E402


class TaskCalculator(BasicTaskCalculator):
    """Mean squared error."""

    def __init__(self, device: Any, optimizer_name: str = "SGD") -> None:
        super().__init__(device, optimizer_name)
        self.criterion, self.DataLoader = nn.MSELoss(), DataLoader

    def compute_loss(self, model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"loss": self.criterion(model(data[0]), data[1])}

    def get_dataloader(self, dataset: Any, batch_size: int = 64, shuffle: bool = False, **others: Any) -> Any:
        return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle)


def train(given: Asked, rounds: int) -> list[float]:
    with TemporaryDirectory() as folder:
        names = [f"client {i}" for i in range(len(given.sizes))]
        held = [dict(zip("xy", (part.tolist() for part in given.client(i)), strict=True)) for i in range(len(names))]
        data = {"client_names": names, "server": {"data": held[0]}}
        data |= {name: {"data": samples} for name, samples in zip(names, held, strict=True)}
        Path(folder, "data.json").write_text(json.dumps(data))
        Path(folder, "info").write_text(json.dumps({"benchmark": "quadratics"}))
        option = {
            "num_rounds": rounds,
            "num_epochs": given.epochs,
            "batch_size": given.batch,
            "learning_rate": given.lr,
            "sample": "full",
            "proportion": 1.0,
            "aggregate": "other" if given.weights == "samples" else "uniform",
            "train_holdout": 0.0,
            "eval_interval": -1,
            "no_log_console": True,
        }
        if given.alpha:
            option["algo_para"] = [given.alpha]
        model = flgo.convert_model(lambda: given.model(), "linear")
        algorithm = import_module(f"flgo.algorithm.{given.method}")
        runner = flgo.init(folder, algorithm, option, model=model)
        runner.run()
        return weights_of(runner.model)


if __name__ == "__main__":
    output = private_output()
    # FLGo looks for the task's two classes in a module called core.
    core = ModuleType("quadratics.core")
    core.__dict__.update(TaskPipe=XYHorizontalTaskPipe, TaskCalculator=TaskCalculator)
    sys.modules |= {"quadratics": ModuleType("quadratics"), "quadratics.core": core}
    answer(output, ("flgo",), train)
