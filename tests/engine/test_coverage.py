"""Over how many clients a mean is, said wherever it is shown; evaluations that missed clients are never the best."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.cli.main import main
from parley.core.errors import InputError
from parley.data import Federation
from parley.display.progress import Figures
from parley.engine.evaluation import _mean_over_clients
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.models import linear
from parley.report import Comparison, to_csv, to_json, to_latex
from parley.report.page import report_page
from parley.runtimes.protocol import Score
from parley.store.records import Failure, Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.stored import export_run, load_run
from parley.study.train import train


def clinics(central: bool = False) -> Federation:
    """Five clients of two classes, of which the last two have held-out samples of one class alone."""
    random = np.random.default_rng(3)
    x = random.normal(size=(500, 4)).astype(np.float32)
    y = (x[:, 0] + random.normal(size=500) > 0).astype(int)
    parts = {name: (x[k : k + 80], y[k : k + 80]) for k, name in zip(range(0, 400, 80), "abcde", strict=True)}
    for name in "de":
        parts[name] = (parts[name][0], np.zeros(80, int))
    return Federation.from_arrays(parts, test=(x[400:], y[400:]) if central else None, test_fraction=0.5, seed=0)


def auc_run(store: RunStore | Path, **settings: Any) -> Run:
    evaluation = Evaluation(clients="all", metrics=("auc",), metric="auc")
    return train(FedAvg(lr=0.5), clinics(), model=linear(), rounds=2, evaluation=evaluation, store=store, **settings)


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(command))
    assert not end.value.code
    return " ".join(capsys.readouterr().out.split())


def flaky(lost: dict[int, int]) -> Callable[..., float]:
    """A metric that fails for the client that has so many held-out samples, in this of its evaluations."""
    calls: dict[int, int] = {}

    def size(outputs: Any, targets: Any) -> float:
        count = len(targets)
        calls[count] = calls.get(count, -1) + 1
        if lost.get(count) in (calls[count], -1):
            raise ValueError("its disk is full")
        return float(count)

    return size


def uneven() -> Federation:
    """Three clients; `worst`, with 12 held-out samples, has labels that no model of the others fits."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    parts = {"a": (x[:40], y[:40]), "b": (x[40:76], y[40:76]), "worst": (x[76:100], 1 - y[76:100])}
    return Federation.from_arrays(parts, test_fraction=0.5, seed=0)


def missing_once(round: int, **settings: Any) -> Run:
    evaluation = Evaluation(clients="all", metrics=(flaky({12: round}),), **settings)
    return train(FedAvg(lr=0.5), uneven(), model=linear(), rounds=6, evaluation=evaluation, runtime="inline")


def test_the_summary_says_over_how_many_of_how_many(tmp_path: Path) -> None:
    run = auc_run(tmp_path / "runs.db")
    summary = run.summary()
    assert summary["clients/auc/clients"] == "3 of 5"
    assert "clients/accuracy/clients" not in summary
    assert "(3 of 5 clients)" in repr(run)
    figures = Figures(run.headline)
    for record in run.records:
        figures.add(record)
    assert "(3 of 5 clients) (best" in " ".join(figures.parts())


def test_every_view_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.db"
    with RunStore(path) as store:
        for seed in (0, 1):
            auc_run(store, name="clinics", seed=seed)
        run = store.runs()[0].id
        export_run(store, run, tmp_path / "model", formats=["safetensors"])
        card = json.loads((tmp_path / "model" / "card.json").read_text())
        assert card["provenance"]["results"]["clients/auc/clients"] == "3 of 5"
        page = report_page(store, [])
        assert "means over 3 of 5 clients" in page[: page.index("Curves")]
        comparison = Comparison.stored(store, metric="clients/auc")
        assert any("means over 3 of 5 clients" in sentence for sentence in comparison.warnings)
        assert "means over 3 of 5 clients" in to_latex(comparison)
        assert "means over 3 of 5 clients" in to_json(comparison)
        assert "3 of 5" in to_csv(comparison)
        assert Comparison.stored(store, metric="accuracy").warnings == ()
    for command in (["runs"], ["runs", "show", run]):
        assert "3 of 5 clients" in printed(capsys, *command, "--store", str(path))


def test_runs_that_were_cut_off_say_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = {"a": 0.7, "b": 0.9, "c": float("nan")}
    gone = (Failure("d", "could not be evaluated: raised OSError: gone"),)
    with RunStore(tmp_path / "runs.db") as store:
        run = store.create("a", {"rounds": 4, "evaluate": {"metric": "auc"}}, "a")
        metrics = {"clients/auc": Metric(0.8, clients), "clients/auc/clients": Metric(2)}
        store.commit(run, [RoundRecord(1, metrics, gone)], status="interrupted")
    assert "0.8 (2 of 4 clients)" in printed(capsys, "runs", "--store", str(tmp_path / "runs.db"))


