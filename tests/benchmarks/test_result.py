"""Verdicts follow from the figures: paired ratios, the best opponent, agreement, and what cannot be judged."""

import io
import json
from dataclasses import replace
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from parley_benchmarks.harness import Lap
from parley_benchmarks.result import relative_distance, summarise
from parley_benchmarks.roster import Entrant
from parley_benchmarks.table import table
from parley_benchmarks.workloads import WORKLOADS

START = {"w": torch.zeros(3)}
END = {"w": torch.tensor([3.0, 0.0, 4.0])}
LR = WORKLOADS["LR-MNIST"]


def lap(name: str, seconds: list[float], weights: dict[str, Tensor] = END, group: str = "", peak: int = 0) -> Lap:
    versions = {"torch": "2.13.0"}
    return Lap(Entrant(name, group or name, name), versions, 1.0, seconds, seconds, weights, weights, peak)


def test_ratios_are_paired_and_taken_against_the_best_of_a_group() -> None:
    laps = [
        lap("parley", [1.0, 2.0, 1.0]),
        lap("plain", [4.0, 4.0, 4.0]),
        lap("pfl 1x2", [9.0, 9.0, 9.0], group="pfl"),
        lap("pfl 2x1", [5.0, 6.0, 7.0], group="pfl"),
    ]
    result = summarise(LR, "full", laps, START)
    pfl, plain = result.checks[:2]
    assert (pfl.value, pfl.low, pfl.high) == pytest.approx((5.0, 3.0, 7.0))
    assert pfl.passed
    assert "pfl 2x1" in pfl.claim
    assert plain.value == pytest.approx(4.0)
    assert result.passed


def test_a_missed_bound_fails_and_smoke_judges_no_speed() -> None:
    laps = [lap("parley", [1.0]), lap("plain", [2.0]), lap("pfl", [4.0])]
    full = summarise(LR, "full", laps, START)
    assert [check.passed for check in full.checks[:2]] == [True, False]
    assert not full.passed
    assert [check.passed for check in summarise(LR, "smoke", laps, START).checks[:2]] == [None, None]


def test_absent_contestants_leave_claims_unjudged() -> None:
    result = summarise(LR, "full", [lap("plain", [2.0]), lap("pfl", [4.0])], START)
    assert [(check.value, check.passed) for check in result.checks[:2]] == [(None, None)] * 2


def test_times_are_judged_as_ratios_and_memory_in_gigabytes() -> None:
    assert all(target.quantity in ("speedup", "peak GB") for work in WORKLOADS.values() for target in work.targets)
    empty = summarise(
        WORKLOADS["EMPTY"], "full", [lap("parley", [0.1]), lap("plain", [0.31]), lap("pfl", [1.1])], START
    )
    assert [(check.value, check.passed) for check in empty.checks[:2]] == [
        (pytest.approx(11.0), False),
        (pytest.approx(3.1), True),
    ]
    million = summarise(WORKLOADS["MILLION"], "full", [lap("parley", [1.0], peak=1_600_000_000)], START)
    assert million.checks[0].passed is False


def test_different_parameters_or_versions_fail() -> None:
    wrong = summarise(LR, "smoke", [lap("plain", [1.0]), lap("pfl", [1.0], {"w": END["w"] * 1.01})], START)
    assert [c.passed for c in wrong.checks if c.claim.startswith("parameters agree")] == [False, False]
    old = lap("pfl", [1.0])
    old.versions = {"torch": "2.6.0"}
    mixed = summarise(LR, "smoke", [lap("plain", [1.0]), old], START)
    assert [c.passed for c in mixed.checks if "torch" in c.claim] == [False]


@given(st.floats(1e-6, 10.0))
@settings(deadline=None, max_examples=20)
def test_distance_is_relative_to_the_way_travelled(step: float) -> None:
    moved = {"w": END["w"] + torch.tensor([0.0, step, 0.0])}
    found = relative_distance(moved, END, START)
    assert found == pytest.approx(step / 5.0, rel=1e-5)
    assert relative_distance({"w": moved["w"] * 7}, {"w": END["w"] * 7}, START) == pytest.approx(found, rel=1e-5)


def test_distance_of_what_cannot_be_compared() -> None:
    assert relative_distance({}, END, START) is None
    assert relative_distance({"w": torch.zeros(4)}, END, START) == float("inf")
    assert relative_distance({"v": END["w"]}, END, START) == float("inf")
    assert relative_distance({"w": END["w"] * float("nan")}, END, START) == float("inf")
    assert relative_distance(START, START, START) == 0.0


def test_weights_that_only_moved_by_rounding_are_compared_by_their_length() -> None:
    rounded = {"w": END["w"] * (1 + 1e-6)}
    assert relative_distance(END, rounded, END) == pytest.approx(1e-6, rel=0.2)


def test_results_are_plain_data_and_tables_name_everyone() -> None:
    laps = [lap("parley", [1.0, 3.0]), replace(lap("plain", [2.0, 4.0]), early={}, final={})]
    result = summarise(LR, "full", laps, START)
    data = json.loads(json.dumps(result.as_json()))
    assert data["standings"][0]["median"] == median([1.0, 3.0]) / LR.rounds
    assert data["machine"]["torch"] == torch.__version__
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(result))
    text = console.export_text()
    assert "parley" in text
    assert "plain" in text
    assert "FAIL" in text
