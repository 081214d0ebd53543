"""`parley bench`: side-by-side speed on published workloads."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.examples import one_of
from parley.cli.screen import console


def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="Workloads to run; default: all.", metavar="[WORKLOAD]...")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="full, or smoke for a quick look.", metavar="NAME", autocompletion=one_of("full", "smoke")),
    ] = "full",
    cores: Annotated[
        int | None, typer.Option(help="Cores for each contestant; default: the workload's.", metavar="N")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Let only these contestants or groups run (repeatable).", metavar="NAME"),
    ] = None,
    install: Annotated[bool, typer.Option(help="Install peers that are missing (full scale).")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the workload's data and weights.", metavar="N")] = 0,
    against: Annotated[
        Path | None,
        typer.Option(help="Race the Parley in this other checkout instead, in interleaved pairs.", metavar="FOLDER"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All workloads (but SCAFFOLD-100K), and write what they showed to a file.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            help="Write what was shown to this file, where other workloads stay; with --all: bench.json.",
            metavar="FILE",
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(help="Pairs of timed chunks with --against, at least 9.", metavar="N")] = 9,
) -> None:
    """Measure Parley's speed beside other frameworks, on the same work and cores; exit 1 if a claim fails."""
    from parley import InputError
    from parley.core.errors import nearest
    from parley_benchmarks import races as benchmark

    if scale not in ("full", "smoke"):
        raise InputError(f"unknown scale '{scale}': {nearest(scale, ('full', 'smoke'))}")
    if everything and (workloads or only or against is not None):
        raise InputError("--all runs every workload with every contestant; leave out names, --only and --against.")
    if against is not None and write is not None:
        raise InputError("--write records races of this Parley; leave it out with --against.")
    if everything and write is None:
        write = Path("bench.json")
    if write is not None and not write.parent.is_dir():
        raise InputError(f"there is no folder {write.parent} to write {write.name} into.")
    before = None if write is None else benchmark.recorded(write)
    if against is not None:
        raced = benchmark.against(
            against,
            workloads or (),
            scale,  # type: ignore[arg-type]
            cores=cores,
            contestants=only or (),
            pairs=pairs,
            seed=seed,
            say=lambda text: print(text, file=sys.stderr),
        )
        console().print(benchmark.paired_table(raced))
        return
    results: list[benchmark.BenchResult] = []
    command = " ".join(
        [
            "parley bench",
            *(["--all"] if everything else workloads or ()),
            *(f"--only {shlex.quote(name)}" for name in only or ()),
        ]
    )
    for name in workloads or benchmark.default_workloads():
        results += benchmark.bench(
            (name,),
            scale,  # type: ignore[arg-type]
            cores=cores,
            contestants=only or (),
            install_peers=install,
            seed=seed,
            say=lambda text: print(text, file=sys.stderr),
        )
        if write is not None:  # anew after every workload
            written = json.dumps(benchmark.record(results, command, before), indent=1, allow_nan=True) + "\n"
            write.write_text(written, encoding="utf-8")
    for result in results:
        console().print(benchmark.table(result))
    if any(check.passed is False for result in results for check in result.checks):
        raise typer.Exit(1)
