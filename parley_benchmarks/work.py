"""Writes the work that all contestants of a race share: data, initial weights, cohorts and batch orders."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from parley import ClientData, DataInfo, Faults, Federation, InputError, Key, Sampling
from parley import Work as LocalWork
from parley.data import load
from parley.engine.sampling import Sampler
from parley_benchmarks.contestants.models import build
from parley_benchmarks.workloads import Workload

SPEC = ("model", "shape", "classes", "clients", "samples", "cohort", "batch", "lr", "epochs", "dropout", "lazy")
"""The fields of a workload that contestants are given, in `spec.json`."""


def write_work(workload: Workload, folder: Path, seed: int = 0) -> None:
    """Fill `folder` with the three files that `contestants.protocol.Work` reads."""
    key = _key(workload, seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = schedule(workload, seed)
    if not workload.lazy:
        tensors["x"], tensors["y"] = client_arrays(workload, key)
    save_file(tensors, folder / "work.safetensors")
    save_file(initial_weights(workload, seed), folder / "initial.safetensors")
    spec = {field: getattr(workload, field) for field in SPEC} | {"seed": seed}
    (folder / "spec.json").write_text(json.dumps(spec, indent=1))


def schedule(workload: Workload, seed: int = 0) -> dict[str, Tensor]:
    """`cohorts` [rounds, cohort] without repeats inside a round, `orders` [rounds, cohort, samples].

    They are what Parley draws of itself with this seed. So it races as it is, drawing included, and the others read
    from the file what they are to do.
    """
    key, local = Key(seed), LocalWork(epochs=1, batch=workload.batch)
    nothing = DataInfo("bench", workload.shape, workload.classes, "classification")
    federation = Federation.from_function(workload.clients, _no_samples, workload.samples, info=nothing)
    sampler = Sampler(federation, Sampling(size=workload.cohort), Faults(), key)
    rounds = range(1, workload.total_rounds + 1)
    cohorts = [sampler.draw(number).ids for number in rounds]
    orders = torch.arange(workload.samples).repeat(len(rounds), workload.cohort, 1)
    for number, cohort in zip(rounds, cohorts, strict=True):
        for slot, client in enumerate(cohort):
            batch_key = key.fold("round", number).fold("recipient", client).fold("client", 0).fold("batches")
            drawn = local.plan(workload.samples, batch_key).indices
            if drawn is not None:
                orders[number - 1, slot] = drawn
    return {"cohorts": torch.tensor([[int(client) for client in cohort] for cohort in cohorts]), "orders": orders}


def _no_samples(number: int) -> ClientData:
    raise AssertionError("a schedule looks at no samples")


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
