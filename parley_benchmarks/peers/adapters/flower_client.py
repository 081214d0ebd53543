"""The client half of the Flower adapter: Flower leaves local training to its users, so this loop is ours."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
import copy
import json

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from .protocol import Asked

app = ClientApp()


def proximal(model: nn.Module, received: nn.Module, variant: str) -> Tensor:
    """As the formula in the docstring of Flower's FedProx says, or as the code printed there does."""
    total = torch.zeros(())
    for local, common in zip(model.parameters(), received.parameters(), strict=True):
        distance = (local - common).norm(2)
        total = total + (distance if variant == "as its example" else distance**2)
    return total


def fit(message: Message, context: Context) -> Message:
    """SGD over the client's samples, in order, from the weights received."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    config = message.content["config"]
    given = Asked(**json.loads(config["asked"]))
    x, y = given.client(int(context.node_config["partition-id"]))
    model, mu = given.model(), config.get("proximal-mu", 0.0)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    received = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    for _ in range(given.epochs):
        for first in range(0, len(x), given.batch):
            batch = slice(first, first + given.batch)
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            if mu:
                loss = loss + mu / 2 * proximal(model, received, given.variant)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weight = len(x) if given.weights == "samples" else 1
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": weight})}
    return Message(content=RecordDict(answer), reply_to=message)


app.train()(fit)
