"""The study of accuracy against the share of attackers runs without files."""

from parley_papers.catalogue import run_study


def test_smoke():
    result = run_study("robust/attackers", "smoke")
    assert [check for check in result.checks if check.passed is False] == []
    assert set(result.data) == {"mean", "median"}
