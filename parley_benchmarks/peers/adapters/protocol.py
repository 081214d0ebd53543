"""What every adapter speaks: one JSON object on standard input, one on standard output.

Asked:

    {"method": "scaffold", "variant": "", "lr": 0.1, "epochs": 3, "batch": 6, "alpha": 0.0, "weights": "samples",
     "rounds": [3, 150], "rows": [clients, k, d], "targets": [clients, k], "sizes": [clients], "start": [d]}

Answered, with the parameters after so many rounds, each time from the start:

    {"ok": true, "versions": {"python": "3.11.7", "torch": "2.13.0", "pfl": "0.6.0"}, "points": [[d], [d]]}
    {"ok": false, "error": "ValueError: ..."}

Client i holds `sizes[i]` samples that are all alike: rows[i] as the input, targets[i] as the target. With the model
nn.Linear(d, 1, bias=False) and nn.MSELoss its loss is 1/2 (x - c_i)' A_i (x - c_i) on every batch. Needs only PyTorch.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TextIO

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Asked:
    """The method to train with, its settings and the problem."""

    method: str
    variant: str
    """One of several forms a library offers of a method; "" where there is one."""
    lr: float
    epochs: int
    batch: int
    alpha: float
    """Strength of FedProx's and FedDyn's quadratic terms; 0 for other methods."""
    weights: str
    """A client's weight: its number of "samples", or the same for all "clients"."""
    rounds: list[int]
    rows: list[list[list[float]]]
    targets: list[list[float]]
    sizes: list[int]
    start: list[float]

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """The samples of a client: inputs [n, k, d] and targets [n, k, 1]."""
        x, y = torch.tensor(self.rows[number]), torch.tensor(self.targets[number])[:, None]
        n = self.sizes[number]
        return x.expand(n, *x.shape).clone(), y.expand(n, *y.shape).clone()

    def model(self) -> nn.Linear:
        """The linear model with the initial weights."""
        model = nn.Linear(len(self.start), 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(self.start)[None])
        return model


def weights_of(model: nn.Module) -> list[float]:
    """All parameters of a model as plain numbers."""
    flat: list[float] = nn.utils.parameters_to_vector(model.parameters()).detach().cpu().double().tolist()
    return flat


def import_torchvision() -> None:
    """Import torchvision, which some libraries load but nothing here uses, even where its build is not torch's.

    PyPI's torchvision does not load its compiled operators beside a CPU-only torch, and then stumbles over the missing
    declarations of two of them.
    """
    try:
        import torchvision  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision  # noqa: F401


def private_output() -> TextIO:
    """Standard output for the answer alone: from now on everything else printed goes to standard error."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return output


def asked() -> Asked:
    """Read the question; from now on torch computes with float64 wherever a library leaves it to torch's default."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    return Asked(**json.load(sys.stdin))


def answer(output: TextIO, packages: tuple[str, ...], train: Callable[[Asked, int], list[float]]) -> None:
    """Train from the start for each of the numbers of rounds asked for, and say where it led."""
    reply: Mapping[str, Any]
    try:
        given = asked()
        points = [train(given, rounds) for rounds in given.rounds]
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        reply = {"ok": True, "versions": versions | {name: version(name) for name in packages}, "points": points}
    except Exception as error:
        traceback.print_exc()
        reply = {"ok": False, "error": " ".join(f"{type(error).__name__}: {error}".split())}
    output.write(json.dumps(reply) + "\n")
    output.flush()
