"""Federated averaging in JAX: one jitted function a round, a scan over clients around a scan over their steps.

Two arms: samples gathered in NumPy and handed to the round, as where data come from a loader; or (`resident`)
all samples on the device, where the round gathers them itself.
"""

# The peer lives in an environment of its own, so its types cannot be seen from here.
# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from .protocol import Work, options, private_output, serve

Weights = list[Any]
"""Matrix and vector of each layer in turn."""


def loss(weights: Weights, x: Any, y: Any) -> Any:
    """Mean cross-entropy of a dense network with ReLUs between its layers."""
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weight.T + bias)
    scores = jax.nn.log_softmax(x @ weights[-2].T + weights[-1])
    return -jnp.take_along_axis(scores, y[:, None], 1).mean()


def average(weights: Weights, x: Any, y: Any, lr: float, epochs: int) -> Weights:
    """The mean of the clients' weights; x [clients, steps, batch, features], y [clients, steps, batch]."""

    def step(at: Weights, batch: tuple[Any, Any]) -> tuple[Weights, None]:
        gradient = jax.grad(loss)(at, *batch)
        return [w - lr * g for w, g in zip(at, gradient, strict=True)], None

    def client(total: Weights, data: tuple[Any, Any]) -> tuple[Weights, None]:
        at = weights
        for _ in range(epochs):
            at, _ = lax.scan(step, at, data)
        return [t + w for t, w in zip(total, at, strict=True)], None

    total, _ = lax.scan(client, [jnp.zeros_like(w) for w in weights], (x, y))
    return [t / len(x) for t in total]


class Jax:
    """The round compiled once; the warm-up round pays for it."""

    def __init__(self, work: Work, resident: bool) -> None:
        if work.model_name == "cnn" or work.lazy or work.samples % work.batch:
            raise ValueError("written for dense networks, samples at hand and equal batches")
        self.work, self.resident = work, resident
        self.x, self.y = (part.flatten(0, 1).numpy() for part in (work.x, work.y.int()))
        rows = work.cohorts[:, :, None] * work.samples + work.orders
        shape = (len(rows), work.cohort, work.samples // work.batch, work.batch)
        self.rows = rows.int().reshape(shape).numpy()
        if resident:
            self.x, self.y = jax.device_put(self.x), jax.device_put(self.y)
        self.average = jax.jit(lambda weights, x, y: average(weights, x, y, work.lr, work.epochs))
        self.gathered = jax.jit(lambda weights, x, y, rows: average(weights, x[rows], y[rows], work.lr, work.epochs))
        self.reset(work.dropout)

    def reset(self, dropout: bool) -> None:
        self.weights = [jnp.array(w.numpy()) for w in self.work.model(dropout).state_dict().values()]

    def run(self, start: int, stop: int) -> None:
        for rows in self.rows[start:stop]:
            if self.resident:
                self.weights = self.gathered(self.weights, self.x, self.y, rows)
            else:
                self.weights = self.average(self.weights, np.take(self.x, rows, 0), np.take(self.y, rows, 0))
        jax.block_until_ready(self.weights)

    def parameters(self) -> Mapping[str, Tensor]:
        ends = [torch.from_numpy(np.array(w)) for w in self.weights]
        return dict(zip(self.work.model(False).state_dict(), ends, strict=True))


if __name__ == "__main__":
    output = private_output()
    given = options()
    work = Work(given.work)
    serve(Jax(work, given.variant == "resident"), work, output, {"jax": version("jax")})
