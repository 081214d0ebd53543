"""`parley run`: train what a study file says."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.examples import run_names, runtime_names
from parley.cli.options import Set, Store, StudyFile
from parley.cli.screen import print_table
from parley.core.numbers import megabytes, metric_text
from parley.core.processes import Interrupted

if TYPE_CHECKING:
    from parley.store.runs import RunInfo
    from parley.store.tables import Absence
    from parley.study.several_seeds import Seed
    from parley.study.study import Study

MOST_SEEDS = 1000
MOST_NAMES = 20
"""Clients that are named at the end of a run."""


def run(
    study: StudyFile,
    settings: Set = None,
    seeds: Annotated[
        str | None, typer.Option(help="Train once with each seed: 0-4, or 0,3,7.", metavar="SEEDS")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            help="Seeds that train at the same time, each in a process of its own; with the runtime ray each has its "
            "share of the cluster's workers.",
            min=1,
            metavar="N",
        ),
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the newest unfinished run of this study, or for more rounds; "
            "with --seeds, train what is missing.",
        ),
    ] = False,
    store: Store = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; print only the run's id.")] = False,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Who executes the clients: inline, stacked, pool, wire, ray or auto.",
            metavar="NAME",
            autocompletion=runtime_names,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train, in place of the study's.", metavar="N")] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            help="Start from the weights of a stored run, or of a .safetensors file.",
            metavar="RUN",
            autocompletion=run_names,
        ),
    ] = None,
) -> None:
    """Train STUDY and keep the run in the store."""
    from parley.core.errors import InputError
    from parley.store.runs import RunStore
    from parley.study.toml import load_study
    from parley.study.train import train
    from parley.study.warm_start import WarmStart, is_file, pinned

    if workers > 1 and seeds is None:
        raise InputError("--workers says how many seeds train at the same time; name them with --seeds.")
    overrides = [*(settings or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    overrides += [f"runtime.name={runtime}"] if runtime is not None else []
    if init_from is not None:
        source = str(Path(init_from).resolve()) if is_file(init_from) else init_from
        overrides.append(f"init_from={json.dumps(source)}")
    chosen = [f"seed={seed}" for seed in seeds_of(seeds)] if seeds is not None else []
    loaded = [load_study(study, [*overrides, seed]) for seed in chosen] or [load_study(study, overrides)]
    loaded[0].federation()
    infos: list[RunInfo] = []
    with RunStore(store) as runs:
        start = pinned(loaded[0].start, runs, resume)  # once for all seeds: each run would be the last one for the next
        if start is not loaded[0].start:
            loaded = [replace(planned, init_from=start) for planned in loaded]
        try:
            if chosen:
                from parley.study.several_seeds import Seed, stored_run
            if workers > 1:
                begun_from = start.run if isinstance(start, WarmStart) else None
                each = [Seed(study, (*overrides, seed), resume, begun_from) for seed in chosen]
                ids = _side_by_side(each, loaded[0], runs.path, workers, quiet)
                if quiet:
                    print("\n".join(ids))
                else:
                    infos += map(runs.info, ids)
            for planned in loaded if workers == 1 else []:
                done, again = stored_run(runs, planned) if resume and chosen else (None, resume)
                if done is None:
                    trained = train(planned, store=runs, resume=again, progress=not quiet)
                    done = str(trained.id)
                if quiet:
                    print(done)
                elif not chosen:
                    show_run(done, trained.status, trained.summary(), trained.failures())
                else:
                    infos.append(runs.info(done))
        except KeyboardInterrupt:
            words = ["parley", "run", str(study), *[part for text in settings or [] for part in ("--set", text)]]
            words += ["--seeds", seeds] if seeds is not None else []
            words += ["--workers", str(workers)] if workers > 1 else []
            words += ["--rounds", str(rounds)] if rounds is not None else []
            if isinstance(start, WarmStart) and start.algorithm is None:
                words += ["--init-from", str(start.file or start.run)]
            words += ["--store", str(store)] if store is not None else []
            raise Interrupted(f"interrupted; resume with: {shlex.join([*words, '--resume'])}") from None
    if infos:
        show_group(infos)


def _side_by_side(seeds: Sequence[Seed], like: Study, store: Path, workers: int, quiet: bool) -> list[str]:
    """The runs of all seeds, in their order; a line for each as it ends."""
    from parley.study.several_seeds import train_seeds

    ids: dict[int, str] = {}
    with closing(train_seeds(seeds, like, store, workers)) as ended:
        for index, run in ended:
            ids[index] = run
            if not quiet:
                seed = seeds[index].overrides[-1].replace("=", " ")
                print(f"{seed}: run {run} ({len(ids)}/{len(seeds)})", file=sys.stderr)
    return [ids[index] for index in range(len(seeds))]


def seeds_of(text: str) -> list[int]:
    """`0-4` or `0,3,7-9` as a list."""
    from parley.core.errors import InputError

    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or len(part) > 20:
            raise InputError(f"--seeds takes seeds such as 0-4 or 0,3,7, not '{text[:80]}'.")
        seeds += range(int(first), min(int(last or first), int(first) + MOST_SEEDS) + 1)
    if not seeds or len(seeds) > MOST_SEEDS or len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds takes 1 to {MOST_SEEDS} different seeds, not '{text[:80]}'.")
    return seeds


def show_group(infos: list[RunInfo]) -> None:
    """Runs that differ in their seeds, and what they have in common."""
    from parley.engine.roll_call import is_result
    from parley.study.seeds import TWO_SEEDS, SeedMean

    summaries = [info.summary for info in infos]
    names = [name for name in summaries[0] if is_result(name)]
    rows: list[list[object]] = [
        [info.config.get("seed"), info.id, info.status, info.rounds, *(_shown(summary, n) for n in names)]
        for info, summary in zip(infos, summaries, strict=True)
    ]
    if len(infos) > 1:
        means = {name: SeedMean.of([summary[name] for summary in summaries if name in summary]) for name in names}
        rows.append(["mean", None, None, None, *(_mean(summaries, n, mean.value) for n, mean in means.items())])
        halves = (metric_text(n, mean.half) for n, mean in means.items())
        rows.append(["±", "half of a 95% interval", None, None, *halves])
    print_table(["seed", "run", "status", "rounds", *names], rows, right=["seed", "rounds", *names])
    if len(infos) == 2:
        print(f"{TWO_SEEDS}.")


def _mean(summaries: Sequence[Mapping[str, Any]], name: str, value: float) -> str:
    """A mean over seeds, and over how many clients each of them is."""
    from parley.engine.roll_call import over_clients
    from parley.study.seeds import covered

    over = dict.fromkeys(filter(None, (covered(summary, name.removeprefix("best ")) for summary in summaries)))
    return metric_text(name, value) + over_clients(", ".join(over))


def _shown(summary: Mapping[str, Any], name: str) -> str | None:
    """A result of a run, and over how many clients it is."""
    from parley.engine.roll_call import over_clients
    from parley.study.seeds import covered

    if summary.get(name) is None:
        return None
    return metric_text(name, summary[name]) + over_clients(covered(summary, name.removeprefix("best ")))


def show_run(run: str, status: str, summary: dict[str, Any], missing: Sequence[Absence] = ()) -> None:
    """A run in a few lines, and who was missing in it."""
    from parley.engine.roll_call import is_result

    rows: list[tuple[str, object]] = [("run", run), ("status", status), ("rounds", summary.get("rounds"))]
    for name in summary:
        if is_result(name.removeprefix("best ")):
            rows.append((name, _shown(summary, name)))
    for label, name in (("MB up", "up/bytes"), ("MB down", "down/bytes")):
        rows.append((label, megabytes(summary[name]) if name in summary else None))
    rows.append(("seconds", f"{summary['seconds']:,.1f}" if "seconds" in summary else None))
    if "privacy/epsilon" in summary:
        rows.append(("epsilon", f"{summary['privacy/epsilon']:.4g}"))
    if "ended" in summary:
        rows.append(("ended", summary["ended"]))
    if "incomplete evaluations" in summary:
        words = f"{summary['incomplete evaluations']}, without clients: not counted for best, target and patience"
        rows.append(("incomplete evaluations", words))
    if summary.get("failures"):
        rows.append(("replies missing", summary["failures"]))
    if "never contributed" in summary:
        rows.append(("never contributed", summary["never contributed"]))
    print_table(["", ""], rows)
    show_missing(run, missing)


def show_missing(run: str, missing: Sequence[Absence]) -> None:
    """Who was left out, of how many rounds and why."""
    absences: dict[str, list[Absence]] = {}
    for absence in missing:
        absences.setdefault(absence.client, []).append(absence)
    if not absences:
        return
    worst = sorted(absences.items(), key=lambda item: -len(item[1]))[:MOST_NAMES]
    rows = [(client, len(of_client), of_client[-1].round, of_client[-1].reason) for client, of_client in worst]
    print_table(["left out", "rounds", "last", "why, the last time"], rows, right=["rounds", "last"])
    if len(absences) > len(worst):
        print(f"and {len(absences) - len(worst)} others; all of them: parley runs export {run} missing.csv --failures")
