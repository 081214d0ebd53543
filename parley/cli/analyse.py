"""`parley analyse`: regressions and survival curves over all clients' tables, and no row leaving its client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.options import Csv, Deployment, Json, Set, StudyFile
from parley.cli.screen import console, print_table, save_figure, write_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parley.analyse.curves import SurvivalCurves
    from parley.analyse.kaplan_meier import KaplanMeier
    from parley.analyse.regression import Regression
    from parley.analyse.run import Analysis
    from parley.analyse.sites import Coefficient
    from parley.engine.run import Run

_TIMES = 8
"""At so many times, and the first, survival is printed."""


def analyse(
    study: StudyFile,
    settings: Set = None,
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="gaussian, logistic, poisson, gamma, cox or kaplan-meier.", metavar="NAME"),
    ] = "gaussian",
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="The column to explain; default: the target.", metavar="COLUMN")
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option("--covariates", help="Columns to regress on; default: all others.", metavar="NAME,NAME"),
    ] = None,
    event: Annotated[
        str,
        typer.Option(
            "--event",
            help="Of survival times: the column that is 1 where an event happened, or the column and the value that "
            "means an event; default: those above 0.",
            metavar="COLUMN|COLUMN=VALUE",
        ),
    ] = "",
    times: Annotated[
        str | None,
        typer.Option(
            "--times",
            help="Of survival times: stratified (each client its own baseline; cox's default), grid (sums in --grid's "
            "cells; kaplan-meier's default) or raw (clients send their event times).",
            metavar="NAME",
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid", help="Where cells of time begin: START:STOP:STEP, or numbers.", metavar="0:1825:30|0,30,90"
        ),
    ] = None,
    ties: Annotated[
        str | None, typer.Option("--ties", help="Of cox: efron (default) or breslow.", metavar="NAME")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="Of kaplan-meier: the column that makes groups.", metavar="COLUMN")
    ] = "",
    groups: Annotated[
        str | None,
        typer.Option("--groups", help="Its values; default: 0,1, of texts all levels.", metavar="VALUE,VALUE"),
    ] = None,
    penalty: Annotated[
        float, typer.Option("--penalty", help="Ridge regression, of standardised columns.", metavar="NUMBER")
    ] = 0.0,
    sites: Annotated[
        bool, typer.Option("--sites", help="Ask each client for its own estimates, and show how far they agree.")
    ] = False,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Fit again without each client, and try the fit on its rows.")
    ] = False,
    floor: Annotated[
        int, typer.Option("--floor", help="Fewest complete rows of a client behind anything it sends.")
    ] = 10,
    server: Deployment = None,
    level: Annotated[float, typer.Option("--level", help="Confidence level of the intervals.")] = 0.95,
    csv: Csv = None,
    json: Json = None,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", help="Also draw survival curves, or sites' estimates (with --sites).", metavar="FILE"),
    ] = None,
) -> None:
    """Fit a regression, or draw survival curves, over all clients' rows, with standard errors and p values.

    Results are those of the pooled table. Clients send sums over their rows; with the study's channel secure-sum the
    server sees only the total.
    """
    from parley.analyse.run import Analysis, analysis_study, check_level, method_for, result
    from parley.core.errors import InputError
    from parley.study.toml import load_clients
    from parley.study.train import train

    check_level(level)
    if figure is not None and model != "kaplan-meier" and not sites:
        raise InputError("--figure draws survival curves, or with --sites the estimates of each site; add --sites.")
    method = method_for(
        model,
        floor,
        covariates=_listed(covariates),
        event=event,
        times=times,
        grid=cells(grid, "--grid"),
        ties=ties,
        by=by,
        groups=_listed(groups),
        penalty=penalty,
        sites=sites,
        leave_one_out=leave_one_out,
    )
    if server is None:
        asked = analysis_study(load_clients(study, settings or []), method, outcome)
        secure, run = bool(asked.channels), train(asked)
    elif outcome is not None:
        raise InputError("--outcome is for simulations; at the nodes the outcome is the target that their owners set.")
    else:
        secure, run = _deployed(server, study, settings or [], method)
    analysis = result(run, level)
    if isinstance(analysis, Analysis):
        show(analysis)
    else:
        show_curves(analysis)
    if secure:
        console().print("The server saw sums of all clients, and no client's own (secure-sum).")
    write_texts((csv, analysis.csv), (json, analysis.json))
    if figure is not None:
        save_figure(_drawn(analysis), figure)


def _deployed(folder: Path, path: Path, settings: list[str], method: Regression | KaplanMeier) -> tuple[bool, Run]:
    """Whether sums are secure, and the run of the question at the nodes."""
    from parley.cli.deploy import asked_of_nodes
    from parley.deploy.server_folder import ServerFolder
    from parley.statistics.method import FederatedStatistics
    from parley.statistics.run import (
        Statistics,
        declared_categories,
        quantiles_with,
        question_table,
        secure_names,
        statistics_table,
    )
    from parley.study.toml import study_table

    table = study_table(path, settings)
    named, secure = declared_categories(table), secure_names(table)

    def levels() -> Mapping[str, Mapping[str, int]]:
        about = FederatedStatistics(method.floor, quantiles=quantiles_with(secure), categories=named)
        return Statistics.of(asked_of_nodes(folder, path, statistics_table(table, about))).levels

    asked = method.with_levels(named, levels)
    rounds = 1 + len(ServerFolder.open(folder).nodes()) * method.leave_one_out
    return bool(secure), asked_of_nodes(folder, path, question_table(table, asked, "analysis", rounds))


def _drawn(analysis: Analysis | SurvivalCurves) -> Figure:
    from parley.analyse.run import Analysis
    from parley.report.forest_figure import forest_figure
    from parley.report.survival_figure import survival_figure

    return forest_figure(analysis) if isinstance(analysis, Analysis) else survival_figure(analysis)


def show(analysis: Analysis) -> None:
    """The table of coefficients, and what has to be known to read it."""
    from parley.analyse.run import RATIOS

    ratio = RATIOS.get(analysis.model)
    ends, statistic = f"{100 * analysis.level:.4g}% interval", "t" if analysis.model == "gaussian" else "z"
    columns = ["estimate", "std. error", *([ratio] if ratio else []), ends, statistic, "p"]
    rows = [
        (
            coefficient.name,
            f"{coefficient.estimate:.5g}",
            f"{coefficient.error:.4g}",
            *([f"{coefficient.ratio:.4g}"] if coefficient.ratio is not None else []),
            _ends(coefficient.low, coefficient.high)
            if coefficient.ratio_low is None
            else _ends(coefficient.ratio_low, coefficient.ratio_high),
            f"{coefficient.statistic:.3f}",
            p_text(coefficient.p),
        )
        for coefficient in analysis.coefficients
    ]
    print_table(["", *columns], rows, right=columns)
    if analysis.sites:
        _show_sites(analysis)
    if analysis.left_out:
        columns = ["rows", analysis.metric]
        tried = [
            (coefficient.client, f"{coefficient.rows:,}", _number(coefficient.score))
            for coefficient in analysis.left_out
        ]
        print_table(["left out", *columns], tried, right=columns)
    _show_notes(analysis.notes())


def _show_sites(analysis: Analysis) -> None:
    """Of each coefficient every site's estimate, and how far they agree."""
    ends = f"{100 * analysis.level:.4g}% interval"
    columns = ["site", "estimate", "std. error", ends]
    for heterogeneity in analysis.heterogeneity:
        rows = [
            (site.client, *_estimate(each))
            for site in analysis.sites
            for each in site.coefficients
            if each.name == heterogeneity.name
        ]
        rows += [(each.name, *_estimate(each)) for each in (heterogeneity.fixed, heterogeneity.random)]
        print_table([heterogeneity.name, *columns[1:]], rows, right=columns)
        console().print(
            f"Sites' {heterogeneity.name}: Q {heterogeneity.q:.4g} with {heterogeneity.freedom} degrees of freedom, "
            f"p = {p_text(heterogeneity.p)}; I2 {heterogeneity.i2:.1%}; tau2 {heterogeneity.tau2:.4g}.\n",
            markup=False,
        )


