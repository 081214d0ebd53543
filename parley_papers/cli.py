"""`parley reproduce`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from parley_papers.versions import titled


def _study_names(incomplete: str) -> list[str]:
    """For the shell: the studies that begin so, found without loading them."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*/*.py")]
    names = {name for text in texts for name in re.findall(r'@study\(\s*"([^"]+)"', text)}
    named = {titled(name) for name in names}
    return sorted(name for name in (names if incomplete[:1].isdigit() else named) if name.startswith(incomplete))


def _scales(incomplete: str) -> list[str]:
    return [name for name in ("smoke", "cpu", "paper") if name.startswith(incomplete)]


def reproduce(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study (su2023/fig1), a paper (su2023) or all; without it, they are listed.",
            autocompletion=_study_names,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), cpu (minutes) or paper (the paper's sizes).",
            metavar="NAME",
            autocompletion=_scales,
        ),
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.", metavar="FOLDER")] = Path("reproduced"),
    workers: Annotated[
        int | None, typer.Option(help="Processes that train at a time; default: one per core.", metavar="N", min=1)
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder for finished trials, a file per study: those in it are not trained again, new ones are added.",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Reproduce a paper's figure or table and print its checks; exit 1 if one fails."""
    from rich.console import Console

    from parley_papers.catalogue import matching, run_study, studies
    from parley_papers.printed import catalogue, checks_table

    screen = Console(highlight=False, soft_wrap=False)
    if not screen.is_terminal:
        screen = Console(highlight=False, width=max(200, screen.width))
    if study is None:
        screen.print(catalogue())
        return
    progress, passed = Console(stderr=True, highlight=False, markup=False, soft_wrap=True), True
    for name in matching(study):
        sizes = {str(each): text for each, text in studies[name].scales.items()}
        if scale != "smoke" and (what := sizes.get(scale)):  # smoke takes seconds
            progress.print(f"{titled(name)}, {scale}: {what}. If interrupted, the same command resumes.")
        result = run_study(name, scale, out, progress, workers, keep)
        screen.print(checks_table(result))
        passed = passed and result.passed
    if not passed:
        raise typer.Exit(1)
