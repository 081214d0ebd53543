"""fluke: its algorithms' clients and servers, run by their own CentralizedFL."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
from types import SimpleNamespace
from typing import Any

from torch import nn

from .protocol import Asked, answer, import_torchvision, private_output, weights_of

import_torchvision()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.algorithms.feddyn import FedDyn  # noqa: E402
from fluke.algorithms.fednova import FedNova  # noqa: E402
from fluke.algorithms.fedprox import FedProx  # noqa: E402
from fluke.algorithms.scaffold import SCAFFOLD  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402

ALGORITHMS = {"fedavg": FedAVG, "fedprox": FedProx, "scaffold": SCAFFOLD, "fednova": FedNova, "feddyn": FedDyn}
EXTRA = {"fedprox": "mu", "feddyn": "alpha"}


def train(given: Asked, rounds: int) -> list[float]:
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(*given.client(i), num_labels=1, batch_size=given.batch, shuffle=False, skip_singleton=False)
        for i in range(len(given.sizes))
    ]
    # What fluke asks its DataSplitter for: the clients' training and test sets, and the server's test set.
    splitter = SimpleNamespace(assign=lambda n, batch: ((loaders, [None] * n), None))
    client: dict[str, Any] = {
        "batch_size": given.batch,
        "local_epochs": given.epochs,
        "loss": nn.MSELoss,
        "optimizer": {"name": "SGD", "lr": given.lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        "clipping": 0,  # FedDyn's client would clip gradients to 5
    }
    if given.method in EXTRA:
        client[EXTRA[given.method]] = given.alpha
    server: dict[str, Any] = {"weighted": given.weights == "samples"}
    if given.method == "feddyn":
        server["alpha"] = given.alpha
    settings = DDict({"client": client, "server": server, "model": given.model()})
    federation = ALGORITHMS[given.method](len(given.sizes), splitter, settings)
    federation.run(rounds, 1.0, finalize=False)
    return weights_of(federation.server.model)


if __name__ == "__main__":
    answer(private_output(), ("fluke-fl",), train)