def test_a_diverged_client_is_not_taken_for_an_undefined_metric() -> None:
    def score(loss: float, auc: float) -> Score:
        return Score(loss, 1.0, 2, 2, {"auc": auc})

    nan = float("nan")
    healthy = {"a": score(1.0, 0.8), "b": score(2.0, nan), "c": score(1.0, 0.6)}
    assert _mean_over_clients("clients", healthy)["clients/auc"].value == pytest.approx(0.7)
    assert np.isnan(_mean_over_clients("clients", healthy | {"d": score(nan, nan)})["clients/auc"].value)


@pytest.mark.parametrize("round", range(2, 6))
def test_the_best_is_of_an_evaluation_that_missed_nobody(round: int) -> None:
    run, whole = missing_once(round), missing_once(-2)
    values = {record.number: record.metrics["clients/accuracy"].value for record in whole.records}
    fewer = {record.number: record.metrics["clients/accuracy"].value for record in run.records}
    assert fewer[round] > max(values.values())  # without the worst client it looks better than ever
    del values[round]
    assert run.best_value == max(values.values()) == run.best("clients/accuracy")
    assert values[run.best_round or 0] == run.best_value
    assert run.summary()["best clients/accuracy"] == run.best_value
    assert run.summary()["incomplete evaluations"] == "1 of 7"
    assert "incomplete evaluations" not in whole.summary()


def test_neither_target_nor_patience_goes_by_an_evaluation_that_missed_somebody() -> None:
    best = max(record.metrics["clients/accuracy"].value for record in missing_once(-2).records)
    run = missing_once(2, target=best + 0.01)
    assert run.records[2].metrics["clients/accuracy"].value > best + 0.01
    assert run.records[-1].number == 6
    # Its value counts neither as a new best nor as one without.
    flat = missing_once(2, patience=3, min_delta=1.0)
    assert flat.records[-1].number == missing_once(-2, patience=3, min_delta=1.0).records[-1].number + 1


def test_a_run_that_nobody_could_judge_whole_has_no_best_model() -> None:
    evaluation = Evaluation(clients="all", metrics=(flaky({12: -1}),))
    run = train(FedAvg(lr=0.5), uneven(), model=linear(), rounds=2, evaluation=evaluation, runtime="inline")
    assert (run.best_state, run.best_value) == (None, None)
    assert "best clients/accuracy" not in run.summary()
    assert run.summary()["clients/accuracy/clients"] == "2 of 3"
    assert run.summary()["incomplete evaluations"] == "3 of 3"
    with pytest.raises(InputError, match="no evaluation of this run reached all its clients"):
        run.model(best=True)


def test_comparisons_take_best_and_costs_from_whole_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    evaluation = Evaluation(clients="all", metrics=(flaky({12: 3}),))
    run = train(FedAvg(lr=0.5), uneven(), model=linear(), rounds=4, evaluation=evaluation, runtime="inline", store=path)
    lost = run.records[3].metrics["clients/accuracy"].value
    assert lost > run.best("clients/accuracy")
    with RunStore(path) as store:
        for comparison in (Comparison.stored(store, target=lost), Comparison.of([run], target=lost)):
            (line,) = comparison.lines
            assert line.best.value == run.best("clients/accuracy")
            assert line.reached == (None,)


def test_central_results_do_not_wait_for_clients() -> None:
    """The server's model on the central test set was judged, whoever else was not."""
    evaluation = Evaluation(clients="all", metrics=(flaky({40: -1}),))
    run = train(FedAvg(lr=0.5), clinics(central=True), model=linear(), rounds=1, evaluation=evaluation)
    assert run.headline is not None
    assert run.headline.name == "central/accuracy"
    assert run.best_value == max(run.series("central/accuracy")[1])
    assert "incomplete evaluations" not in run.summary()


def test_a_loaded_run_is_judged_by_what_it_was(tmp_path: Path) -> None:
    trained = auc_run(tmp_path / "runs.db")
    loaded = load_run(tmp_path / "runs.db", "last")
    assert loaded.headline == trained.headline
    assert list(loaded.summary()) == list(trained.summary())
    assert repr(loaded) == repr(trained)


def test_personal_runs_that_were_cut_off_are_listed_by_their_own_headline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from parley.engine.listeners import Listener

    class Killed(Listener):
        def round(self, record: RoundRecord) -> None:
            if record.number == 1:
                raise KeyboardInterrupt

    path = tmp_path / "runs.db"
    with pytest.raises(KeyboardInterrupt):
        train(LocalOnly(lr=0.5), clinics(central=True), model=linear(), rounds=3, store=path, listeners=[Killed()])
    with RunStore(path) as store:
        info = store.info("last")
        assert info.status == "interrupted"
        assert {"central/accuracy", "clients/accuracy"} <= store.latest(info.id).keys()
        assert load_run(store, "last").headline.name == "clients/accuracy"
    assert "clients' accuracy" in printed(capsys, "runs", "--store", str(path)).partition("clients': on")[0]
