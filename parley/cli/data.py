"""`parley data`: data sets and how a study spreads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.examples import names_of
from parley.cli.options import Set
from parley.cli.screen import print_table, save_figure

if TYPE_CHECKING:
    from parley.data import Federation

app = typer.Typer(help="Data sets: list, fetch, show.", no_args_is_help=True)


@app.command("list")
def list_sets() -> None:
    """List the data sets, their sources and whether they are installed."""
    from parley.data import cache_dir, datasets

    rows: list[tuple[str, ...]] = []
    for name in datasets:
        loader = datasets[name]
        here = "embedded" if loader.embedded else "here" if loader.present else "not here"
        rows.append((name, here, loader.title, loader.license, loader.source))
    print_table(["data set", "", "", "license", "source"], rows)
    print(f"cache: {cache_dir()} (set $PARLEY_DATA for another)")


@app.command("fetch")
def fetch(
    names: Annotated[
        list[str],
        typer.Argument(help="Data sets to download.", metavar="NAME...", autocompletion=names_of("data-sets")),
    ],
) -> None:
    """Download data sets from their official source and verify their checksums."""
    from parley.data import datasets
    from parley.display.progress import steps

    loaders = [datasets[name] for name in names]
    with steps(of_bytes=True) as tell:
        fetched = [(loader.name, loader.fetch(tell)) for loader in loaders]
    for name, files in fetched:
        print(f"{name}: {len(files)} files here" if files else f"{name}: comes with Parley, nothing to fetch")


@app.command("show")
def show(
    what: Annotated[
        str,
        typer.Argument(
            help="A study file, or the name of a data set.", metavar="STUDY|NAME", autocompletion=names_of("data-sets")
        ),
    ],
    settings: Set = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw who has what (.png, .svg or .pdf).", metavar="FILE")
    ] = None,
    heterogeneity: Annotated[
        bool,
        typer.Option(
            "--heterogeneity", help="Also measure how far clients' labels and inputs are from those of all of them."
        ),
    ] = False,
) -> None:
    """Show a data set, or how a study spreads its data over clients."""
    from parley.core.errors import InputError

    if what.endswith(".toml") or Path(what).is_file():
        from parley.study.toml import load_clients

        study = load_clients(what, settings or [])
        if study.preprocessing is not None and not study.preprocessing.known:
            study = replace(study, preprocessing=None)  # `parley stats` has still to find out the numbers
        _show_federation(study.federation(), figure)
        if heterogeneity:
            _show_heterogeneity(study.federation(), study.seed)
        return
    if figure is not None or settings or heterogeneity:
        raise InputError(
            "--figure, --heterogeneity and --set need a study file, which says how the data are spread over clients."
        )
    from parley.data import datasets

    data = datasets[what]()
    rows: list[tuple[str, object]] = [
        ("data set", what), ("about", datasets[what].title), ("kind", data.info.kind), ("samples", f"{len(data):,}"),
        ("test samples", f"{len(data.test):,}" if data.test is not None else None), ("shape", data.info.shape),
        ("classes" if data.info.kind != "regression" else "outputs", data.info.outputs),
        ("natural clients", len(data.group_names) or None), ("license", data.info.license),
        ("source", data.info.source),
    ]  # fmt: skip
    print_table(["", ""], rows)


def _show_federation(federation: Federation, figure: Path | None) -> None:
    from parley.data import describe
    from parley.report import partition_figure

    names = {"min": "smallest client", "median": "median client", "max": "largest client"}
    facts = describe(federation)
    print_table(
        ["", ""],
        [
            (names.get(name, name.replace("_", " ")), f"{value:.4g}" if isinstance(value, float) else value)
            for name, value in facts.items()
        ],
    )
    if figure is not None:
        save_figure(partition_figure(federation), figure)


def _show_heterogeneity(federation: Federation, seed: int) -> None:
    import numpy as np

    from parley.advise.heterogeneity import METRICS, PARTS, heterogeneity

    measured = heterogeneity(federation, seed=seed)
    rows: list[tuple[object, ...]] = []
    for part in PARTS:
        for metric in filter(lambda metric: measured.informative(part, metric), METRICS):
            omega, between = measured.omega(part, metric), measured.between(part, metric)
            ends = "exact" if omega.exact else f"{omega.low:.4g} to {omega.high:.4g}"
            pairs = between[~np.eye(len(between), dtype=bool)]
            rows.append(
                (
                    f"omega_{metric.upper()}",
                    part,
                    f"{omega.value:.4g}",
                    ends,
                    f"{pairs.mean():.4g}",
                    f"{pairs.max():.4g}",
                    measured.farthest(part, metric),
                )
            )
    head = ["heterogeneity", "of", "to the mixture", "within", "client to client", "at most", "farthest"]
    print_table(head, rows, right=head[2:6])
    print(
        f"{len(measured.clients)} of {measured.population} clients measured; in joint two labels are "
        f"{measured.label_cost:.4g} apart."
    )
    if left := [part for part in PARTS if not measured.informative(part, "tv")]:
        print(f"omega_TV of {' and '.join(left)} is left out: hardly any two samples are equal, so it says nothing.")
