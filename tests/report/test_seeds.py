"""Seeds of one study are one line everywhere; their means, intervals and paired tests are right."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

import parley as pl
from parley.core.errors import InputError
from parley.report import Comparison, figure, pairs_table, table, to_csv, to_json, to_latex, to_parquet
from parley.report.groups import extreme_places
from parley.report.pairs import holm, p_values
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.seeds import SeedMean, by_study, seeds_text, selected


def fill(
    store: RunStore, name: str, lasts: dict[int, float], *, lr: float = 0.1, rounds: int = 4, **config
) -> list[str]:
    """Runs whose accuracy grows in equal steps to `lasts` by seed, at 1 MB up, 2 MB down and half a second a round."""
    ids = []
    for seed, last in lasts.items():
        described = {
            "name": name,
            "seed": seed,
            "rounds": rounds,
            "algorithm": {"name": "fedavg", "lr": lr},
            "data": {"name": "digits", "seed": seed},
            **config,
        }
        ids.append(store.create(name, described, f"{name}{lr}"))
        records = [
            RoundRecord(
                n,
                {"central/accuracy": Metric(last * n / rounds)}
                | ({"up/bytes": Metric(1e6), "down/bytes": Metric(2e6), "seconds": Metric(0.5)} if n else {}),
            )
            for n in range(rounds + 1)
        ]
        store.commit(ids[-1], records, status="finished", summary={"central/accuracy": last})
    return ids


@pytest.fixture
def store(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "good", {seed: 0.8 + 0.01 * seed for seed in range(6)})
        fill(made, "bad", {seed: 0.7 + 0.011 * seed for seed in range(6)}, lr=0.2)
        yield made


def shown(thing: object, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(thing)
    return out.getvalue()


def test_seeds_are_one_line_with_means_and_intervals(store):
    comparison = Comparison.stored(store, [])
    good, bad = comparison.lines
    assert (good.label, bad.label, len(good.group.runs)) == ("good", "bad", 6)
    values = 0.8 + 0.01 * np.arange(6)
    low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))
    assert good.last.value == pytest.approx(values.mean())
    assert good.last.half == pytest.approx((high - low) / 2)
    assert comparison.target == pytest.approx(0.95 * values.mean())
    # Seed 0 ends at 0.8, above the target of 0.78375, in round 4; every seed gets there in round 4.
    assert [one.round for one in good.successes] == [4] * 6
    assert good.cost("megabytes").value == 12.0
    assert bad.successes == []
    text = shown(table(comparison))
    assert max(map(len, text.splitlines())) <= 80
    assert "82.5%" in text
    assert f"±{good.last.half:.1%}" in text


def test_some_seeds_that_miss_the_target_are_said(store):
    (line, _) = Comparison.stored(store, [], target=0.83).lines
    assert len(line.successes) == 3
    text = shown(table(Comparison.stored(store, [], target=0.83)))
    assert "3 of 6 reached it" in text
    assert "Costs to the target are those of the seeds that reached it" in " ".join(text.split())


def test_pairs_are_tested_seed_by_seed(store):
    (pair,) = Comparison.stored(store, []).pairs
    ours, theirs = 0.8 + 0.01 * np.arange(6), 0.7 + 0.011 * np.arange(6)
    assert pair.seeds == tuple(range(6))
    assert pair.difference.value == pytest.approx((ours - theirs).mean())
    assert pair.t == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert pair.flips == pytest.approx(2 / 2**6)
    text = shown(pairs_table(Comparison.stored(store, [])))
    assert "good − bad" in text
    assert "Too few" not in text


def test_too_few_seeds_are_said(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "a", {0: 0.5, 1: 0.6, 2: 0.7})
        fill(made, "b", {0: 0.4, 1: 0.52, 2: 0.59}, lr=0.2)
        fill(made, "c", {7: 0.4}, lr=0.3)
        comparison = Comparison.stored(made, [])
    assert [(pair.first, pair.second) for pair in comparison.pairs] == [("a", "b")]
    text = " ".join(shown(pairs_table(comparison)).split())
    assert "Too few seeds for the latter: with 3 it cannot fall below 0.25" in text
    with RunStore(tmp_path / "other.db") as made:
        fill(made, "a", {0: 0.5, 1: 0.6})
        fill(made, "b", {2: 0.4, 3: 0.5}, lr=0.2)
        text = shown(pairs_table(Comparison.stored(made, []))).rstrip()
        assert text.startswith("No paired tests: no two of them were trained with two seeds in common")
        assert max(map(len, text.splitlines())) < 120


def test_without_a_target_a_latex_table_names_none(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "a", {0: float("nan")})
        comparison = Comparison.stored(made, [])
    assert np.isnan(comparison.target)
    text = to_latex(comparison)
    assert "{to reach the target}" in text
    assert "nan" not in text.partition("to reach")[2].partition(r"\\")[0]


def test_a_latex_table_says_what_some_seeds_of_all_mean(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "a", {0: 0.5, 1: 0.9, 2: 0.5})
        some, all_of_them = (to_latex(Comparison.stored(made, [], target=target)) for target in (0.8, 0.1))
    assert "(1/3)" in some.partition("tabular")[2]
    assert "% (1/3): one of three seeds reached it" in some.partition("tabular")[0]
    assert "(1/3)" not in all_of_them


def test_groups_of_one_seed_do_not_keep_others_from_being_tested(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for number in range(12):
            fill(made, f"single{number}", {0: 0.5}, lr=1.0 + number)
        fill(made, "a", {0: 0.5, 1: 0.6})
        fill(made, "b", {0: 0.4, 1: 0.52}, lr=0.2)
        assert len(Comparison.stored(made, []).pairs) == 1
        for number in range(9):
            fill(made, f"double{number}", {0: 0.5, 1: 0.6}, lr=2.0 + number)
        assert Comparison.stored(made, []).pairs == []


def test_runs_on_other_data_are_not_paired(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "a", {0: 0.5, 1: 0.6}, data_fingerprint="x")
        fill(made, "b", {0: 0.4, 1: 0.5}, lr=0.2, data_fingerprint="y")
        assert Comparison.stored(made, []).pairs == []


def test_one_against_all(store):
    fill(store, "third", {seed: 0.75 + 0.02 * (seed % 2) for seed in range(6)}, lr=0.3)
    comparison = Comparison.stored(store, [], against="bad")
    assert {(pair.first, pair.second) for pair in comparison.pairs} == {("good", "bad"), ("bad", "third")}
    with pytest.raises(InputError, match="'nobody' is not among the runs compared"):
        Comparison.stored(store, [], against="nobody")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-3), min_size=2, max_size=7))
def test_the_permutation_test_counts_sign_flips(values):
    """Against all 2^n of them, written out."""
    sums = [
        sum(s * v for s, v in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    observed = sum(values)
    near = 1e-9 * sum(map(abs, values))
    above, below = sum(s >= observed - near for s in sums), sum(s <= observed + near for s in sums)
    assert p_values(values)[1] == pytest.approx(min(1.0, 2 * min(above, below) / len(sums)), abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_closed_test(p):
    """Holm's corrected p-value is the largest Bonferroni p of all sets of hypotheses that contain it (closure)."""
    found = holm(p)
    for i in range(len(p)):
        others = [j for j in range(len(p)) if j != i]
        sets = [(i, *more) for size in range(len(p)) for more in itertools.combinations(others, size)]
        expected = max(min(1.0, len(one) * min(p[j] for j in one)) for one in sets)
        assert found[i] == pytest.approx(expected)


