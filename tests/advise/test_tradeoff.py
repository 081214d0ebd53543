"""The advice is what training then does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parley.advise.tradeoff import from_constants, from_federation, from_quadratics, from_study
from parley.core.errors import InputError
from parley.data import Federation
from parley.study.toml import load_study
from parley.study.train import train

STUDY = """
rounds = 12
loss = "half-squares"
[data]
name = "diabetes"
clients = 5
[model]
name = "linear"
zero = true
"""


def study(folder: Path, algorithm: str = '[algorithm]\nname = "fedavg"\n', general: str = STUDY):
    path = folder / "study.toml"
    path.write_text(general + algorithm)
    return load_study(path)


@pytest.mark.parametrize(("server", "ridge"), [("none", 0.0), ("nesterov", 0.2), ("heavy-ball", 0.2)])
def test_training_with_the_pasted_lines_ends_where_it_was_promised(tmp_path: Path, server: str, ridge: float):
    advice = from_study(study(tmp_path), server=server, ridge=ridge, max_steps=30)
    assert advice.actual is not None
    assert advice.curvature is not None
    assert advice.curvature.quadratics is not None
    best = advice.actual.best
    assert best.distance <= min(advice.actual.minibatch_sgd.distance, advice.actual.one_shot.distance)
    run = train(study(tmp_path, advice.toml()), runtime="inline")
    weights = run.module().state_dict()
    x = np.concatenate([weights["1.weight"].double().numpy().ravel(), weights["1.bias"].double().numpy()])
    away = np.linalg.norm(x - advice.curvature.quadratics.empirical_minimiser)
    # Training is in single precision.
    assert away == pytest.approx(best.distance, rel=1e-3, abs=3e-6)
    assert advice.distances(best, np.array([float(advice.rounds)]))[0] == pytest.approx(best.distance)


def test_the_guarantee_holds_in_training(tmp_path: Path):
    advice = from_study(study(tmp_path), server="none", max_steps=8, ridge=0.2)
    choice = advice.guaranteed.best
    assert advice.curvature is not None
    assert advice.bounds(choice, np.array([float(advice.rounds)]))[0] == pytest.approx(choice.bound)
    assert advice.bounds(advice.guaranteed.one_shot, np.array([1.0, 50.0]))[1] == advice.guaranteed.one_shot.bound
    lines = '[algorithm]\nname = "local-update"\nform = "delta"\nbatch = 0\noptions = { weight_decay = 0.2 }\n'
    lines += f"lr = {choice.gamma or 0.1}\nsteps = {choice.K}\n"
    lines += f"[algorithm.server]\nlr = {choice.server.eta / (choice.gamma or 0.1)}\n"
    run = train(study(tmp_path, lines), runtime="inline")
    weights = run.module().state_dict()
    x = np.concatenate([weights["1.weight"].double().numpy().ravel(), weights["1.bias"].double().numpy()])
    assert advice.curvature.quadratics is not None
    assert np.linalg.norm(x - advice.curvature.quadratics.empirical_minimiser) <= choice.bound


def test_one_step_with_a_ridge_can_be_pasted(tmp_path: Path):
    advice = from_study(study(tmp_path), ridge=0.2, max_gamma=0.0)
    assert advice.best.gamma == 0
    text = advice.toml()
    method = study(tmp_path, text).algorithm
    assert (method.lr, method.server.lr) == (pytest.approx(advice.best.server.eta, rel=1e-6), 1.0)


def test_limits_and_overrides_are_kept(tmp_path: Path):
    own = study(tmp_path)
    advice = from_study(own, server="heavy-ball", rounds=7, max_steps=3, max_gamma=0.01, C=2.0, distance=9.0)
    assert advice.rounds == 7
    assert (advice.C, advice.distance) == (2.0, 9.0)
    for choice in (advice.guaranteed.best, advice.best):
        assert choice.K <= 3
        assert choice.gamma <= 0.01


def test_a_network_gets_advice_for_the_quadratic_it_resembles(tmp_path: Path):
    general = STUDY.replace("half-squares", "mse").replace('"linear"\nzero = true', '"mlp"\nhidden = [3]')
    own = study(tmp_path, general=general)
    with pytest.raises(InputError, match="mu > 0"):
        from_study(own)
    advice = from_study(own, mu=0.05, clients=2, samples=30)
    assert advice.actual is None
    assert advice.best is advice.guaranteed.best
    assert advice.curvature is not None
    assert len(advice.curvature.ids) == 2
    study(tmp_path, advice.toml(), general)


class Scorer(nn.Module):
    """Somebody's own module, with a layer it does not use and one it does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.unused = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.frozen(self.inner(x))))


