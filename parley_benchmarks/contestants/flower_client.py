"""The client half of the Flower contestant, apart so that Ray's actors import it once and keep its cache."""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from .models import local_sgd
from .protocol import Work

app = ClientApp()


@lru_cache(maxsize=2)
def prepared(folder: str, dropout: bool) -> tuple[Work, nn.Sequential]:
    """What an actor needs for every client it plays, made once per actor."""
    torch.set_num_threads(1)
    work = Work(Path(folder))
    return work, work.model(dropout)


def fit(message: Message, context: Context) -> Message:
    """Train from the weights received on the visit that the message names."""
    config = message.content["config"]
    work, model = prepared(config["folder"], config["dropout"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = work.visit(config["round"], config["slot"])
    local_sgd(model, x, y, work.batch, work.epochs, work.lr)
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
    )
    return Message(content=content, reply_to=message)


app.train()(fit)