def _estimate(coefficient: Coefficient) -> tuple[str, str, str]:
    return f"{coefficient.estimate:.5g}", f"{coefficient.error:.4g}", _ends(coefficient.low, coefficient.high)


def show_curves(result: SurvivalCurves) -> None:
    """Groups with their medians, survival at some times, and what has to be known to read them."""
    ends = f"{100 * result.level:.4g}% interval"
    heads = ["rows", "events", "median", ends]
    rows = [
        (
            curve.group,
            f"{curve.rows:,}",
            f"{curve.events:,}",
            _number(curve.median),
            f"{_number(curve.median_low)} to {_number(curve.median_high)}",
        )
        for curve in result.curves
    ]
    print_table([result.by or "group", *heads], rows, right=heads)
    count = len(result.curves[0].steps)
    chosen = sorted({round(k * (count - 1) / _TIMES) for k in range(_TIMES + 1)})
    times = [(index, result.curves[0].steps[index].time) for index in chosen]
    table = [
        (_number(time), *(f"{s.survival:.3f} ({s.low:.3f} to {s.high:.3f}), {s.at_risk}" for s in steps))
        for time, steps in ((time, [curve.steps[index] for curve in result.curves]) for index, time in times)
        if time is not None
    ]
    print_table(["time", *(f"survival, at risk: {curve.group}" for curve in result.curves)], table, right=["time"])
    _show_notes(result.notes())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _show_notes(notes: list[str]) -> None:
    screen = console()
    for text in notes:
        screen.print(text, markup=False)


def cells(text: str | None, option: str) -> tuple[float, ...]:
    """Where cells begin, from START:STOP:STEP or numbers."""
    from math import ceil

    from parley.core.errors import InputError

    try:
        if text is None or ":" not in text:
            return tuple(float(part) for part in text.split(",")) if text else ()
        start, stop, step = (float(part) for part in text.split(":"))
        return tuple(start + step * k for k in range(min(ceil((stop - start) / step), 10**6)))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"{option} takes START:STOP:STEP or numbers such as 0,30,90, not '{text}'.") from None


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _ends(low: float, high: float | None) -> str:
    return f"{low:.4g} to {high:.4g}"


def p_text(value: float) -> str:
    """A p value with as many digits as are read."""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"
