"""Writes the work that all contestants of a race share: data, initial weights, cohorts and batch orders."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from parley.bench.contestants.models import build
from parley.bench.workloads import Workload
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import load

SPEC = ("model", "shape", "classes", "clients", "samples", "cohort", "batch", "lr", "epochs", "dropout", "lazy")
"""The fields of a workload that contestants are given, in `spec.json`."""


def write_work(workload: Workload, folder: Path, seed: int = 0) -> None:
    """Fill `folder` with the three files that `contestants.protocol.Work` reads."""
    key = _key(workload, seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = schedule(workload, key)
    if not workload.lazy:
        tensors["x"], tensors["y"] = client_arrays(workload, key)
    save_file(tensors, folder / "work.safetensors")
    save_file(initial_weights(workload, seed), folder / "initial.safetensors")
    spec = {field: getattr(workload, field) for field in SPEC}
    (folder / "spec.json").write_text(json.dumps(spec, indent=1))


def schedule(workload: Workload, key: Key) -> dict[str, Tensor]:
    """`cohorts` [rounds, cohort] without repeats inside a round, `orders` [rounds, cohort, samples]."""
    rounds, random = workload.total_rounds, key.fold("schedule").numpy()
    cohorts = np.stack([random.choice(workload.clients, workload.cohort, replace=False) for _ in range(rounds)])
    rows = np.broadcast_to(np.arange(workload.samples), (rounds, workload.cohort, workload.samples))
    orders = np.ascontiguousarray(random.permuted(rows, axis=-1))
    return {"cohorts": torch.from_numpy(cohorts), "orders": torch.from_numpy(orders)}


def client_arrays(workload: Workload, key: Key) -> tuple[Tensor, Tensor]:
    """`x` [clients, samples, *shape] float32 and `y` [clients, samples] int64, dealt out at random."""
    wanted = workload.clients * workload.samples
    random = key.fold("data").numpy()
    if not workload.data:
        x = random.standard_normal((wanted, *workload.shape), dtype=np.float32)
        y = random.integers(workload.classes, size=wanted)
    else:
        x, y = real_arrays(workload.data)
        if len(x) < wanted:
            raise InputError(f"{workload.name} needs {wanted} samples but '{workload.data}' has {len(x)}.")
        rows = random.permutation(len(x))[:wanted]
        x, y = x[rows], y[rows]
    shape = (workload.clients, workload.samples)
    return torch.from_numpy(x.reshape(*shape, *workload.shape)), torch.from_numpy(y.reshape(shape))


def real_arrays(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A data set's training inputs and labels. Colour images are standardised per channel, as pfl's benchmark does."""
    dataset = load(name)
    x, y = dataset.x.numpy().astype(np.float32), dataset.y.numpy().astype(np.int64)
    if x.ndim == 4 and x.shape[1] > 1:
        axes = (0, 2, 3)
        x = (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
    return x, y


def initial_weights(workload: Workload, seed: int = 0) -> dict[str, Tensor]:
    """Xavier-uniform matrices and zero biases, as in pfl-research's benchmark."""
    model = build(workload.model, workload.shape, workload.classes, dropout=False)
    random = _key(workload, seed).fold("weights").torch()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.xavier_uniform_(weight, generator=random)
        else:
            nn.init.zeros_(weight)
    return {name: weight.detach() for name, weight in model.state_dict().items()}


def _key(workload: Workload, seed: int) -> Key:
    return Key(seed).fold("bench", workload.name)
