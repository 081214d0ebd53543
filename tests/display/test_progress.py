"""Progress: right figures, plain lines without a terminal, a restored terminal whatever happens, next to no cost."""

from __future__ import annotations

import io
import math
import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import parley as pl
from parley.core.numbers import duration, megabytes
from parley.display import progress
from parley.display.progress import Figures, Progress, ProgressTable
from parley.engine.run import Run
from parley.engine.stopping import Headline
from parley.store.records import Failure, Metric, RoundRecord

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Quiet:
    """As much of a run as progress looks at."""

    name, status, records, headline = "fedavg", "finished", (), None


def a_run(**changes: Any) -> Run:
    run = Quiet()
    for name, value in changes.items():
        setattr(run, name, value)
    return cast(Run, run)


def record(number: int, failures: int = 0, **metrics: float) -> RoundRecord:
    named = {name.replace("_", "/"): Metric(value) for name, value in metrics.items()}
    return RoundRecord(number, named, tuple(Failure(str(i), "was away") for i in range(failures)))


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=100, color_system=None), out


def federation() -> pl.Federation:
    return pl.data.iris().split(pl.IID(), clients=4, seed=0)


def test_figures_follow_the_records() -> None:
    figures = Figures()
    figures.add(record(0, central_accuracy=0.1, central_loss=2.3))
    figures.add(record(1, central_accuracy=0.8, central_loss=0.5, up_bytes=2e6, cohort=10, failures=1))
    figures.add(record(2, up_bytes=1e6, cohort=9, failures=2))
    figures.add(record(3, central_accuracy=0.7, central_loss=0.6, up_bytes=1e6, cohort=10))
    assert (figures.round, figures.best, figures.up, figures.failures, figures.cohort) == (3, 0.8, 4e6, 3, 10)
    assert figures.parts() == ["accuracy 70.0% (best 80.0%)", "loss 0.6", "cohort 10", "4 MB up", "3 failed"]


def test_best_is_the_lowest_loss_where_there_is_no_accuracy_and_nan_is_shown() -> None:
    figures = Figures()
    for number, loss in enumerate((3.0, 1.0, 2.0, math.nan)):
        figures.add(record(number, clients_loss=loss))
    assert figures.best == 1.0
    assert figures.parts() == ["loss nan (best 1)"]


def test_best_is_that_of_the_metric_a_run_is_judged_by() -> None:
    figures = Figures(Headline("central/brier", smaller=True))
    for number, (brier, accuracy) in enumerate(((0.5, 0.2), (0.2, 0.9), (0.3, 0.4))):
        figures.add(record(number, central_brier=brier, central_accuracy=accuracy))
    figures.add(record(3, cohort=2, up_bytes=1e6))
    assert figures.parts() == ["central/brier 0.3 (best 0.2)", "accuracy 40.0%", "cohort 2", "1 MB up"]


def test_a_run_judged_by_its_loss_shows_the_best_loss_first() -> None:
    figures = Figures(Headline("central/loss", smaller=True))
    for number, (loss, accuracy) in enumerate(((2.0, 0.2), (1.0, 0.9), (1.5, 0.95))):
        figures.add(record(number, central_loss=loss, central_accuracy=accuracy))
    assert figures.parts() == ["loss 1.5 (best 1)", "accuracy 95.0%"]


def test_best_is_the_clients_accuracy_where_there_is_no_central_one() -> None:
    figures = Figures()
    for number, accuracy in enumerate((0.2, 0.9, 0.4)):
        figures.add(record(number, clients_accuracy=accuracy))
    assert figures.parts() == ["clients 40.0% (best 90.0%)"]


