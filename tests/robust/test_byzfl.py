"""Every rule beside `byzfl` (Guerraoui et al.), which has its own of each: `pip install --no-deps byzfl`."""

import importlib
import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest

from parley.robust import rules


@pytest.fixture(scope="module")
def byzfl():
    """Its aggregators alone: the package as a whole loads torchvision and its benchmark."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("byzfl is not installed")
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = package
    yield importlib.import_module("byzfl.aggregators")
    for name in [name for name in sys.modules if name.split(".")[0] == "byzfl"]:
        del sys.modules[name]


@pytest.mark.parametrize("seed", range(10))
def test_every_rule_is_byzfl_s(byzfl, seed):
    random = np.random.default_rng(seed)
    n, d = int(random.integers(7, 15)), int(random.integers(1, 40))
    f = int(random.integers(1, (n - 3) // 2 + 1))
    x, w = random.standard_normal((n, d)), np.full(n, 1 / n)
    centre = random.standard_normal(d)
    pairs = {
        "mean": (rules.mean(x, w), byzfl.Average()(x)),
        "median": (rules.median(x, w), byzfl.Median()(x)),
        "trimmed-mean": (rules.trimmed_mean(x, w, f), byzfl.TrMean(f)(x)),
        "geometric-median": (rules.geometric_median(x, w), byzfl.GeometricMedian(nu=1e-12, T=3000)(x)),
        # Its score counts n - f - 1 others where Blanchard et al. have n - f - 2: the same at f - 1.
        "krum": (rules.krum(x, f - 1), byzfl.Krum(f)(x)),
        "multi-krum": (rules.multi_krum(x, w, f - 1, n - f), byzfl.MultiKrum(f)(x)),
        # It takes no centre but zero: `isinstance(m, ndarray) or not isinstance(m, Tensor)` refuses every m.
        "centred-clip": (
            rules.centred_clip(x, w, centre, 0.8, 4),
            centre + byzfl.CenteredClipping(L=4, tau=0.8)(x - centre),
        ),
        "mixing": (rules.mixed(x, f), byzfl.NNM(f)(x)),
        "bound": (rules.bounded(x, 1.5), byzfl.Clipping(1.5)(x)),
    }
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_allclose(ours, theirs, atol=1e-6, err_msg=f"{name} n={n} f={f} d={d}")
