"""Figures 1-6 of paper 000: every study passes at smoke scale, and its measurements are what they say they are."""

import numpy as np
import pytest

from parley.studies import run_study
from parley.studies.paper000 import model_shift, polynomials, stationary
from parley.theory.gain import drawn_gains
from parley.theory.kernel import FedAvg


@pytest.mark.parametrize("figure", ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6"])
def test_the_study_passes_at_smoke_scale(figure: str) -> None:
    result = run_study(f"000/{figure}", "smoke")
    assert [check.name for check in result.checks if not check.passed] == []
    assert list(result.figures) == [figure]


def test_rounds_to_interpolates() -> None:
    errors = 8.0 * 0.5 ** np.arange(10.0)
    assert stationary.rounds_to(errors, 1.0) == pytest.approx(3)
    assert stationary.rounds_to(errors, np.sqrt(2)) == pytest.approx(2.5)


def test_integrals_are_the_squared_norm() -> None:
    x = np.linspace(-1, 1, 200_001)
    theta = np.array([1.0, -2, 0, 3, 0.5, -1])
    numeric = np.trapezoid((np.vander(x, 6, increasing=True) @ theta) ** 2, x)
    assert theta @ polynomials.INTEGRALS @ theta == pytest.approx(numeric, rel=1e-6)
    assert np.vander([0.3], 6, increasing=True)[0] @ polynomials.TRUTH == pytest.approx(
        32 * 0.3**5 - 32 * 0.3**3 + 6 * 0.3
    )
    points = np.concatenate(polynomials.grids(3))
    assert len(points) == 60
    np.testing.assert_allclose(np.diff(points), 2 / 60)


def test_threshold_is_where_the_curve_passes_one() -> None:
    assert model_shift.threshold(3 / model_shift.GAMMAS) == pytest.approx(3)


def test_linearity_in_gamma_is_the_gain_of_the_moved_truths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_shift, "SCARCE_AND_RICH", (50, 500) * 6)
    monkeypatch.setattr(model_shift, "CHOSEN", {"scarce": 0, "rich": 1})
    curves, norm = model_shift.gains(1)
    rng = model_shift.Key(0).fold("000/fig4").fold(0).numpy()
    designs = model_shift.gaussian_designs(rng, (50, 500) * 6)
    xi = model_shift.noise(rng, (50, 500) * 6)
    theta, u = rng.standard_normal(100), rng.standard_normal(100)
    assert norm == pytest.approx(np.linalg.norm(theta))
    place = 40
    truths = [theta if i == 1 else theta + model_shift.GAMMAS[place] * u / np.linalg.norm(u) for i in range(12)]
    targets = [X @ m + e for X, m, e in zip(designs, truths, xi, strict=True)]
    expected = drawn_gains(designs, truths, targets, FedAvg(0.1, 5))[1].ratio
    assert curves["rich"]["FedAvg, s = 5"][place] == pytest.approx(expected, rel=1e-9)
