"""Every advice is executable: pasted into a study and trained in single precision it ends where it was promised."""

import tomllib

import numpy as np
import pytest
import torch
from torch import nn

from parley.advise.tradeoff import Tradeoff, from_federation
from parley.algorithms import algorithms
from parley.data import Federation
from parley.study.sections import choose
from parley.study.train import train
from parley.theory.servers import SERVERS

FAST, ALL = range(10), range(100)


def problem(seed: int) -> tuple[Federation, nn.Linear, dict]:
    """2-5 clients with 1-5 features of different scales, alike or not, any server, with or without a ridge."""
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(2, 6)), int(rng.integers(1, 6))
    scales, truth = 10 ** rng.uniform(-1, 0.5, width), rng.normal(size=width)
    apart = 10 ** rng.uniform(-2, 0.5)
    sites = {}
    for site in range(count):
        x = (rng.normal(size=(int(rng.integers(width + 2, 40)), width)) * scales).astype(np.float32)
        y = x @ (truth + apart * rng.normal(size=width)) + 0.1 * rng.normal(size=len(x))
        sites[f"site-{site}"] = (x, y.astype(np.float32))
    module = nn.Linear(width, 1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.from_numpy(rng.normal(size=weight.shape)))
    request = {
        "rounds": int(rng.integers(1, 25)),
        "server": SERVERS[seed % 3],
        "ridge": float(rng.choice([0, 0.01, 0.1, 1])),
    }
    return Federation.from_arrays(sites), module, request


def trained(advice: Tradeoff, federation: Federation, module: nn.Module) -> float:
    """How far from the optimum the printed lines end."""
    method = choose(algorithms, tomllib.loads(advice.toml())["algorithm"], "algorithm")
    run = train(method, federation, model=module, rounds=advice.rounds, loss="half-squares", runtime="inline")
    weights = run.module().state_dict()
    x = np.concatenate([weights["weight"].double().numpy().ravel(), weights["bias"].double().numpy()])
    assert advice.curvature is not None
    assert advice.curvature.quadratics is not None
    return float(np.linalg.norm(x - advice.curvature.quadratics.empirical_minimiser))


def check(seed: int) -> None:
    federation, module, request = problem(seed)
    advice = from_federation(federation, module, loss="half-squares", max_steps=30, **request)
    assert advice.actual is not None
    best = advice.actual.best
    assert trained(advice, federation, module) == pytest.approx(best.distance, rel=0.01, abs=best.rounding)


@pytest.mark.parametrize("seed", FAST)
def test_the_printed_lines_end_where_promised(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL)
def test_the_printed_lines_end_where_promised_on_a_hundred_problems(seed: int) -> None:
    check(seed)
