"""`parley runs`: what the store holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.examples import run_names
from parley.cli.options import Store
from parley.cli.run import metric_value, show_run
from parley.cli.screen import megabytes, plain_value, print_table, seconds

if TYPE_CHECKING:
    from parley.store.runs import RunInfo

app = typer.Typer(help="List the runs of the store; show, delete or export one.", invoke_without_command=True)

Run = Annotated[
    str, typer.Argument(help="A run's id, the beginning of one, or 'last'.", metavar="RUN", autocompletion=run_names)
]


@app.callback()
def list_runs(context: typer.Context, store: Store = None) -> None:
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    from parley.store.runs import RunStore
    from parley.study.seeds import by_study

    with RunStore(store, create=False) as runs:
        infos = runs.runs()
    columns = ["run", "status", "rounds", "result", "MB up", "seconds", "begun"]
    rows: list[list[object]] = []
    for group in by_study(infos):
        if len(group) > 1:
            rows.append(_group_row(group))
        rows += [_row(info, "  " if len(group) > 1 else "") for info in group]
    print_table(columns, rows, right=columns[2:6])


def _headline(info: RunInfo) -> str:
    judged = [name for name in info.summary if name.startswith(("central/", "clients/"))]
    return next((name for name in judged if not name.endswith("/loss")), judged[0] if judged else "")


def _row(info: RunInfo, before: str) -> list[object]:
    summary, name = info.summary, _headline(info)
    result = f"{name.rpartition('/')[2]} {metric_value(name, summary[name])}" if name else None
    return [
        before + info.id, info.status, f"{info.rounds}/{info.config.get('rounds', '?')}", result,
        megabytes(summary.get("up/bytes")), seconds(summary.get("seconds")), f"{info.created:%Y-%m-%d %H:%M}",
    ]  # fmt: skip


def _group_row(group: Sequence[RunInfo]) -> list[object]:
    """The mean of the results of the seeds that finished (of all while none has) and half of its 95% interval."""
    from statistics import fmean

    from parley.study.seeds import counted, half_interval, seeds_text

    known = counted(group)
    name = next((found for info in known if (found := _headline(info))), "")
    values = [info.summary[name] for info in known if name in info.summary]
    result = None
    if values:
        half = f" ±{metric_value(name, half_interval(values))}" if len(values) > 1 else ""
        result = f"{name.rpartition('/')[2]} {metric_value(name, fmean(values))}{half}"
    costs = [[info.summary[cost] for info in known if cost in info.summary] for cost in ("up/bytes", "seconds")]
    up, spent = (fmean(found) if found else None for found in costs)
    done = sum(info.status == "finished" for info in group)
    return [
        f"{group[0].name}, seeds {seeds_text(group)}", f"{done} of {len(group)} done", None, result, megabytes(up),
        seconds(spent), None,
    ]  # fmt: skip


@app.command("show")
def show(context: typer.Context, run: Run, store: Store = None) -> None:
    """Show a run's results and its whole configuration."""
    from parley.store.runs import RunStore

    with RunStore(store or context.obj, create=False) as runs:
        info = runs.info(run)
        missing = runs.failures(info.id)
    show_run(info.id, info.status, {"rounds": info.rounds} | info.summary, missing)
    rows: list[tuple[str, str]] = []
    for name, value in info.config.items():
        below = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{name}.{key}" if key else name, plain_value(inner)) for key, inner in below]
    print_table(["setting", "value"], rows)


@app.command("delete")
def delete(context: typer.Context, run: Run, store: Store = None) -> None:
    """Delete a run and its artefacts."""
    from parley.store.runs import RunStore

    with RunStore(store or context.obj, create=False) as runs:
        found = runs.info(run).id
        runs.delete(found)
    print(f"deleted {found}")


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
