"""Gains of networks against federations whose truth is known: the thresholds were set before the first run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.advise.gain import estimate as module
from parley.advise.gain import local as own_models
from parley.advise.gain.folds import Setup
from parley.advise.gain.measures import make_measure
from parley.data import ClientData
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.study.train import make_task

SIZES, WIDTH, NOISE, NEW, LOCAL = (50, 100, 200, 200), 5, 0.5, 2000, 40
TRAININGS = 4
"""The true gain is the recipe's: errors are averaged over so many trainings with other batches. That of one training
scatters by 5 to 10%, which the intervals do not include (docs/gain.md has both figures)."""


def teacher(rng: np.random.Generator):
    first, last = rng.standard_normal((WIDTH, 6)) / np.sqrt(WIDTH), rng.standard_normal(6) / np.sqrt(6)
    return lambda x: np.tanh(1.5 * x @ first) @ last


def network(seed: int) -> nn.Module:
    model, random = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)), torch.Generator()
    random.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
    return model


def simulated(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float, pl.advise.gain.ClientGain]]:
    """Samples, true gain and estimate of each client; the truth is that of the same recipe on all samples."""
    rng = np.random.default_rng(seed)
    shared, spread = teacher(rng), 10 ** rng.uniform(-1.3, 0.3)
    own = [(spread * rng.uniform(0, 1.5), teacher(rng)) for _ in SIZES]
    truths = [lambda x, a=a, f=f: shared(x) + a * f(x) for a, f in own]
    clients = {}
    for j, n in enumerate(SIZES):
        x = rng.standard_normal((n, WIDTH))
        clients[str(j)] = (x.astype(np.float32), (truths[j](x) + NOISE * rng.standard_normal(n)).astype(np.float32))
    federation, method = pl.Federation.from_arrays(clients), pl.FedAvg(lr=0.1, epochs=2, batch=16)
    chosen: dict[int, own_models.OwnLosses] = {}

    def kept(*arguments):
        chosen.update(own_models.local_losses(*arguments))
        return chosen

    monkeypatch.setattr(module, "local_losses", kept)
    found = module.gain(method, federation, model=network(seed), rounds=30, seed=seed, local_rounds=LOCAL)
    task = make_task(federation, network(seed), seed)
    new = [rng.standard_normal((NEW, WIDTH)).astype(np.float32) for _ in SIZES]
    parts = []
    for j, n in enumerate(SIZES):
        data = federation.client(str(j))
        answers = torch.from_numpy(truths[j](new[j]).astype(np.float32))
        both = ClientData(torch.cat([data.x, torch.from_numpy(new[j])]), torch.cat([data.y, answers]))
        parts.append(own_models._Part(both, np.arange(n + NEW) < n, np.arange(n + NEW) >= n))
    rates, local, common = module._own_methods(method, None), np.zeros(len(SIZES)), np.zeros(len(SIZES))
    for training in range(TRAININGS):
        own_seed = seed + 1000 * training
        run = pl.train(
            method,
            federation,
            model=network(seed),
            rounds=max(found.stop.round, 1),
            seed=own_seed,
            evaluation=Evaluation(central=False),
        )
        setup = Setup(method, federation, task, 30, Sampling(), Faults(), own_seed)
        tried = [own_models._train(setup, parts, make_measure(task, "loss"), rate, LOCAL) for rate in rates]
        for j in range(len(SIZES)):
            local[j] += np.concatenate([losses[j][0] for losses in tried])[chosen[j].chosen].mean() / TRAININGS
            common[j] += ((run.predict(new[j])[:, 0].numpy() - truths[j](new[j])) ** 2).mean() / TRAININGS
    gains = (NOISE**2 + local) / (NOISE**2 + common)
    return list(zip(SIZES, gains.tolist(), found.clients, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_networks_through_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [one for seed in range(8) for one in simulated(seed, monkeypatch)]
    decided = [((one.gain > 1) == (truth > 1)) for _, truth, one in seen if not one.low <= 1 <= one.high]
    assert np.mean(decided) >= 0.95
    clear = [((one.gain > 1) == (truth > 1)) for n, truth, one in seen if n >= 200 and not 0.8 <= truth <= 1.25]
    assert np.mean(clear) >= 0.95
    # 32 clients cannot tell 97% from 100%, so only the lower limit of the 80 to 97% is held against them.
    assert np.mean([one.low <= truth <= one.high for _, truth, one in seen]) >= 0.8
