"""`parley attack`: what an honest but curious server can rebuild from what clients send."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.options import Json, Set, StudyFile
from parley.cli.screen import console, print_table, save_figure, write_texts

if TYPE_CHECKING:
    from parley.attack.findings import Findings


def attack(
    study: StudyFile,
    settings: Set = None,
    victims: Annotated[int, typer.Option("--victims", help="Random clients that are attacked, one at a time.")] = 5,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", help="Samples a victim has in the round (repeatable); 1, 4 and 16.")
    ] = None,
    defence: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help='Channels to try after the study\'s own (repeatable), such as "top-k(0.1)" or "clip(1.0) noise(0.1)"; '
            'several kinds by default, "none" tries nothing but the study.',
        ),
    ] = None,
    after: Annotated[int, typer.Option("--after", help="Rounds to train first; needed to measure membership.")] = 0,
    restarts: Annotated[int, typer.Option("--restarts", help="Random starts of each search.")] = 2,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Chooses victims and starts of searches; the study's.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", help="Draw originals beside reconstructions (.png, .svg or .pdf).", metavar="FILE"),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every score as CSV.", metavar="FILE")] = None,
    json: Json = None,
) -> None:
    """Attack what the clients of STUDY send, as its server could.

    One round is played with one victim at a time, through the study's channels, and the attacks get what the server
    sees: division of a dense first layer's gradients, deep leakage from gradients (L-BFGS), and cosine matching with
    total variation. The table compares reconstructions with the originals, and with guesses that use no message.
    """
    from parley.attack.matching import Effort
    from parley.attack.run import attack as attacks
    from parley.core.errors import InputError
    from parley.display.progress import steps
    from parley.study.toml import load_study

    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"{figure} cannot be written: a figure's name ends in .png, .svg or .pdf.")
    with steps() as tell:
        findings = attacks(
            load_study(study, settings or []),
            victims=victims,
            batches=batch or (1, 4, 16),
            after=after,
            defences=None if defence is None else [text for text in defence if text != "none"],
            effort=Effort(restarts=restarts),
            seed=seed,
            tell=tell,
        )
    show(findings)
    write_texts((csv, findings.csv), (json, findings.json))
    if figure is not None:
        from parley.report.attacks_figure import attack_figure

        save_figure(attack_figure(findings), figure)


def show(findings: Findings) -> None:
    """The table, then what replies hold as it is, membership and notes."""
    from parley.report.attack_table import attack_table, sentences

    columns, rows = attack_table(findings)
    print_table(columns, rows, right=columns[1:])
    screen = console()
    for text in sentences(findings):
        screen.print(text, markup=False)
