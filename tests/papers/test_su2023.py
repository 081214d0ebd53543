"""Studies of paper 000: every one passes at smoke scale, and its measurements are what they say they are."""

import numpy as np
import pytest

from parley.core.key import Key
from parley.theory.gain import drawn_gains
from parley.theory.kernel import GradientSteps, KernelFederation, Precomputed, exact_basis
from parley_papers.catalogue import run_study
from parley_papers.su2023 import model_shift, polynomials, stationary, stopping, stopping_models


@pytest.mark.parametrize("figure", ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6"])
def test_the_study_passes_at_smoke_scale(figure: str) -> None:
    result = run_study(f"000/{figure}", "smoke")
    assert [check.name for check in result.checks if not check.passed] == []
    assert list(result.figures) == [figure]


@pytest.mark.parametrize(("name", "figures"), [("stopping", ["rate", "truths"]), ("scale", ["scale"])])
def test_the_studies_beyond_the_figures_pass(name: str, figures: list[str]) -> None:
    result = run_study(f"000/{name}", "smoke")
    assert [check.name for check in result.checks if check.passed is False] == []
    assert sum(check.passed is None for check in result.checks) == (3 if name == "scale" else 0)
    assert list(result.figures) == figures


@pytest.mark.parametrize("law", list(stopping_models.LAWS))
def test_truths_have_norm_one_and_the_order_they_state(law: str) -> None:
    drawn = stopping_models.LAWS[law].draw(1.5, 300, 2000)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, rtol=1e-12)
    order = stopping_models.LAWS[law].spread(1.5, 300)
    # The ratio of two normal variables has the median 1.
    np.testing.assert_allclose(
        np.median(np.abs(drawn[:, 1:3] / drawn[:, :1]), axis=0), order[1:3] / order[0], rtol=0.15
    )


def test_the_two_models_of_the_stopping_study_agree_where_they_should() -> None:
    """On an even grid cosines are orthogonal: one client with one step is the ideal model, frequency by frequency."""
    N, rounds = 64, np.array([1.0, 7.0, 60.0])
    features = stopping_models.cosines((np.arange(N) + 0.5) / N, 2.0)
    truth = np.zeros((1, stopping_models.TERMS))
    truth[0, :3] = [0.6, 0.0, -0.8]
    method = GradientSteps(0.1)
    federation = KernelFederation.of(Precomputed(features @ features.T), [np.arange(N)], method)
    eigenvalues = np.linalg.eigvalsh(federation.gram.dense).clip(0)
    even = stopping_models.Intervals(federation, features, eigenvalues, exact_basis(federation))
    ideal = stopping_models.Ideal(2.0, N)
    np.testing.assert_allclose(even.errors(truth, rounds), ideal.errors(truth, rounds), rtol=2e-4)
    assert even.stop() == pytest.approx(ideal.stop(), abs=1)
    assert even.stop(3.0) > even.stop()


def test_stopped_finds_the_best_round() -> None:
    class Parabola:
        def stop(self, norm: float = 1.0) -> int:
            return 40

        def errors(self, truths: np.ndarray, rounds: np.ndarray) -> np.ndarray:
            return 1 + np.log(rounds / 100)[None, :] ** 2 * np.ones((len(truths), 1))

    found = stopping.stopped(Parabola(), np.ones((3, 1)), 40)
    np.testing.assert_allclose(found.ratio, 0.4, rtol=0.1)
    np.testing.assert_allclose(found.error, 1 + np.log(0.4) ** 2)
    np.testing.assert_allclose(found.excess, found.error, rtol=0.01)


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
    curves, norm = model_shift.shift_gains(1)
    rng = Key(0).fold("000/fig4").fold(0).numpy()
    designs = model_shift.gaussian_designs(rng, (50, 500) * 6)
    xi = model_shift.noise(rng, (50, 500) * 6)
    theta, u = rng.standard_normal(100), rng.standard_normal(100)
    assert norm == pytest.approx(np.linalg.norm(theta))
    place = 40
    truths = [theta if i == 1 else theta + model_shift.GAMMAS[place] * u / np.linalg.norm(u) for i in range(12)]
    targets = [X @ m + e for X, m, e in zip(designs, truths, xi, strict=True)]
    expected = drawn_gains(designs, truths, targets, GradientSteps(0.1, 5))[1].ratio
    assert curves["rich"]["FedAvg, s = 5"][place] == pytest.approx(expected, rel=1e-9)
