"""`parley advise`: what to do with a federation and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.options import Json, Set
from parley.cli.screen import console, print_table, write_texts, writing

if TYPE_CHECKING:
    from parley.advise.plan.advice import Advice


EXAMPLES = """Examples:

    parley advise examples/pareto.toml

    parley advise examples/pareto.toml --rounds 20 --pilot --no-gain

    parley advise examples/digits.toml --megabytes 5 --no-gain --page advice.html --write advised.toml
"""


def advise(
    study: Annotated[Path, typer.Argument(help="The study file (TOML); it need not name a method.", metavar="STUDY")],
    settings: Set = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds to advise for; the study's, unless megabytes are given.")
    ] = None,
    megabytes: Annotated[
        float | None, typer.Option("--megabytes", help="Megabytes that all clients together may send and receive.")
    ] = None,
    pilot: Annotated[
        bool, typer.Option("--pilot", help="Try the best candidates in short runs: half the run's rounds in all.")
    ] = False,
    gain: Annotated[
        bool | None,
        typer.Option("--gain/--no-gain", help="Estimate who profits by joining; by default where that is cheap."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page (HTML).", metavar="FILE")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the advised study, for parley run.", metavar="FILE")
    ] = None,
    json: Json = None,
    names: Annotated[bool, typer.Option("--names", help="Show the clients' names on the page.")] = False,
) -> None:
    """Advise on STUDY: which method, local steps, rates, server and channels for a number of rounds or megabytes.

    Measures how clients differ, forecasts hundreds of settings on the quadratic that their losses resemble, and says
    for each decision why and by which formula, and what could not be estimated. Nothing is trained without --pilot,
    except to estimate gains. A study that names a target loss gets the cheapest way to it.
    """
    from parley.advise.plan.make import advise, load
    from parley.display.progress import steps

    with steps() as tell:
        advice = advise(
            load(study, settings or []), rounds=rounds, megabytes=megabytes, pilot=pilot, gain=gain, tell=tell
        )
    show(advice)
    text = advice.toml() if write is not None else ""
    write_texts((write, lambda: text), (json, advice.json))
    if page is not None:
        from parley.report.advice_page import write_advice

        with writing(page):
            write_advice(advice, page, names=names)


advise.__doc__ = f"{advise.__doc__}\n    {EXAMPLES}"


def show(advice: Advice) -> None:
    """What was measured, what is advised and why, what is not known, and the lines that differ from the study."""
    screen = console()
    print_table(["measured", "", ""], advice.measured.rows())
    print(f"Advised for {advice.budget()}:\n")
    for item in advice.recommendations:
        screen.print(f"{item.what}: [bold]{_plain(item.value)}[/bold]", soft_wrap=True)
        screen.print(f"  {item.reason}", markup=False, soft_wrap=True)
        if item.formula:
            screen.print(f"  {item.formula}", markup=False, style="dim", soft_wrap=True)
    if advice.pilot is not None:
        print_table(
            ["pilot", "rounds", "metric"],
            [(item.name, item.rounds, f"{item.metric:.4g}") for item in advice.pilot.tried],
            right=("rounds", "metric"),
        )
    if advice.gains is not None:
        screen.print(f"\nWho gains: {advice.gains.summary()}", markup=False)
    print("\nNot estimated:")
    for sentence in advice.unknown:
        screen.print(f"- {sentence}", markup=False, soft_wrap=True)
    print(f"\nThe lines to change in the study:\n\n{advice.lines()}")


def _plain(value: str) -> str:
    from rich.markup import escape

    return escape(value)
