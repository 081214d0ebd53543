"""The study of advice on tables: harm fails its checks, and no row judges what it has trained."""

from __future__ import annotations

import numpy as np
import pytest

from parley_papers.advise.tables import AUC, LOG_LOSS, REAL, SYNTHETIC, JudgedTable, holm, splits, summarised, synthetic
from parley_papers.catalogue import run_study
from parley_papers.harness import StudyContext


def table(ratio: float = 1.0, lost: float = 0.0, harm: float = 1.0) -> JudgedTable:
    losses = {"advised": 0.4 * ratio, "FedAvg": 0.4, "penalised regression": 0.4, "prevalence": 0.6}
    aucs = {"advised": 0.8 - lost, "FedAvg": 0.8, "penalised regression": 0.8, "prevalence": 0.5}
    return JudgedTable("a", 300, 0.2, losses, aucs, harm)


def failed(results: list[JudgedTable]) -> list[str]:
    result = summarised(results, "cpu", StudyContext("advise/tables", "cpu"))
    return [check.name for check in result.checks if not check.passed]


def test_margins_are_those_that_were_set_and_harm_fails():
    assert (LOG_LOSS, AUC, SYNTHETIC + len(REAL)) == (0.05, 0.02, 30)
    assert failed([table(1.04, 0.015)] * 30) == []
    assert failed([table(1.06)] * 30) == ["log-loss over FedAvg's, upper 95% bound"]
    assert failed([table(lost=0.03)] * 30) == ["AUC lost, upper 95% bound"]
    assert failed([table()] * 29 + [table(harm=0.001)]) == ["tables with significant harm (Holm)"]
    assert failed([table()] * 29 + [table(harm=0.002)]) == []  # thirty tests


def test_holm_is_its_definition():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("seed", [0, 7])
def test_synthetic_tables_have_their_prevalence_and_draws_differ(seed: int):
    x, y, owner, _, new_y, _ = synthetic(seed, 0, 50_000)
    assert 150 <= len(y) == len(x) == len(owner) <= 900
    assert 0.04 < new_y.mean() < 0.42
    assert abs(y.mean() - new_y.mean()) < 4 * np.sqrt(0.25 / len(y))
    assert not np.array_equal(x[:10], synthetic(seed, 1, 10)[0][:10])


def test_folds_judge_every_row_once_and_never_train_on_it():
    judged = []
    for x, y, owner, new_x, _, which in splits("iris", 1, 0):
        assert len(x) == len(y) == len(owner)
        assert len(x) + len(new_x) == 150
        judged += which.tolist()
    assert sorted(judged) == list(range(150))


@pytest.mark.long
def test_the_study_runs():
    assert run_study("advise/tables", "smoke").passed
