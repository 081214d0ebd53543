"""`parley gain`: which clients of a study profit by joining, and when to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.options import Csv, Json, Set, StudyFile
from parley.cli.screen import console, print_table, write_texts, writing

if TYPE_CHECKING:
    from parley.advise.gain import Gains

_FORMATS = (".png", ".svg", ".pdf")


def gain(
    study: StudyFile,
    settings: Set = None,
    folds: Annotated[int, typer.Option("--folds", help="Parts of each client's samples, each held out in turn.")] = 8,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="How often the folds are drawn; 1, or 3 in closed form.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", help="Random clients to evaluate; all take part in training.")
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Confidence level of the intervals.")] = 0.9,
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            help="What an error is: loss (the study's); for classes also error-rate, or brier (squared error of the "
            "probabilities), which rare classes dominate less.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Number of training seeds; from 2 on intervals include their variance.")
    ] = 1,
    local_rounds: Annotated[
        int | None, typer.Option("--local-rounds", help="Rounds own models may train; the study's, but at least 50.")
    ] = None,
    local_rate: Annotated[
        list[float] | None,
        typer.Option("--local-rate", help="Rates to try for own models (repeatable); 0.3, 1 and 3 times the study's."),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            help="Kernel regression in place of the study's model: rbf, laplace, linear, polynomial or two-layer-ntk.",
        ),
    ] = None,
    lengthscale: Annotated[
        float | None, typer.Option("--lengthscale", help="Of the kernel; the median distance between samples.")
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            "--sigma", help="Standard deviation of the noise, to say when linear and kernel models stop; measured."
        ),
    ] = None,
    norm: Annotated[
        float, typer.Option("--norm", help="Distance of the start from the truth; unknown for real data.")
    ] = 1.0,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw all gains (.png, .svg or .pdf).", metavar="FILE")
    ] = None,
    csv: Csv = None,
    json: Json = None,
) -> None:
    """Estimate which clients of STUDY profit by joining, from their data alone.

    Each client's own best model is compared with the federated one on samples that neither was trained on. A gain of 2
    means that the federated model makes half the error on new data of that client: new samples from the same
    distribution. Linear regression and kernels are solved in closed form, everything else is trained.
    """
    from parley.advise.gain import from_study
    from parley.core.errors import InputError
    from parley.display.progress import steps
    from parley.study.toml import load_study

    if figure is not None and figure.suffix not in _FORMATS:
        raise InputError(f"{figure} cannot be written: a figure's name ends in {', '.join(_FORMATS)}.")
    with steps() as tell:
        gains = from_study(
            load_study(study, settings or []),
            folds=folds,
            repeats=repeats,
            clients=clients,
            level=level,
            measure=measure,
            seeds=seeds,
            local_rounds=local_rounds,
            local_rates=local_rate or None,
            kernel=kernel,
            lengthscale=lengthscale,
            sigma=sigma,
            norm=norm,
            tell=tell,
        )
    show(gains)
    write_texts((csv, gains.csv), (json, gains.json))
    if figure is not None:
        from parley.report.files import save_figure
        from parley.report.gains_figure import gain_figure as draw

        with writing(figure):
            save_figure(draw(gains), figure)


def show(gains: Gains) -> None:
    """The table, the summary and when to stop."""
    print_table(gains.heads(), gains.rows(), right=gains.heads()[1:-1])
    screen = console()
    stop = gains.stop
    last = "Stopping" if stop.round is None else f"Recommended stopping round: {stop.round}"
    paragraphs = [gains.summary(), f"{last}, {stop.reason}", gains.how]
    for text in [*paragraphs, *(f"Note: {note}" for note in gains.notes)]:
        screen.print(text, markup=False)
