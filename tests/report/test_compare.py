"""Comparisons: costs until the target by hand-made records, honest about what was not reached, stored or not."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

import parley as pl
from parley.report import Comparison, Contender, Reached, figure, table, to_csv, to_json
from parley.report.groups import Role, lower_is_better
from parley.store.records import Failure, Metric, RoundRecord


def contender(
    label: str,
    accuracies: list[float],
    role: Role = "federated",
    clients: list[float] | None = None,
    failures: int = 0,
    seed: int | None = None,
) -> Contender:
    """A run that sends 1 MB up and 2 MB down and takes half a second per round; round 0 is free."""
    records = []
    for number, accuracy in enumerate(accuracies):
        metrics = {"central/accuracy": Metric(accuracy)}
        if number:
            metrics |= {"up/bytes": Metric(1e6), "down/bytes": Metric(2e6), "seconds": Metric(0.5)}
        if clients is not None:
            metrics["clients/accuracy"] = Metric(0.5, {str(i): value for i, value in enumerate(clients)})
        gone = tuple(Failure(str(i), "was away") for i in range(failures if number == 1 else 0))
        records.append(RoundRecord(number, metrics, gone))
    return Contender.of_records(label, records, role=role, config={} if seed is None else {"seed": seed})


def text(comparison: Comparison, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table(comparison))
    return out.getvalue()


def test_costs_until_the_target_are_added_up_to_the_first_round_that_reached_it() -> None:
    slow, fast = contender("slow", [0.1, 0.5, 0.7, 0.9, 0.85]), contender("fast", [0.1, 0.9, 0.4])
    comparison = Comparison.of([slow, fast, contender("poor", [0.1, 0.2])], target=0.8)
    lines = {line.label: line for line in comparison.lines}
    assert lines["slow"].reached == (Reached(3, 9.0, 1.5),)
    assert lines["fast"].reached == (Reached(1, 3.0, 0.5),)
    assert lines["poor"].reached == (None,)
    assert (lines["slow"].last.value, lines["slow"].best.value) == (0.85, 0.9)
    assert (lines["slow"].rounds, lines["slow"].megabytes, lines["slow"].seconds) == (4, 12.0, 2.0)


def test_a_target_in_percent_is_refused() -> None:
    with pytest.raises(
        pl.InputError, match=r"the target is 95, but accuracy lies between 0 and 1; for 95% write 0\.95"
    ):
        Comparison.of([contender("a", [0.1, 0.8])], target=95)


def test_the_default_target_leaves_baselines_out_and_is_said() -> None:
    runs = [contender("a", [0.1, 0.8]), contender("b", [0.1, 0.6]), contender("all data", [0.1, 0.99], "pooled")]
    comparison = Comparison.of(runs)
    assert comparison.target == pytest.approx(0.95 * 0.8)
    shown = " ".join(text(comparison).split())
    assert "Target 76.0%: 95% of the best final accuracy among the federated runs." in shown
    assert "not reached" in shown


def test_the_loss_is_better_when_lower() -> None:
    def losses(label: str, values: list[float]) -> Contender:
        return Contender.of_records(label, [RoundRecord(n, {"clients/loss": Metric(v)}) for n, v in enumerate(values)])

    comparison = Comparison.of([losses("a", [3.0, 1.0, 2.0]), losses("b", [3.0, 2.5, 2.2])])
    assert comparison.metric == "clients/loss"
    assert comparison.target == pytest.approx(2.0 / 0.95)
    first, second = comparison.lines
    assert (first.best.value, first.last.value) == (1.0, 2.0)
    assert [one.round for one in first.successes] == [1]
    assert second.successes == []
    figure(comparison)


def test_quantiles_of_the_clients_and_failures() -> None:
    run = contender("a", [0.1, 0.8], clients=[i / 10 for i in range(11)], failures=3)
    (line,) = Comparison.of([run]).lines
    assert line.quantiles == pytest.approx((0.1, 0.5, 0.9))
    assert run.failures == 3
    shown = text(Comparison.of([run]))
    assert "10  50  90" in shown
    assert "missing" in shown


def test_the_table_fits_a_terminal_of_80_columns_without_cutting_names_or_numbers() -> None:
    runs = [
        contender("centralised", [0.1, 0.97], "pooled", failures=2),
        contender("local-only", [0.1, 0.3], "alone", clients=[0.5, 1.0]),
        contender("fedadagrad", [0.1, 0.955], clients=[0.9, 1.0]),
    ]
    shown = text(Comparison.of(runs))
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for word in ("centralised", "local-only", "fedadagrad", "not reached", "95.5%"):
        assert word in shown


def test_a_run_that_diverged_is_shown_as_such() -> None:
    comparison = Comparison.of([contender("bad", [0.1, math.nan]), contender("worse", [math.nan, math.nan])])
    assert [line.reached for line in comparison.lines] == [(None,), (None,)]
    assert "No target: no final accuracy of the federated runs is a number." in " ".join(text(comparison).split())
    assert json.loads(to_json(comparison))["runs"][1]["best"] is None
    figure(comparison)


def test_json_and_csv_hold_the_same_numbers(tmp_path: Path) -> None:
    runs = [contender("a", [0.1, 0.8], clients=[0.5, 1.0]), contender("b", [0.1, 0.2])]
    comparison = Comparison.of(runs)
    read = json.loads(to_json(comparison, tmp_path / "c.json"))
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison, tmp_path / "c.csv"))))
    assert json.loads((tmp_path / "c.json").read_text()) == read
    assert (tmp_path / "c.csv").read_text() == to_csv(comparison)
    assert read["runs"][0]["reached"] == {"round": 1, "megabytes": 3.0, "seconds": 0.5}
    assert read["runs"][0]["curve"]["values"] == [0.1, 0.8]
    assert read["runs"][1]["reached"] is None
    assert (rows[0]["round_to_target"], rows[1]["round_to_target"]) == ("1", "")
    assert float(rows[1]["last"]) == read["runs"][1]["last"] == 0.2


def test_runs_of_the_same_name_are_told_apart() -> None:
    comparison = Comparison.of([contender("a", [0.1, 0.2]), contender("a", [0.1, 0.3]), contender("b", [0.1, 0.3])])
    assert [line.label for line in comparison.lines] == ["a (1)", "a (2)", "b"]


def test_what_cannot_be_compared_is_refused() -> None:
    loss_only = Contender.of_records("l", [RoundRecord(0, {"central/loss": Metric(1.0)})])
    with pytest.raises(pl.InputError, match="nothing to compare"):
        Comparison.of([])
    with pytest.raises(pl.InputError, match="'accuracy' was not measured in all of these runs"):
        Comparison.of([loss_only, contender("a", [0.1])], metric="accuracy")
    with pytest.raises(pl.InputError, match="'empty' has recorded nothing"):
        Contender.of_records("empty", [])


def test_stored_runs_compare_like_the_runs_themselves(tmp_path: Path) -> None:
    federation = pl.data.iris().split(pl.Dirichlet(0.5), clients=5, seed=0, test_fraction=0.2)
    methods: dict[str, pl.Algorithm] = {
        "fedavg": pl.FedAvg(),
        "local-only": pl.LocalOnly(),
        "centralised": pl.Centralised(),
    }
    with pl.RunStore(tmp_path / "runs.db") as store:
        runs = [
            pl.train(
                method,
                federation,
                model=pl.models.linear(),
                rounds=3,
                store=store,
                name=name,
                evaluation=pl.Evaluation(clients="all"),
            )
            for name, method in methods.items()
        ]
        stored = Comparison.stored(store, [run.id or "" for run in runs])
    now = Comparison.of(runs)
    assert [run.role for run in stored.contenders] == ["federated", "alone", "pooled"]
    ours, theirs = (json.loads(to_json(one)) for one in (stored, now))
    assert [run.pop("seed") for run in ours["runs"]] == [0, 0, 0]
    assert [run.pop("seed") for run in theirs["runs"]] == [None, None, None]
    assert ours == theirs
    assert text(stored) == text(now)


def test_the_figure_has_a_panel_for_clients_only_where_they_were_measured(tmp_path: Path) -> None:
    runs = [contender(f"m{i}", [0.1, 0.5 + i / 50, 0.6 + i / 50]) for i in range(9)]
    plain = figure(Comparison.of(runs))
    assert len(plain.axes) == 2
    lines = [line for line in plain.axes[0].get_lines() if str(line.get_label()).startswith("m")]
    styles = {(line.get_color(), str(line.get_linestyle())) for line in lines}
    assert len(styles) == 9
    drawn = figure(Comparison.of([*runs, contender("own", [0.1, 0.95], "alone", clients=[0.2, 0.4, 1.0])]))
    assert len(drawn.axes) == 3
    drawn.savefig(tmp_path / "figure.png", dpi=50)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_names_cannot_command_the_terminal_or_the_figure(tmp_path: Path) -> None:
    """Escape sequences, markup and formulas in a run's name are shown as they are."""
    hostile = "[red]\x1b[2Jx[/red] $\\frac$"
    comparison = Comparison.of([contender(hostile, [0.1, 0.8]), contender("b", [0.1, 0.7])])
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True).print(table(comparison))
    assert "\x1b[2J" not in out.getvalue()
    assert "[red]\\x1b[2Jx[/red]" in out.getvalue()
    drawn = figure(comparison)
    drawn.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("metric", "lower"), [("accuracy", False), ("auc", False), ("r2", False), ("loss", True), ("mae", True)]
)
def test_the_better_end_of_a_metric_is_the_metric_s_own(metric: str, lower: bool) -> None:
    assert lower_is_better(f"central/{metric}") == lower
