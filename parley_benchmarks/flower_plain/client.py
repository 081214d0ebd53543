"""A client: steps of gradient descent on all its samples from the weights that came."""

# Flower's decorators have no types that can be seen from here.
# mypy: disable-error-code="untyped-decorator"
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config, data = context.run_config, np.load(str(context.node_config["data"]))
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    hidden, classes = int(config["hidden"]), int(config["classes"])
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(x.shape[1], hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )
    model.load_state_dict(message.content["weights"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    for _ in range(int(config["steps"])):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return Message(RecordDict({"weights": ArrayRecord(model.state_dict())}), reply_to=message)
