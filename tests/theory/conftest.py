"""Random problems for the properties of paper 001."""

from collections.abc import Callable

import numpy as np
import pytest

from parley.theory.spectra import random_clients
from parley.theory.surrogate import Quadratics

Problem = tuple[Quadratics, float, float, np.random.Generator]


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    """seed -> (clients with unequal weights, an allowed gamma, alpha, generator)."""

    def build(seed: int, dimension: int | None = None) -> Problem:
        rng = np.random.default_rng(seed)
        d = dimension or int(rng.integers(1, 7))
        drawn = random_clients(d, int(rng.integers(1, 7)), 10 ** rng.uniform(0, 3), rng, 10 ** rng.uniform(-2, 1))
        clients = Quadratics(drawn.A * 10 ** rng.uniform(-2, 2), drawn.c, rng.uniform(0.1, 1, len(drawn.c)))
        alpha = float(rng.choice([0.0, rng.uniform(0, clients.L)]))
        return clients, float(rng.uniform(0, 0.999) / (clients.L + alpha)), alpha, rng

    return build