@pytest.fixture
def arrays() -> Federation:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((30, 3)).astype(np.float32) for _ in range(3)]
    pull = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    return Federation.from_arrays({f"site-{i}": (x, x @ pull + np.float32(i)) for i, x in enumerate(inputs)})


def test_own_arrays_and_an_own_module(arrays: Federation):
    advice = from_federation(arrays, Scorer(), rounds=20, mu=0.1, ridge=0.01, server="heavy-ball")
    assert advice.actual is None
    assert advice.curvature is not None
    assert not advice.curvature.exact
    assert len(advice.curvature.ids) == 3
    assert np.isfinite([advice.L, advice.C, advice.distance, advice.guaranteed.best.bound]).all()


def test_an_own_linear_module_is_exact_and_equals_its_quadratics(arrays: Federation):
    from_module = from_federation(arrays, nn.Linear(3, 1), rounds=5, loss="half-squares", server="nesterov")
    assert from_module.curvature is not None
    clients, start = from_module.curvature.quadratics, from_module.curvature.start
    assert clients is not None
    assert start is not None
    known = from_quadratics(clients, start, rounds=5, server="nesterov", max_steps=1000)
    assert known.best == from_module.best
    assert (known.L, known.mu, known.C, known.distance) == pytest.approx(
        (from_module.L, from_module.mu, from_module.C, from_module.distance), rel=1e-9
    )
    assert known.curvature is not None
    assert known.curvature.pooled == pytest.approx(from_module.curvature.pooled, rel=1e-9)
    assert known.distances(known.best, np.array([5.0]))[0] == pytest.approx(known.best.distance)


def test_only_the_ratio_of_radius_and_distance_matters():
    one, ten = (from_constants(kappa0=100, rounds=14, C=0.02 * s, distance=1.0 * s, server="nesterov") for s in (1, 10))
    assert one.relative
    assert one.kappa0 == 100
    assert one.best.K == ten.best.K
    assert one.best.gamma == pytest.approx(ten.best.gamma, rel=1e-6)
    assert ten.guaranteed.best.bound == pytest.approx(10 * one.guaranteed.best.bound, rel=1e-9)
    assert not from_constants(L=2.0, mu=1.0, rounds=3).relative


@pytest.mark.parametrize("ridge", [0.1, 0.3, 1.0])
def test_the_example_gets_advice_that_its_training_keeps(ridge: float, tmp_path: Path):
    example = (Path(__file__).parents[2] / "examples" / "pareto.toml").read_text()
    path = tmp_path / "study.toml"
    path.write_text(example)
    advice = from_study(load_study(path), server="heavy-ball", ridge=ridge)
    assert advice.actual is not None
    assert advice.curvature is not None
    assert advice.curvature.quadratics is not None
    before, _, rest = example.partition("[algorithm]")
    path.write_text(before + advice.toml() + "\n" + rest[rest.index("[evaluate]") :])
    weights = train(load_study(path), runtime="inline").module().state_dict()
    x = np.concatenate([weights["1.weight"].double().numpy().ravel(), weights["1.bias"].double().numpy()])
    away = np.linalg.norm(x - advice.curvature.quadratics.empirical_minimiser)
    assert away == pytest.approx(advice.actual.best.distance, rel=0.01, abs=advice.actual.best.rounding)
    assert (advice.best.K, advice.best.gamma, advice.best.alpha) == (1, 0.0, 0.0)
