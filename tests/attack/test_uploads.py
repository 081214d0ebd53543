"""What NTK-FL and CP-NTK-FL upload, as the attack sees it."""

from __future__ import annotations

import pytest

import parley as pl
from parley.attack.matching import Effort
from parley.attack.run import attack
from parley.data import Federation
from parley.study.study import Study
from parley_papers.catalogue import run_study

BRIEF = Effort(restarts=1, dlg_steps=8)


@pytest.fixture(scope="module")
def digits() -> Federation:
    return pl.data.digits().split("iid", clients=10, seed=0)


@pytest.mark.parametrize("upload", ["factored", "dense"])
def test_factored_and_dense_jacobians_send_the_data(digits: Federation, upload: str) -> None:
    method = pl.NtkFL(upload=upload, times=(10,), select="last")
    found = attack(Study(method, digits, pl.models.mlp(8)), victims=1, batches=(2,), defences=[], effort=BRIEF)
    assert min(found.row().values("psnr", "division")) > 60
    assert found.row().values("labels", "division") == [1.0]
    said = " ".join(found.disclosures)
    assert "labels as they are: it sends the data" in said
    assert ("inputs as they are: it sends the data" in said) == (upload == "factored")


def test_top_k_sends_part_of_it(digits: Federation) -> None:
    method = pl.NtkFL(upload="top-k", density=0.02, times=(10,), select="last")
    found = attack(Study(method, digits, pl.models.mlp(8)), victims=1, batches=(1,), defences=[], effort=BRIEF)
    assert set(found.row().scores) == {"division", "dlg", "dlg, sent only", "blind"}
    assert found.row().values("psnr", "division")[0] < 60


def test_of_shuffled_rows_it_says_what_they_are(digits: Federation) -> None:
    method = pl.CpNtkFL(times=(10,), projection=16, upload="dense", select="last")
    found = attack(Study(method, digits, pl.models.mlp(8)), victims=1, batches=(2,), defences=[], effort=BRIEF)
    assert set(found.row().scores) == {"blind"}
    (said,) = found.disclosures
    assert "every sample's projected input, or part of it. With the seed, which every client has" in said


def test_figure_8() -> None:
    result = run_study("003/fig8", "smoke")
    assert result.passed
    assert sum(check.passed is True for check in result.checks) == 2
    assert len(result.data["scores"]) == 3 * 2 * 4
