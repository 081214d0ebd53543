"""Watching runs in a store: each told apart by its seed, with its own duration, and whole however small the window."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from parley.core.errors import InputError
from parley.report.watch import Watch
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / "runs.db") as made:
        yield made


def add(store: RunStore, seed: int, rounds: int, status: str | None = None) -> str:
    """A run whose rounds took 30 s each, going on if it has no status."""
    run = store.create("mine", {"rounds": 40, "seed": seed}, "mine")
    store.claim(run)
    numbers = {"central/accuracy": Metric(0.5), "up/bytes": Metric(1e6), "cohort": Metric(4.0)}
    took = {"seconds": Metric(20.0), "evaluate/seconds": Metric(10.0)}
    store.commit(run, [RoundRecord(n, numbers | (took if n else {})) for n in range(rounds + 1)], status=status)
    if status:
        store.release(run)
    return run


def watched(store: RunStore, run: str | None = None, limit: float = 0.0, **screen: int) -> str:
    out = io.StringIO()
    Watch(store, Console(file=out, force_terminal=bool(screen), color_system=None, **screen), run).follow(limit)
    return out.getvalue()


def test_an_ended_run_took_what_its_rounds_took(store: RunStore) -> None:
    run = add(store, 3, 4, "finished")
    line = f"{run}: round 4/40 · seed 3 · accuracy 50.0% (best 50.0%) · cohort 4 · 5 MB up · finished after 2:00\n"
    assert watched(store, run) == line


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"metric": "f1"}, "central/f1 0.5 (best 0.75)"),
        ({"headline": "clients/f1"}, "clients/f1 0.25 (best 0.25)"),
        ({"headline": "-server/lag"}, "server/lag 3 (best 2)"),
        ({"metric": "loss"}, "loss 0.6 (best 0.4)"),
        ({"metric": "auto"}, "accuracy 50.0% (best 50.0%)"),
    ],
)
def test_what_the_study_judges_by_is_shown_first(store: RunStore, told: dict[str, str], shown: str) -> None:
    run = store.create("mine", {"rounds": 9, "seed": 0, "evaluate": told}, "mine")
    both = {"central/accuracy": Metric(0.5), "clients/f1": Metric(0.25)}
    turns = ((0.75, 0.4, 2.0), (0.5, 0.6, 3.0))
    store.commit(
        run,
        [
            RoundRecord(n, both | {"central/f1": Metric(f1), "central/loss": Metric(loss), "server/lag": Metric(lag)})
            for n, (f1, loss, lag) in enumerate(turns)
        ],
        status="finished",
    )
    assert watched(store, run).startswith(f"{run}: round 1/9 · seed 0 · {shown} · ")


def test_a_killed_run_took_what_its_rounds_took(store: RunStore) -> None:
    run = add(store, 0, 2)
    store.release(run)
    assert watched(store, run).endswith(" · interrupted after 1:00\n")


def test_each_running_run_has_its_line_at_once(store: RunStore) -> None:
    runs = [add(store, seed, 10) for seed in range(3)]
    lines = watched(store).splitlines()
    assert [line.split(":")[0] for line in lines] == runs
    assert [f"seed {seed} ·" in line for seed, line in enumerate(lines)] == [True] * 3
    assert all(line.endswith("30 s/round, 15:00 left") for line in lines)


def test_the_last_line_has_what_came_since(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add(store, 0, 1)
    new = [RoundRecord(2, {"central/accuracy": Metric(0.9)})]
    monkeypatch.setattr("parley.report.watch.time.sleep", lambda _: new and store.commit(run, [new.pop()]))
    lines = watched(store, limit=0.3).splitlines()
    assert [line.split(" · ")[0] for line in lines] == [f"{run}: round 1/40", f"{run}: round 2/40"]


def test_a_run_without_rounds_is_shown(store: RunStore) -> None:
    run = store.create("new", {"rounds": 40, "seed": 0}, "new")
    store.claim(run)
    assert watched(store).startswith(f"{run}: round 0/40 · seed 0 · ")


def test_a_low_window_says_how_many_runs_it_hides(store: RunStore) -> None:
    for seed in range(5):
        add(store, seed, 1)
    shown = watched(store, width=80, height=8)
    assert "and 2 more runs" in shown
    assert "seed 2" in shown
    assert "seed 3" not in shown
    assert "more run" not in watched(store, width=80, height=12)


@pytest.mark.parametrize("width", [60, 80])
def test_there_is_room_for_what_the_terminal_echoes(store: RunStore, width: int) -> None:
    """A line as wide as the window and the ^C behind it would be two."""
    add(store, 0, 1)
    lines = watched(store, width=width, height=24).replace("\r", "\n").replace("\x1b[2K", "").split("\n")
    plain = [line.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\x1b[1A", "") for line in lines]
    assert max(map(len, plain)) <= width - 3
    assert any(line.endswith("left") for line in plain)


@pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(store: RunStore, limit: float) -> None:
    add(store, 0, 1)
    with pytest.raises(InputError, match="0 or more"):
        watched(store, limit=limit)
