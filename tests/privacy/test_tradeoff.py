"""The study of accuracy against epsilon runs without files, and gives the same numbers twice."""

from parley_papers.catalogue import run_study


def test_smoke(tmp_path):
    result = run_study("privacy/tradeoff", "smoke", tmp_path)
    assert [check for check in result.checks if check.passed is False] == []
    assert len(result.files) == 2
    assert (tmp_path / "runs.db").exists()
    assert run_study("privacy/tradeoff", "smoke").data == result.data
