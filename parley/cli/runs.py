"""`parley runs`: what the store holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.options import RunId, Store
from parley.cli.run import show_run
from parley.cli.screen import print_table
from parley.core.numbers import megabytes, metric_text, setting_text

if TYPE_CHECKING:
    from parley.study.seeds import Entry, Seeds

app = typer.Typer(help="List the runs of the store; show, delete or export one.", invoke_without_command=True)

Run = RunId


@app.callback()
def list_runs(context: typer.Context, store: Store = None) -> None:
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    from parley.store.runs import RunStore
    from parley.study.seeds import listing

    with RunStore(store, create=False) as runs:
        groups = listing(runs)
    columns = ["run", "status", "rounds", "result", "MB up", "seconds", "begun"]
    rows: list[list[object]] = []
    for group in groups:
        if len(group.entries) > 1:
            rows.append(_group_row(group))
        rows += [_row(entry, "  " if len(group.entries) > 1 else "") for entry in group.entries]
    print_table(columns, rows, right=columns[2:6])
    for note in _notes(groups):
        print(note)


def _notes(groups: Sequence[Seeds]) -> list[str]:
    """What the results mean where they are not all of one kind, and which intervals say little."""
    from parley.study.seeds import TWO_SEEDS

    shown = [entry.headline for group in groups for entry in group.entries]
    notes = []
    if any(name.startswith("clients/") for name in shown):
        notes.append(
            "clients': on clients' own held-out samples, by their own models where they have such; the others: on the "
            "central test set. 'parley compare' judges all by the same."
        )
    if any(len(group.finished) == 2 for group in groups):
        notes.append(f"{TWO_SEEDS}.")
    return notes


def _result(name: str, value: float, over: str, half: float = nan) -> str:
    """`accuracy 93.87 %` on the central test set, `clients' auc 0.81 (3 of 5 clients)` on clients' own samples."""
    from parley.engine.roll_call import over_clients

    where, _, what = name.rpartition("/")
    whose = "clients' " if where == "clients" else ""
    around = "" if isnan(half) else f" ±{metric_text(name, half)}"
    return f"{whose}{what} {metric_text(name, value)}{around}{over_clients(over)}"


def _row(entry: Entry, before: str) -> list[object]:
    info, numbers, name = entry.info, entry.numbers, entry.headline
    result = _result(name, numbers[name], entry.coverage) if name else None
    return [
        before + info.id,
        info.status,
        f"{info.rounds}/{info.config.get('rounds', '?')}",
        result,
        *_costs(entry.sent, numbers.get("seconds")),
        f"{info.created:%Y-%m-%d %H:%M}",
    ]


def _group_row(group: Seeds) -> list[object]:
    """What runs that differ in their seeds have in common: the mean of their results and half of its 95% interval."""
    name = group.headline
    mean, seconds = group.mean(name), group.mean("seconds")
    result = None if mean is None else _result(name, mean.value, group.coverage, mean.half)
    costs = _costs(group.sent, None if seconds is None else seconds.value)
    return [group.title, group.done, None, result, *costs, None]


def _costs(sent: float | None, seconds: float | None) -> tuple[str | None, str | None]:
    return None if sent is None else megabytes(sent), None if seconds is None else f"{seconds:,.1f}"


@app.command("show")
def show(context: typer.Context, run: Run, store: Store = None) -> None:
    """Show a run's results and its whole configuration."""
    from parley.store.runs import RunStore
    from parley.study.seeds import entry

    with RunStore(store or context.obj, create=False) as runs:
        info = runs.info(run)
        missing, numbers = runs.failures(info.id), entry(runs, info).numbers
    show_run(info.id, info.status, {"rounds": info.rounds, "failures": len(missing), **numbers}, missing)
    rows: list[tuple[str, str]] = []
    for name, value in info.config.items():
        below = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{name}.{key}" if key else name, setting_text(inner)) for key, inner in below]
    print_table(["setting", "value"], rows)


@app.command("delete")
def delete(context: typer.Context, run: Run, store: Store = None) -> None:
    """Delete a run and its artefacts."""
    from parley.store.runs import RunStore

    with RunStore(store or context.obj, create=False) as runs:
        id = runs.info(run).id
        runs.delete(id)
    print(f"deleted {id}")


@app.command("export")
def export(
    context: typer.Context,
    run: Run,
    file: Annotated[Path, typer.Argument(help="A .csv or .parquet file to write.", metavar="FILE")],
    failures: Annotated[
        bool, typer.Option("--failures", help="Who was left out instead: client, round, reason.")
    ] = False,
    store: Store = None,
) -> None:
    """Write a run's numbers as a table: round, metric, client, value."""
    from parley.core.errors import InputError
    from parley.store.runs import RunStore

    if file.suffix not in (".csv", ".parquet"):
        raise InputError(f"{file} must end in .csv or .parquet.")
    with RunStore(store or context.obj, create=False) as runs:
        if failures:
            runs.export_failures(run, file)
        else:
            (runs.export_parquet if file.suffix == ".parquet" else runs.export_csv)(run, file)
    print(file)