def test_without_a_terminal_a_line_now_and_then_and_no_control_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("parley.display.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    shown, out = console(terminal=False)
    listener = Progress(shown)
    listener.start(a_run(), 100)
    for number in range(1, 101):
        clock[0] += 0.25
        listener.round(record(number, central_accuracy=number / 100, up_bytes=1e6, cohort=5))
    listener.end(a_run())
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert len(lines) == 25 / progress.QUIET + 1  # 25 seconds, then the last word
    assert "round 20/100" in lines[0]
    assert "4 rounds/s, 20 s left" in lines[0]
    assert "round 100/100" in lines[-1]
    assert "finished after 25 s" in lines[-1]


def test_the_terminal_is_restored_when_training_fails() -> None:
    class Broken(pl.Listener):
        def round(self, record: RoundRecord) -> None:
            if record.number == 2:
                raise RuntimeError("boom")

    shown, out = console(terminal=True)
    with pytest.raises(RuntimeError, match="boom"):
        pl.train(pl.FedAvg(), federation(), model=pl.models.linear(), rounds=5, listeners=[Progress(shown), Broken()])
    text = out.getvalue()
    assert text.count(HIDE) == 1
    assert text.rindex(SHOW) > text.rindex(HIDE)
    assert "failed after" in text


def test_a_whole_run_on_a_terminal() -> None:
    shown, out = console(terminal=True)
    pl.train(pl.FedAvg(), federation(), model=pl.models.linear(), rounds=5, listeners=[Progress(shown)], name="mine")
    text = out.getvalue()
    assert "mine: runtime stacked" in text
    assert "5/5" in text
    assert "finished after" in text
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_a_resumed_run_goes_on_where_it_was() -> None:
    shown, out = console(terminal=False)
    listener = Progress(shown)
    listener.start(a_run(records=[record(7, central_accuracy=0.9)]), 10)
    listener.end(a_run(status="interrupted"))
    assert "round 7/10 · accuracy 90.0% (best 90.0%) · interrupted after 0 s" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_round_costs_next_to_nothing(terminal: bool) -> None:
    shown, _ = console(terminal)
    listener = Progress(shown)
    listener.start(a_run(), 20_000)
    one = record(1, central_accuracy=0.5, central_loss=1.0, clients_accuracy=0.4, up_bytes=1e6, cohort=9)
    costs = []
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(1000):
            listener.round(one)
        costs.append((time.thread_time() - begin) / 1000)
    listener.end(a_run())
    assert sorted(costs)[len(costs) // 2] < 20e-6


def test_numbers_for_people() -> None:
    assert [megabytes(b) for b in (0, 1234, 4_560_000, 99_950_000, 250e6, 2.5e9)] == [
        "0",
        "0.00123",
        "4.56",
        "100",
        "250",
        "2,500",
    ]
    assert [duration(s) for s in (0.2, 59.4, 59.6, 125, 3725)] == ["0 s", "59 s", "1:00", "2:05", "1:02:05"]


def test_several_runs_in_a_table_or_line_by_line() -> None:
    """A row waits, trains and ends; runs that send no model show no traffic; names are shown as they are."""
    for terminal in (True, False):
        out = io.StringIO()
        table = ProgressTable(["a", "b", "[c]"], Console(file=out, width=100, force_terminal=terminal), silent=["b"])
        record = RoundRecord(1, {"central/accuracy": Metric(0.5), "up/bytes": Metric(2e6)})
        run = object.__new__(Run)
        with table.shown():
            for name in ("a", "b"):
                table.rows[name].start(run, 2)
                table.rows[name].round(record)
            cells = {name: [str(cell) for cell in row.cells()] for name, row in table.rows.items()}
            table.rows["a"].end(run)
        assert cells["a"][4] == "2 MB"
        assert cells["b"][4] == "–"
        assert cells["[c]"][1] == "waiting"
        assert ("a: accuracy 50.0%" in out.getvalue()) != terminal


def test_a_notebook_has_one_place_that_is_drawn_anew(monkeypatch):
    """One output of IPython, updated, with the bar and the figures of the last round."""
    shown: list[str] = []

    class Handle:
        def update(self, html):
            shown.append(html)

    def display(html, display_id=False):
        if display_id:  # rich shows notes as outputs of their own
            shown.append(html)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=None))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display, HTML=str))
    monkeypatch.setattr("parley.display.progress.UPDATES", 1e9)
    drawn = Progress(Console(force_jupyter=True, file=io.StringIO()))
    federation = pl.data.iris().split(pl.IID(), clients=3)
    pl.train(pl.FedAvg(), federation, model=pl.models.linear(), rounds=3, listeners=[drawn], name="<b>")
    assert len(shown) >= 4
    assert "3/3" in shown[-1]
    assert "finished after" in shown[-1]
    assert "accuracy" in shown[-1]
    assert "&lt;b&gt;" in shown[-1]
    assert shown[-1].startswith("<pre style=")
