"""Paper 003's trained studies: they run without files at scale smoke, count bytes and judge as they say."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.core.errors import InputError
from parley.study.seeds import SeedMean
from parley_papers.catalogue import run_study
from parley_papers.figures.target_table import TargetRow
from parley_papers.trials import ArmRun
from parley_papers.yue2022.arms import SIZES, arm, at_round, set_to
from parley_papers.yue2022.setting import GLOBAL, clients
from parley_papers.yue2022.sparse import SHARE, WAYS, _spent
from parley_papers.yue2022.table1 import COMPRESSED, SHARED, WHOLE, Size, _ours, row


@pytest.mark.parametrize(("name", "claims"), [
    ("fig3", 4), ("fig4", 10), ("fig5", 5), ("fig6", 3), ("fig7", 4), ("fig3-authors", 4), ("fig4-authors", 6),
    ("fig5-authors", 5),
])  # fmt: skip
def test_smoke_needs_no_files_and_says_what_it_does_not_check(name, claims, monkeypatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"003/{name}", "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    assert sum(check.passed is None for check in result.checks) == claims
    assert len(result.files) == 2


@pytest.mark.parametrize("name", ["table1", "table1-authors"])
def test_table1(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    result = run_study(f"003/{name}", "smoke", tmp_path / "out")
    assert [check for check in result.checks if check.passed is False] == []
    rows = result.data["rows"]
    assert {"FedAvg", "QSGD", "FedCOM", SHARED, "centralised", "TCT", *WHOLE, *COMPRESSED} < rows.keys()
    assert all("sends" in name for name in rows if "NTK" in name and "top-k" not in name)  # the data, projected or not
    up = {name: row["MiB up"]["mean"] for name, row in rows.items()}
    assert up["QSGD"] < up["FedCOM"] < up["FedAvg"]


def test_the_sparsified_row_spends_the_same_bytes_in_every_way(tmp_path):
    assert all(way.rounds * way.samples * way.entries == 1 for way in WAYS)
    base = arm("NTK-FL", "smoke", projected=16, beta=SHARE, name="x")
    spent = [_spent(base, way).algorithm.of for way in WAYS]
    assert [(one.share, one.density) for one in spent[:2]] == [(0.3, 0.2), (0.15, 0.2)]
    result = run_study("003/table1-sparse", "smoke", tmp_path)
    assert result.passed
    assert len(result.data["validation scores"]) == 2


def test_the_authors_clients_share_samples():
    try:
        problem = clients("cpu", authors=True)
    except InputError as error:
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            raise
        pytest.skip(str(error))
    source, sizes = problem.federation.source, problem.federation.sizes()
    assert (len(sizes), problem.cohort, sizes.min(), sizes.max(), sizes.sum()) == (300, 21, 194, 199, 59_218)
    assert 37_000 < len(source.index.unique()) < 39_000
    assert len(SIZES["cpu"].authors_times) == 12


def test_the_clients_are_the_papers():
    problem = clients("smoke")
    assert (len(problem.federation), problem.cohort) == (12, 4)
    x = torch.cat([problem.federation.client(i).x for i in problem.federation.ids])
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.std()) - 1) < 0.1


def test_a_projection_keeps_lengths_on_average():
    plain, narrow = clients("smoke"), clients("smoke", projected=32)
    lengths = [p.test.x.flatten(1).square().sum(1).mean() for p in (plain, narrow)]
    assert narrow.test.x.shape[1:] == (32,)
    assert float(lengths[1] / lengths[0]) == pytest.approx(1, abs=0.3)
    assert torch.equal(plain.test.y, narrow.test.y)


def test_a_global_set_joins_every_client():
    plain, shared = clients("smoke").federation, clients("smoke", shared=True).federation
    more = round(GLOBAL * plain.sizes().sum())
    assert np.array_equal(shared.sizes(), plain.sizes() + more)
    tails = [shared.client(i).x[-more:] for i in shared.ids]
    assert all(torch.equal(tail, tails[0]) for tail in tails)
    assert torch.equal(shared.client(shared.ids[1]).x[:-more], plain.client(plain.ids[1]).x)


def test_settings_are_rates_and_steps_or_passes():
    assert set_to(arm("FedAvg", "cpu"), (0.03, 30)).algorithm == FedAvg(lr=0.03, steps=30, batch=200)
    by_pass = set_to(arm("FedAvg", "cpu", "writers"), (0.03, 30)).algorithm
    assert (by_pass.lr, by_pass.steps, by_pass.epochs) == (0.03, None, 3)
    assert SIZES["cpu"].rates == (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def trial(accuracy: list[float], up: float) -> ArmRun:
    rounds = np.arange(len(accuracy), dtype=np.float64)
    costs = {"up/bytes": up * np.ones(len(accuracy) - 1), "down/bytes": 2 * up * np.ones(len(accuracy) - 1)}
    metrics = costs | {"seconds": np.ones(len(accuracy) - 1)}
    return ArmRun(arm("FedAvg", "smoke"), 0, rounds, np.array(accuracy), np.ones(len(accuracy)), metrics)


def test_rows_end_where_the_target_was_reached():
    runs = [trial([0.1, 0.5, 0.9, 0.8], 2**20), trial([0.1, 0.9, 0.2, 0.1], 2**20)]
    found = row("x", runs, Size(0.85, 3, 3, 0, 0))
    assert (found.reached, found.rounds.value, found.up.value, found.down.value, found.seconds.value) == (
        2,
        1.5,
        1.5,
        3,
        1.5,
    )
    short = row("y", [trial([0.1, 0.2, 0.3], 2**20)], Size(0.85, 2, 2, 0, 0))
    assert (short.reached, short.rounds.value, short.up.value, short.best.value) == (0, 2, 2, 0.3)
    assert at_round(runs[0], 2) == 0.9


def rows(whole: float, sparse: float, up: float, reached: int = 3) -> dict[str, TargetRow]:
    def made(rounds: float, sent: float, count: int) -> TargetRow:
        mean = SeedMean.of([rounds] * 3)
        return TargetRow("", count, 3, mean, SeedMean.of([sent] * 3), mean, mean, mean)

    few = dict.fromkeys(COMPRESSED, made(sparse, up, reached))
    return {**dict.fromkeys(WHOLE, made(whole, 700, 3)), **few, "FedAvg": made(200, 1700, 3)}


def test_what_table1_judges():
    assert [check.passed for check in _ours(rows(25, 38, 380))] == [True, True, *[True, True, False] * 2, True]
    assert [check.passed for check in _ours(rows(27, 41, 390))] == [False, False, *[False] * 6, True]
    assert [check.passed for check in _ours(rows(25, 20, 100, reached=2))] == [True, True, *[False] * 6, True]
