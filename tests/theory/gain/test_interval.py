"""Intervals and decisions from held-out losses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from parley.core.errors import InputError
from parley.theory.gain.interval import GainEstimate, HeldOut, _freedom, check_level, decide, gain_from_losses


def held(local: np.ndarray, federated: np.ndarray, groups: np.ndarray) -> HeldOut:
    """An own model that does not depend on its training samples."""
    return HeldOut(local, federated, groups, np.tile(local, (int(groups.max(initial=-1)) + 1, 1)))


def estimate(p: float, gain: float) -> GainEstimate:
    """A client whose interval at level 0.9 excludes 1 exactly if p < 0.1."""
    spread = abs(np.log(gain)) / max(student.isf(p / 2, 9), 0.01)
    half = student.ppf(0.95, 9) * spread
    return GainEstimate(50, gain, 1.0, gain, float(gain * np.exp(-half)), float(gain * np.exp(half)), p)


def test_the_interval_of_steady_models_is_that_of_a_mean() -> None:
    # With one sample per group and a constant federated loss the jackknife is the delta method of log(mean).
    rng = np.random.default_rng(0)
    local = rng.uniform(1, 1.2, 40)
    found = gain_from_losses([held(local, np.ones(40), np.arange(40))], 0.9)
    half = student.ppf(0.95, 39) * local.std(ddof=1) / np.sqrt(40) / local.mean()
    assert found.gain == pytest.approx(local.mean())
    assert np.log(found.high / found.low) / 2 == pytest.approx(half, rel=0.01)
    assert (found.local, found.federated, found.samples) == (pytest.approx(local.mean()), 1.0, 40)


def test_the_p_value_and_the_interval_agree() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        one = held(rng.exponential(1, 30), rng.exponential(1.5, 30), rng.permutation(30) % 10)
        for level in (0.5, 0.9, 0.99):
            found = gain_from_losses([one], level)
            assert (found.verdict != "undecided") == (found.p < 1 - level)
            assert found.low < found.gain < found.high


def test_swapping_the_models_inverts_the_gain() -> None:
    rng = np.random.default_rng(2)
    a, b, groups = rng.exponential(1, 20), rng.exponential(2, 20), rng.permutation(20) % 5
    one, other = (gain_from_losses([held(x, y, groups)], 0.9) for x, y in ((a, b), (b, a)))
    assert one.gain == pytest.approx(1 / other.gain)
    assert one.low == pytest.approx(1 / other.high)


def test_a_model_that_depends_on_its_samples_is_less_sure() -> None:
    rng = np.random.default_rng(3)
    local, groups = rng.exponential(1, 40), rng.permutation(40) % 10
    steady = held(local, np.ones(40), groups)
    shaky = HeldOut(local, np.ones(40), groups, np.tile(local, (10, 1)) * rng.uniform(0.5, 1.5, (10, 1)))
    assert gain_from_losses([shaky]).high > gain_from_losses([steady]).high


def test_repeats_are_averaged() -> None:
    rng = np.random.default_rng(4)
    local, groups = rng.exponential(1, 20), np.arange(20) % 5
    low, high = held(local, np.ones(20), groups), held(3 * local, np.ones(20), groups)
    assert gain_from_losses([low, high]).gain == pytest.approx(2 * local.mean())


def test_repeats_make_surer_but_never_surer_than_the_samples_allow() -> None:
    assert _freedom(50, 10, 1) == pytest.approx(9)
    assert 9 < _freedom(50, 10, 3) < _freedom(50, 10, 1000) < 49
    assert _freedom(10, 10, 7) == pytest.approx(9)
    rng = np.random.default_rng(5)
    one = held(rng.exponential(1, 60), np.ones(60), np.arange(60) % 10)
    assert gain_from_losses([one] * 3).high < gain_from_losses([one]).high


def test_errors_that_are_counted() -> None:
    none, groups = np.zeros(30), np.arange(30) % 10
    half = (np.arange(30) % 2).astype(float)
    both = gain_from_losses([held(none, none, groups)], counts=True)
    assert both.gain == 1
    assert both.low < 0.1
    assert both.high > 10
    worse = gain_from_losses([held(none, half, groups)], counts=True)
    assert worse.gain == pytest.approx(0.5 / 15.5)
    assert worse.verdict == "loses"
    same = gain_from_losses([held(half, half, groups)], counts=True)
    assert same.gain == 1
    assert same.verdict == "undecided"


def test_too_little_to_say() -> None:
    nothing = np.zeros(0, dtype=np.intp)
    for one in (
        HeldOut(np.ones(2), np.ones(2), nothing, np.zeros((0, 2))),
        held(np.ones(9), np.zeros(9), np.arange(9) % 3),
        held(np.zeros(9), np.zeros(9), np.arange(9) % 3),
    ):
        found = gain_from_losses([one])
        assert (found.low, found.high, found.p, found.verdict) == (0.0, np.inf, 1.0, "undecided")
    always = gain_from_losses([held(2 * np.ones(9), np.ones(9), np.arange(9) % 3)])
    assert (always.gain, always.low, always.high, always.verdict) == (2.0, 2.0, 2.0, "gains")
    for level in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            check_level(level)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1e-6, 1), st.booleans()), min_size=1, max_size=20))
def test_decisions_are_a_cautious_part_of_what_intervals_say(clients: list[tuple[float, bool]]) -> None:
    found = [estimate(p, 2.0 if up else 0.5) for p, up in clients]
    decided = decide(found, 0.9)
    for one, verdict in zip(found, decided, strict=True):
        assert verdict in (one.verdict, "undecided")
    if any(p <= 0.1 / len(found) * (1 - 1e-9) for p, _ in clients):
        assert set(decided) != {"undecided"}
    if all(p < 0.1 * (1 - 1e-9) for p, _ in clients):
        assert "undecided" not in decided
    assert decide(found[:1], 0.9) in ([found[0].verdict], ["undecided"] if clients[0][0] == 0.1 else [found[0].verdict])


def test_clients_that_neither_gain_nor_lose_are_rarely_decided() -> None:
    rng = np.random.default_rng(0)
    wrong = [
        set(decide([estimate(p, rng.choice([0.5, 2.0])) for p in rng.uniform(0, 1, 50)], 0.9)) != {"undecided"}
        for _ in range(400)
    ]
    # Single intervals name five of fifty each time; together, anybody at all is named in one federation of ten.
    assert 0.06 <= np.mean(wrong) <= 0.14
    assert decide([], 0.9) == []


def test_several_trainings_cover_the_gain_of_one() -> None:
    """Every group's model is lucky by itself; the gain of one more training is what the interval is to hold."""
    rng = np.random.default_rng(0)
    groups, spread, trainings, covered, without_luck = np.arange(40) % 10, 0.3, 5, 0, 0
    for _ in range(300):
        noise = rng.uniform(0.8, 1.2, 40)
        runs = []
        for training in range(trainings):
            lucky = np.exp(spread * rng.standard_normal(10) - spread**2 / 2)
            local = noise * lucky[groups]
            runs.append(HeldOut(local, np.ones(40), groups, np.tile(local, (10, 1)), training))
        truth = float(np.exp(spread * rng.standard_normal() - spread**2 / 2))
        found = gain_from_losses(runs, 0.9)
        covered += found.low <= truth <= found.high
        plain = gain_from_losses([replace(one, training=0) for one in runs], 0.9)
        without_luck += plain.low <= truth <= plain.high
    assert 0.84 <= covered / 300 <= 0.97
    assert without_luck / 300 < 0.5


@pytest.mark.parametrize(
    ("local", "federated", "sentence"),
    [
        (np.ones(0), np.ones(0), "at least one"),
        (np.ones(4), np.ones(3), "own and federated"),
        (np.array([1.0, np.nan]), np.ones(2), "NaN"),
        (np.array([1.0, -1.0]), np.ones(2), "negative"),
    ],
)
def test_losses_that_make_no_ratio_are_refused(local: np.ndarray, federated: np.ndarray, sentence: str) -> None:
    empty = np.zeros(0, dtype=np.intp)
    with pytest.raises(InputError, match=sentence):
        gain_from_losses([HeldOut(local, federated, empty, np.zeros((0, len(local))))])
    with pytest.raises(InputError, match="at least one cross-fitting"):
        gain_from_losses([])
