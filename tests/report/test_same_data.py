"""Runs that do not belong side by side: it is said which, and why; seeds and partitions of one data set do belong."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from parley.cli.main import main
from parley.report import Comparison, table, to_json, to_latex
from parley.report.page import report_page
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore

DIGITS = {"name": "digits", "central_fraction": 0.2, "clients": 20, "partition": {"name": "iid"}}
CLASSES = ("central/accuracy", "central/loss", "train/loss")
NUMBERS = ("central/loss", "train/loss")


def keep(
    store: RunStore,
    name: str,
    data: Any,
    *,
    seed: int = 0,
    loss: str = "cross-entropy",
    metrics: Sequence[str] = CLASSES,
    fingerprint: str | None = None,
    **more: Any,
) -> str:
    dealt = data if "python" in data else data | {"seed": seed}
    printed = fingerprint or json.dumps(dealt)
    config = {"name": name, "seed": seed, "rounds": 2, "loss": loss, "data": dealt, "data_fingerprint": printed, **more}
    run = store.create(name, config, name)
    records = [RoundRecord(at, {metric: Metric(0.4 + at / 10) for metric in metrics}) for at in (1, 2)]
    store.commit(run, records, status="finished", summary={"rounds": 2})
    return run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


def words(comparison: Comparison) -> str:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(table(comparison))
    return " ".join(out.getvalue().split())


def test_other_data_sets_are_named_with_the_runs_that_have_them(store: RunStore) -> None:
    keep(store, "fedavg", DIGITS)
    keep(store, "fedprox", DIGITS)
    keep(store, "flowers", {"name": "iris"})
    said = "Different data, so their numbers cannot be compared: fedavg, fedprox (digits); flowers (iris)."
    comparison = Comparison.stored(store)
    assert comparison.warnings == (said,)
    assert said in words(comparison)
    assert said in report_page(store, [])
    assert json.loads(to_json(comparison))["warnings"] == [said]
    assert f"% {said}" in to_latex(comparison)
    assert Comparison.stored(store, ["fedavg", "fedprox"]).warnings == ()


@pytest.mark.parametrize("change", [{"seed": 1}, {"partition": {"name": "dirichlet", "alpha": 0.1}, "clients": 5}])
def test_the_same_data_set_dealt_otherwise_belongs_together(store: RunStore, change: dict[str, Any]) -> None:
    keep(store, "fedavg", DIGITS, seed=0)
    keep(store, "fedprox", DIGITS | change, seed=change.get("seed", 0))
    assert Comparison.stored(store).warnings == ()
    assert "Different data" not in report_page(store, [])


def test_a_file_of_ones_own_is_named_and_known_again(store: RunStore) -> None:
    own = {"file": "/somewhere/patients.csv", "client": "clinic", "target": "ill"}
    keep(store, "fedavg", own)
    keep(store, "fedprox", own | {"client": "country", "test_fraction": 0.5})
    assert Comparison.stored(store).warnings == ()
    keep(store, "scaffold", own | {"file": "/somewhere/others.csv"})
    said = "fedavg, fedprox (patients.csv); scaffold (others.csv)."
    assert Comparison.stored(store).warnings[0].endswith(said)


def test_another_test_set_is_other_data(store: RunStore) -> None:
    keep(store, "fedavg", DIGITS)
    keep(store, "fedprox", DIGITS | {"central_fraction": 0.5})
    assert len(Comparison.stored(store).warnings) == 1


@pytest.mark.parametrize(
    ("seeds", "prints", "different"),
    [((0, 0), ("a", "a"), False), ((0, 0), ("a", "b"), True), ((0, 1), ("a", "b"), False)],
)
def test_data_made_in_python_are_told_by_their_fingerprints(
    store: RunStore, seeds: tuple[int, int], prints: tuple[str, str], different: bool
) -> None:
    for name, seed, fingerprint in zip(("x", "y"), seeds, prints, strict=True):
        keep(store, name, {"python": "Federation", "digest": fingerprint}, seed=seed, fingerprint=fingerprint)
    assert bool(Comparison.stored(store).warnings) is different


def test_it_is_said_why_one_regression_changes_the_metric_of_all(store: RunStore) -> None:
    for name in ("fedavg", "fedprox"):
        keep(store, name, DIGITS)
    keep(store, "sugar", {"name": "diabetes"}, loss="mse", metrics=NUMBERS)
    comparison = Comparison.stored(store)
    assert comparison.metric == "central/loss"
    assert comparison.warnings[1:] == (
        "Their losses are different functions, which cannot be compared: cross-entropy (fedavg, fedprox); mse (sugar).",
        "By central/loss, since central/accuracy was not measured in sugar.",
    )
    assert "not measured in sugar" not in words(Comparison.stored(store, metric="loss"))


def test_it_is_said_which_run_has_no_central_test_set(store: RunStore) -> None:
    for name in ("fedavg", "fedprox"):
        keep(store, name, DIGITS)
    keep(store, "blind", DIGITS, metrics=["train/loss"])
    assert Comparison.stored(store).warnings == ("By train/loss, since central/accuracy was not measured in blind.",)


@pytest.mark.filterwarnings("always::parley.ParleyWarning")
def test_different_losses_are_said_before_the_table(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    keep(store, "flowers", {"name": "iris"})
    keep(store, "sugar", {"name": "diabetes"}, loss="mse", metrics=NUMBERS)
    with pytest.raises(SystemExit):
        main(["compare", "flowers", "sugar", "--store", str(store.path)])
    said = "parley: warning: Their losses are different functions, which cannot be compared: cross-entropy (flowers);"
    assert capsys.readouterr().err.startswith(said)


def test_many_groups_are_not_all_named(store: RunStore) -> None:
    for number in range(7):
        keep(store, f"own{number}", DIGITS | {"central_fraction": number / 10})
    (said,) = Comparison.stored(store).warnings
    assert said.endswith("own4 (digits) and 2 more.")


def test_the_same_files_preprocessed_differently_are_the_same_data():
    from parley.report.same_data import same_data

    raw = {"seed": 0, "data": {"folder": "clinics", "missing": True, "test_fraction": 0.2}, "data_fingerprint": "a"}
    frozen = raw | {"data_fingerprint": "b", "preprocessing": {"center": [0.0], "scale": [1.0]}}
    scaled = raw | {"data_fingerprint": "c", "data": {**raw["data"], "standardise": True}}
    assert same_data(raw, frozen)
    assert same_data(scaled, frozen)
    assert not same_data(raw, frozen | {"seed": 1})
    assert not same_data(raw, frozen | {"data": {**raw["data"], "folder": "others"}})
    assert not same_data(raw, frozen | {"data": {**raw["data"], "test_fraction": 0.3}})
    assert not same_data(raw, raw | {"data_fingerprint": "b"})  # the files have changed
