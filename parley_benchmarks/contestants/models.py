"""The raced models as plain PyTorch modules; parameters are named by their place in the `Sequential`."""

import torch
from torch import Tensor, nn


def build(name: str, shape: tuple[int, ...], classes: int, dropout: bool) -> nn.Sequential:
    """A fresh module. `dropout` only matters for "cnn"; without it the same layers pass everything on."""
    if name == "linear":
        return nn.Sequential(nn.Linear(shape[0], classes))
    if name == "mlp":
        return nn.Sequential(nn.Linear(shape[0], 100), nn.ReLU(), nn.Linear(100, classes))
    if name == "cnn":
        side = (shape[1] - 4) // 2
        return nn.Sequential(
            nn.Conv2d(shape[0], 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25 if dropout else 0.0),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5 if dropout else 0.0),
            nn.Linear(128, classes),
        )
    raise ValueError(f"no model is called '{name}'")


def local_sgd(model: nn.Module, x: Tensor, y: Tensor, batch: int, epochs: int, lr: float) -> None:
    """Local SGD as the PyTorch tutorials write it, over the samples in the order they come in."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for inputs, labels in zip(x.split(batch), y.split(batch), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
