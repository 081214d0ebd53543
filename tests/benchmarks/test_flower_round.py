"""A round over Flower beside a plain application: both really train, and the verdict follows from the figures."""

from __future__ import annotations

import json

import pytest
import torch

from parley_benchmarks.flower_federations import Chunk, Parley, Plain, Size
from parley_benchmarks.flower_round import BOUND, TOLERANCE, _claims, _initial
from parley_benchmarks.races import bench


def pairs(ours: float, plain: float) -> list[dict[str, tuple[Chunk, float]]]:
    """Two chunks of rounds of so many seconds, give or take a little."""
    return [
        {name: (Chunk([s, 1.01 * s, 0.99 * s], {}), 1.0) for name, s in ((Parley.name, ours), (Plain.name, plain))}
        for _ in range(2)
    ]


@pytest.mark.parametrize(("ours", "passed"), [(2.0, True), (2.19, True), (2.3, False)])
def test_a_round_that_takes_too_long_fails(ours: float, passed: bool):
    claim, same = _claims(Size(100), pairs(ours, 2.0), TOLERANCE / 2, "full")
    assert (claim.passed, same.passed) == (passed, True)
    assert claim.bound == BOUND
    assert claim.value == pytest.approx(ours / 2)
    assert claim.low <= claim.value <= claim.high


def test_other_weights_fail_whatever_the_scale():
    claim, same = _claims(Size(100), pairs(1.0, 2.0), 2 * TOLERANCE, "smoke")
    assert (claim.passed, same.passed) == (None, False)


def test_the_payload_is_the_models():
    for size in (Size(100), Size(1500)):
        weights = _initial(size)
        assert size.megabytes == pytest.approx(4e-6 * sum(value.numel() for value in weights.values()))
        assert all(value.dtype == torch.float32 for value in weights.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_federations_train_to_the_same_weights():
    (result,) = bench(["flower-round"], "smoke")
    ratio, same = result.checks
    assert ratio.passed is None
    assert ratio.value is not None
    assert ratio.value > 0
    assert same.passed, same
    assert [one.group for one in result.standings] == [Parley.name, Plain.name]
    json.dumps(result.as_json(), allow_nan=False)
