"""001/conformance: the study passes, covers the whole family, and a wrong method does not get through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parley.algorithms import algorithms
from parley.algorithms.averaging import baselines, local_update
from parley.conformance.members import members
from parley.conformance.quadratics import QuadraticSetting, path, random_setting
from parley.core.key import Key
from parley.core.tree import Tree
from parley.training.transforms import GradientTransform, pull
from parley_papers.catalogue import run_study
from parley_papers.charles2021.conformance import TOLERANCE


@pytest.fixture(scope="module")
def setting() -> QuadraticSetting:
    return random_setting(Key(3), dimension=3, kappa0=3.0)


def test_the_study_passes_at_smoke_scale(tmp_path: Path) -> None:
    result = run_study("001/conformance", "smoke", tmp_path)
    assert [check.name for check in result.checks if not check.passed] == []
    assert {file.suffix for file in result.files} == {".json", ".png"}


def test_the_whole_family_is_covered(setting: QuadraticSetting) -> None:
    here = (local_update.__name__, baselines.__name__)
    named = {name: algorithms[name] for name in algorithms if algorithms[name].__module__ in here}
    family = {name for name, method in named.items() if issubclass(method, local_update.Averaging)}
    assert {algorithms.name_of(type(member.method)) for member in members(setting, 3, TOLERANCE)} == family


def test_the_data_are_the_quadratics(setting: QuadraticSetting) -> None:
    """The engine's loss and gradient at a point are those of f_i."""
    federation, x = setting.federation(), np.array([0.3, -1.0, 2.0])
    for number, client in enumerate(federation.ids):
        data = federation.client(client)
        X, y = data.x.numpy(), data.y.numpy()
        A, c = setting.clients.A[number], setting.clients.c[number]
        np.testing.assert_allclose(np.square(X @ x - y).mean() / 2, (x - c) @ A @ (x - c) / 2, rtol=1e-12)
        np.testing.assert_allclose(X.T @ (X @ x - y) / len(X), A @ (x - c), rtol=1e-12)
    np.testing.assert_allclose(federation.sizes() / federation.sizes().sum(), setting.clients.p)


@dataclass(frozen=True)
class DoublePull(local_update.FedProx):
    """FedProx with the common mistake of alpha ||y - x||^2 in place of alpha/2 ||y - x||^2."""

    def proximal(self, x: Tree) -> GradientTransform:
        return pull(x, 2 * self.alpha)


def test_a_wrong_proximal_term_misses_the_point(setting: QuadraticSetting) -> None:
    right = next(member for member in members(setting, 3, TOLERANCE) if member.name == "fedprox")
    goal = right.goal(setting.clients)
    wrong = DoublePull(**vars(right.method))
    assert np.linalg.norm(path(setting, right.method, right.rounds, "stacked")[-1] - goal) < TOLERANCE
    assert np.linalg.norm(path(setting, wrong, 2 * right.rounds, "stacked")[-1] - goal) > 1e4 * TOLERANCE