def test_pairs_that_always_or_never_differ():
    assert p_values([0.0, 0.0, 0.0]) == (1.0, 1.0)
    t, flips = p_values([0.5, 0.5, 0.5])
    assert (t, flips) == (0.0, 0.25)
    assert np.isnan(p_values([0.1, np.nan])).all()
    assert np.isnan(SeedMean.of([1.0]).half)


def test_what_is_exported_is_what_is_shown(store, tmp_path):
    comparison = Comparison.stored(store, [])
    assert to_csv(comparison).count("\n") == 13
    to_parquet(comparison, tmp_path / "c.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "c.parquet").to_pylist()
    assert [row["seed"] for row in rows] == [*range(6), *range(6)]
    assert rows[3]["last"] == pytest.approx(0.83)
    assert rows[0]["round_to_target"] == 4
    assert rows[-1]["round_to_target"] is None
    body = json.loads(to_json(comparison))
    assert body["groups"][0]["last"]["seeds"] == [row["last"] for row in rows[:6]]
    assert body["pairs"][0]["first"] == "good"
    text = to_latex(comparison)
    assert r"good & 6 & \textbf{82.5\% $\pm$ 2.0\%} &" in text
    assert text.count(r"\\") == 4
    assert "% good - bad: +0.0975 over 6 seeds" in text
    figure(comparison).savefig(tmp_path / "figure.png", dpi=40)


def test_latex_cannot_be_commanded(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        fill(made, "a_b\\input{x}&%$#", {0: 0.5})
        text = to_latex(Comparison.stored(made, []))
    assert r"a\_b\textbackslash{}input\{x\}\&\%\$\#" in text


def test_groups_in_python_are_named():
    federation = pl.data.iris().split(pl.IID(), clients=3)
    runs = {
        name: [pl.train(pl.FedAvg(lr=lr), federation, model=pl.models.linear(), rounds=2, seed=seed) for seed in (0, 1)]
        for name, lr in (("slow", 0.01), ("fast", 0.1))
    }
    assert [(line.label, len(line.group.runs)) for line in Comparison.of(runs).lines] == [("slow", 2), ("fast", 2)]


def test_what_is_one_group(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        first = fill(made, "a", {0: 0.5, 1: 0.6, 3: 0.5})
        fill(made, "a", {4: 0.5}, rounds=8)  # not the seed alone
        again = fill(made, "a", {1: 0.6})  # the same once more: the newer takes its place
        fill(made, "a", {5: 0.5}, runtime={"name": "pool"})  # the numbers do not depend on it
        groups = by_study(made.runs())
        assert [seeds_text(group) for group in groups] == ["0-1,3,5", "1", "4"]
        assert [info.id for info in groups[0]][1] == again[0]
        assert groups[1][0].id == first[1]
        assert [info.id for info in selected(made, ["a"])] == [info.id for info in made.runs()]
        assert [info.id for info in selected(made, [first[0], "last", first[0]])] == [first[0], made.runs()[-1].id]


@settings(max_examples=60)
@given(st.lists(st.one_of(st.floats(-5, 5), st.just(float("nan"))), min_size=3, max_size=300), st.integers(2, 40))
def test_thinned_curves_keep_their_ends_and_extremes(values, most):
    low = np.array(values)
    high = low + 1.0
    chosen = extreme_places(low, high, most)
    assert len(chosen) <= max(most, 2)
    assert (chosen[0], chosen[-1]) == (0, len(low) - 1)
    assert (np.diff(chosen) > 0).all()
    if most >= 4 and not np.isnan(low).all():
        assert np.nanmin(low[chosen]) == np.nanmin(low)
        assert np.nanmax(high[chosen]) == np.nanmax(high)


def test_groups_of_one_name_are_called_by_what_differs(tmp_path):
    with RunStore(tmp_path / "runs.db") as made:
        for lr in (0.1, 0.2):
            fill(made, "digits", {0: 0.5, 1: 0.6}, lr=lr)
        fill(made, "other", {0: 0.5})
        labels = [line.label for line in Comparison.stored(made, []).lines]
    assert labels == ["digits: lr = 0.1", "digits: lr = 0.2", "other"]
