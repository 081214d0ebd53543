"""`parley tune`: search settings, with runs of the store as trials."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.examples import algorithm_names, one_of
from parley.cli.options import Set, Store, StudyFile
from parley.cli.screen import print_table, save_figure, writing
from parley.core.numbers import metric_text
from parley.core.processes import Interrupted

if TYPE_CHECKING:
    from parley.tuning.search import SearchResult, TrialResult


def tune(
    study: StudyFile,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            help="A setting and where to look for it (repeatable): a list [1, 2, 5], half-decades(-3, 1), "
            "decades(-3, 1), powers-of-two(0, 5), log(1e-4, 1), uniform(0, 1), integers(1, 20); "
            "of one method: fedprox:algorithm.alpha=...",
            metavar="SETTING=SPACE",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="An algorithm (repeatable); all get as many trials and rounds.",
            metavar="NAME",
            autocompletion=algorithm_names,
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each method; default: the whole grid, or 20.", metavar="N")
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="grid, random or tpe (the default).", metavar="NAME", autocompletion=one_of("grid", "random", "tpe")
        ),
    ] = None,
    sampler_seed: Annotated[int | None, typer.Option(help="Seed of the sampler; default 0.", metavar="N")] = None,
    pruner: Annotated[
        str | None,
        typer.Option(
            help="Stop trials that lead nowhere: none (the default), median or halving.",
            metavar="NAME",
            autocompletion=one_of("none", "median", "halving"),
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What trials are judged by; default: clients' held-out samples.", metavar="NAME")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that train at the same time; default 1. With the runtime ray they share the cluster.",
            metavar="N",
        ),
    ] = None,
    settings: Set = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the best studies and the figure.", metavar="FOLDER")
    ] = Path("tuned"),
    store: Store = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the written files only.")] = False,
) -> None:
    """Search settings: every trial is a run of the store; after an interruption the same command resumes.

    Trials have a seed that no result uses and are judged by clients' held-out samples. The best study of each method is
    written as TOML, and a figure of all trials beside it.

    Examples:

    parley tune examples/digits.toml --param "algorithm.lr=half-decades(-2, 0)" --sampler grid --workers 2

    parley tune examples/tuning.toml
    """
    from parley.core.errors import InputError
    from parley.core.files import write_atomically
    from parley.report.tuning_figure import tuning_figure
    from parley.runtimes import fork_server
    from parley.store.runs import RunStore
    from parley.study.seeds import without_seed
    from parley.study.toml import study_table, to_toml, tuning_of
    from parley.tuning.candidates import candidates
    from parley.tuning.search import search

    table = study_table(study, settings or [])
    given = {
        "methods": methods,
        "trials": trials,
        "sampler": sampler,
        "sampler_seed": sampler_seed,
        "pruner": pruner,
        "metric": metric,
        "workers": workers,
    }
    section = dict(table.get("tune", {})) | {name: value for name, value in given.items() if value is not None}
    if params:
        section["params"] = _params(params)
    tuning = tuning_of({"tune": section})
    if tuning.workers > 1:
        fork_server.current()  # imports for the workers while this process goes on
    planned = candidates(table, study.parent, tuning)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is no folder; name another with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {out} cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK):
        raise InputError(f"nothing can be written to {out}; name another folder with --out.")
    with RunStore(store) as kept:
        try:
            results = search(planned, kept, (lambda trial, all: None) if quiet else _say)
        except KeyboardInterrupt:
            words = shlex.join(["parley", *sys.argv[1:]])
            raise Interrupted(f"interrupted; resume with the same command: {words}") from None
    if not quiet:
        _show(results)
    for result in results:
        if result.best is None:
            print(f"parley: warning: all trials of {result.candidate.method} diverged.", file=sys.stderr)
            continue
        text = to_toml(without_seed(result.study().resolved()))
        assert text is not None  # it was read from a file
        with writing(out / f"{result.candidate.label}.toml"):
            write_atomically(out / f"{result.candidate.label}.toml", text.encode())
    save_figure(tuning_figure(results), out / "trials.png")


def _params(texts: list[str]) -> dict[str, Any]:
    """As [tune.params] has them; `fedprox:algorithm.alpha` is a setting of this method alone."""
    params: dict[str, Any] = {}
    for path, space in map(_param, texts):
        method, colon, setting = path.partition(":")
        if colon:
            params.setdefault(method, {})[setting] = space
        else:
            params[path] = space
    return params


def _param(text: str) -> tuple[str, Any]:
    """`algorithm.lr=half-decades(-3, 1)`, or a list as in TOML."""
    import tomllib

    from parley.core.errors import InputError

    path, equals, space = (part.strip() for part in text.partition("="))
    if not equals or not path or not space:
        raise InputError(
            f"--param takes a setting and a space, such as 'algorithm.lr=half-decades(-3, 1)', not '{text}'."
        )
    try:
        return path, tomllib.loads(f"value = {space}")["value"]
    except tomllib.TOMLDecodeError:
        return path, space


def _say(trial: TrialResult, all: SearchResult) -> None:
    """A line per trial."""
    from parley.tuning.candidates import settings_text

    metric, best = all.candidate.metric, all.best
    if trial.pruned:
        state = f"stopped after round {trial.rounds}"
    else:
        state = "diverged" if trial.score is None else f"{metric} {_score(metric, trial)}"
    so_far = "" if best is None or best.score is None else f", best {metric_text(metric, best.score)}"
    line = f"{trial.method} {len(all.trials)}/{all.candidate.trials}: {settings_text(trial.settings)}: {state}{so_far}"
    print(line, file=sys.stderr)


def _score(metric: str, trial: TrialResult) -> str | None:
    """With the clients behind it, where it is a mean over clients that lacks some."""
    from parley.engine.roll_call import over_clients

    return None if trial.score is None else metric_text(metric, trial.score) + over_clients(trial.coverage)


def _show(results: list[SearchResult]) -> None:
    from parley.tuning.candidates import settings_text

    rows = []
    for result in results:
        best, metric = result.best, result.candidate.metric
        lost = sum(item.score is None and not item.pruned for item in result.trials)
        score = None if best is None else _score(metric, best)
        settings, run = (None, None) if best is None else (settings_text(best.settings), best.run or "deleted")
        pruned = sum(item.pruned for item in result.trials)
        rows.append(
            [
                result.candidate.method,
                settings,
                score,
                len(result.trials),
                result.rounds,
                pruned or None,
                lost or None,
                run,
            ]
        )
    columns = ["method", "best settings", results[0].candidate.metric, "trials", "rounds", "pruned", "diverged", "run"]
    print_table(columns, rows, right=columns[2:7])
