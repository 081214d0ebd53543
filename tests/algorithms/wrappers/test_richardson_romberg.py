"""Richardson-Romberg: two runs that do not notice each other, extrapolated; the order of its bias; what is refused."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import FedAvg, FedAvgM, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.wrappers.richardson_romberg import RichardsonRomberg
from parley.channels.top_k import top_k
from parley.conformance import cases
from parley.core.errors import InputError
from parley.engine.settings import Faults
from parley.study.toml import study_from_dict
from parley.study.train import train

PLAIN = FedAvg(lr=0.05, steps=3, batch=4)


@pytest.mark.parametrize("of", [PLAIN, FedNova(lr=0.05, epochs=1, batch=4)], ids=lambda method: method.title)
def test_everywhere(table, dense_network, tmp_path, of):
    """Pool, and interrupted and resumed, are inline bit for bit, stacked is close; clients drop out."""

    def run(runtime: str = "inline", rounds: int = 5, **more) -> dict[str, torch.Tensor]:
        done = train(
            RichardsonRomberg(of),
            table,
            model=dense_network,
            rounds=rounds,
            cohort=4,
            runtime=runtime,
            workers=2,
            faults=Faults(dropout=0.25, quorum=0.0),
            seed=3,
            **more,
        )
        assert any(record.failures for record in done.records)
        return done.state.tensors

    whole = run()
    run(rounds=3, store=tmp_path / "runs.db")
    for other in (run("pool"), run(store=tmp_path / "runs.db", resume=True)):
        assert all(torch.equal(value, other[name]) for name, value in whole.items())
    for name, value in run("stacked").items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "of",
    [PLAIN, FedProx(lr=0.05, steps=3, batch=4), FedAvgM(lr=0.02, steps=2), FedNova(lr=0.05, epochs=2, batch=4)],
    ids=lambda method: method.title,
)
@pytest.mark.parametrize("cohort", [None, 2])
def test_it_is_two_runs_extrapolated(table, dense_network, of, cohort):
    ways = {"rounds": 4, "runtime": "inline", "cohort": cohort, "model": dense_network}
    one, two = (train(method, table, **ways) for method in (of, replace(of, lr=2 * of.lr)))
    both = train(RichardsonRomberg(of), table, **ways)
    for name, value in both.model()["model"].items():
        expected = 2 * one.model()["model"][name] - two.model()["model"][name]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    sent = [sum(record.metrics["up/bytes"].value for record in run.records) for run in (one, two, both)]
    assert sent[2] == pytest.approx(sent[0] + sent[1], rel=0.05)


def surrogate(A: np.ndarray, c: np.ndarray, lr: float, steps: list[int], normalise: bool) -> np.ndarray:
    """Where FedAvg's (or FedNova's) mean of x - y_i vanishes, y_i after K_i steps x <- x - lr A_i (x - c_i)."""
    eye, M, b = np.eye(A.shape[1]), 0.0, 0.0
    for Ai, ci, K in zip(A, c, steps, strict=True):
        Q = sum(np.linalg.matrix_power(eye - lr * Ai, k) for k in range(K)) / (K if normalise else 1)
        M, b = M + Q @ Ai, b + Q @ Ai @ ci
    return np.linalg.solve(M, b)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), equal=st.booleans())
def test_the_bias_is_of_second_order_with_equal_steps_or_normalised_ones(seed, equal):
    """The theory behind it, on random quadratics; without normalising, unequal steps leave the bias as it is."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((4, 3, 3))
    A, c = roots @ roots.swapaxes(1, 2) / 3 + 0.5 * np.eye(3), rng.standard_normal((4, 3))
    steps = [4] * 4 if equal else [1, 2, 4, 8]
    best = np.linalg.solve(A.sum(0), np.einsum("ijk,ik->j", A, c))
    lr = 1e-4

    def bias(rate: float, normalise: bool) -> float:
        one, two = (surrogate(A, c, r, steps, normalise) for r in (rate, 2 * rate))
        return float(np.linalg.norm(2 * one - two - best))

    assert np.log2(bias(lr, True) / bias(lr / 2, True)) == pytest.approx(2, abs=0.2)
    if not equal:
        assert bias(lr / 2, False) > 0.5 * bias(lr, False)


def test_settings_that_make_no_sense(table):
    for wrong, words in (
        (FedAvg(lr=0.1), "unequal numbers of steps"),
        (FedAvg(lr=0.1, steps=2, keep=True), "leave out keep"),
        (Scaffold(steps=2), "extrapolates fedavg"),
        ("fedavg", "must be a section"),
    ):
        with pytest.raises(InputError, match=words):
            RichardsonRomberg(wrong)  # type: ignore[arg-type]
    normed = nn.Sequential(nn.Linear(table.info.shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, table.info.outputs))
    with pytest.raises(InputError, match="BatchNorm"):
        train(RichardsonRomberg(PLAIN), table, model=normed, rounds=1)


def test_it_takes_the_methods_whose_bias_grows_with_the_step_size():
    taken = set()
    for name in algorithms:
        method = algorithms[name]()
        with suppress(InputError):
            RichardsonRomberg(replace(method, steps=2, epochs=None) if hasattr(method, "epochs") else method)
            taken.add(name)
    servers = {"fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "reptile", "fedprox", "metaminibatchprox"}
    assert taken == servers | {"fednova", "local-update", "fedsgd", "maml", "fomaml"}


def test_in_a_study_and_with_channels(table, dense_network):
    written = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "linear"},
        "algorithm": {"name": "richardson-romberg", "of": {"name": "fedavg", "lr": 0.03, "steps": 5}},
    }
    study = study_from_dict(written)
    assert study.algorithm == RichardsonRomberg(FedAvg(lr=0.03, steps=5))
    assert study_from_dict(study.resolved()).algorithm == study.algorithm
    assert pl.RichardsonRomberg is RichardsonRomberg
    with pytest.raises(InputError, match="unequal numbers of steps"):
        study_from_dict(written | {"algorithm": {"name": "richardson-romberg", "of": {"name": "fedavg"}}})
    run = train(RichardsonRomberg(PLAIN), table, model=dense_network, rounds=2, channels=top_k(0.2), secret=bytes(16))
    assert run.status == "finished"


def wrong_sign(patch) -> None:
    from parley.algorithms.wrappers import richardson_romberg

    patch.setattr(richardson_romberg, "add", lambda a, b, factor: richardson_romberg.scale(a, 0.5))


def same_rate(patch) -> None:
    patch.setattr(RichardsonRomberg, "twice", property(lambda self: self.of))


@pytest.mark.parametrize("mistake", [wrong_sign, same_rate], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, mistake):
    mistake(monkeypatch)
    case = next(case for case in cases("richardson-romberg") if "2 x(lr)" in case.statement)
    assert case.measure("inline") > 1e-3
