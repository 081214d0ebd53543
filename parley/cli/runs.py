"""`parley runs`: what the store holds."""

from __future__ import annotations

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

    with RunStore(store, create=False) as runs:
        infos = runs.runs()
    columns = ["run", "status", "rounds", "result", "MB up", "seconds", "begun"]
    print_table(columns, [_row(info) for info in infos], right=columns[2:6])


def _row(info: RunInfo) -> list[object]:
    summary = info.summary
    judged = [name for name in summary if name.startswith(("central/", "clients/"))]
    name = next((name for name in judged if not name.endswith("/loss")), judged[0] if judged else "")
    result = f"{name.rpartition('/')[2]} {metric_value(name, summary[name])}" if name else None
    return [
        info.id, info.status, f"{info.rounds}/{info.config.get('rounds', '?')}", result,
        megabytes(summary.get("up/bytes")), seconds(summary.get("seconds")), f"{info.created:%Y-%m-%d %H:%M}",
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
    from parley.store.runs import RunStore

    with RunStore(store or context.obj, create=False) as runs:
        if failures:
            runs.export_failures(run, file)
        else:
            (runs.export_parquet if file.suffix == ".parquet" else runs.export_csv)(run, file)
    print(file)
