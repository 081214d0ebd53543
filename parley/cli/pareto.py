"""`parley pareto`: which client step, local steps and server for a number of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.options import Set
from parley.cli.screen import console, print_table, save_figure

if TYPE_CHECKING:
    from parley.advise.tradeoff import Tradeoff

_COLUMNS = ("gamma", "K", "alpha", "server step", "momentum", "rho", "start left", "drift")


def pareto(
    study: Annotated[
        Path | None, typer.Argument(help="A study file, to measure its own problem; or give --kappa0, or --L and --mu.")
    ] = None,
    settings: Set = None,
    kappa0: Annotated[float | None, typer.Option("--kappa0", help="Condition number L/mu of the clients.")] = None,
    smoothness: Annotated[float | None, typer.Option("--L", help="Largest curvature of any client.")] = None,
    mu: Annotated[float | None, typer.Option("--mu", help="Smallest curvature of any client that matters.")] = None,
    radius: Annotated[
        float | None, typer.Option("--C", help="Radius of a ball around the clients' own optima; 1, or measured.")
    ] = None,
    distance: Annotated[
        float | None, typer.Option("--distance", help="Distance of the start from the optimum; 1, or measured.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds to train; 50, or the study's.")] = None,
    server: Annotated[
        str, typer.Option("--server", help="The server's momentum: none, nesterov or heavy-ball.")
    ] = "heavy-ball",
    alpha: Annotated[float, typer.Option("--alpha", help="Proximal strength to find the best guarantee with.")] = 0.0,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", help="Largest number of local steps (K); 1000.")
    ] = None,
    max_gamma: Annotated[
        float | None, typer.Option("--max-gamma", help="At most this client step (gamma); 0 is one exact gradient.")
    ] = None,
    ridge: Annotated[float, typer.Option("--ridge", help="With a study: weight decay added to every loss.")] = 0.0,
    clients: Annotated[
        int | None, typer.Option("--clients", help="With a study: clients to measure; all, or 20 for networks.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="With a study: largest number of samples per client.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw the trade-off (.png, .svg or .pdf).", metavar="FILE")
    ] = None,
) -> None:
    """Choose gamma, K, alpha and the server's step and momentum for a number of rounds.

    More local work converges faster but to a point that is further off. STUDY is measured for its curvature (L, mu),
    for how far its clients' own optima are apart (C) and how far away the start is. Only settings that training in
    single precision can execute are advised; of settings as good as the best within 0.5%, the simplest.
    """
    from parley.advise.tradeoff import from_constants, from_study
    from parley.core.errors import InputError

    limits: dict[str, Any] = {"alpha": alpha, "max_gamma": max_gamma, "server": server}
    limits |= {} if max_steps is None else {"max_steps": max_steps}
    if study is not None:
        for option, value in (("--kappa0", kappa0), ("--L", smoothness)):
            if value is not None:
                raise InputError(f"{option} is measured on the study; leave it out, or leave the study out.")
        from parley.study.toml import load_study

        advice = from_study(
            load_study(study, settings or []),
            rounds=rounds,
            mu=mu,
            C=radius,
            distance=distance,
            ridge=ridge,
            clients=clients,
            samples=samples,
            **limits,
        )
    else:
        for option, given in (("--ridge", ridge), ("--clients", clients), ("--samples", samples), ("--set", settings)):
            if given:
                raise InputError(f"{option} needs a study file, on which it is measured.")
        advice = from_constants(
            rounds=50 if rounds is None else rounds,
            kappa0=kappa0,
            L=smoothness,
            mu=mu,
            C=1.0 if radius is None else radius,
            distance=1.0 if distance is None else distance,
            **limits,
        )
    show(advice)
    if figure is not None:
        from parley.report.tradeoff_figure import figure as draw

        save_figure(draw(advice), figure)


def show(advice: Tradeoff) -> None:
    """The constants, the choices beside the two extremes, and what to paste into a study."""
    momentum = {"none": "without momentum", "nesterov": "with Nesterov momentum", "heavy-ball": "with heavy ball"}
    curvature = advice.curvature
    measured = (
        "" if curvature is None else f", {'exact' if curvature.exact else 'measured'} on {len(curvature.ids)} clients"
    )
    print_table(
        ["", ""],
        [
            ("curvature of the clients (mu to L)", f"{advice.mu:.4g} to {advice.L:.4g}{measured}"),
            ("condition number kappa_0", f"{advice.kappa0:,.4g}"),
            ("radius of the clients' optima C", f"{advice.C:.4g}"),
            ("distance of the start", f"{advice.distance:.4g}"),
            ("server", f"{momentum[advice.server]}, {advice.rounds} rounds"),
        ],
    )
    for note in curvature.notes if curvature is not None else ():
        console().print(f"Note: {note}", soft_wrap=True)
    guaranteed, actual = advice.guaranteed, advice.actual
    print(f"\nWhat these constants guarantee after {advice.rounds} rounds (distance to the optimum):")
    best, sgd, shot = guaranteed.best, guaranteed.minibatch_sgd, guaranteed.one_shot
    _choices([("best", best, best.bound), ("mini-batch SGD", sgd, sgd.bound), ("one-shot", shot, shot.bound)], "bound")
    if best.bound >= advice.distance > 0:
        print("Note: that is no better than the start; so few rounds guarantee nothing for all clients alike.")
    if advice.relative:
        print("gamma and the server step are in units of 1/L; give --L and --mu, or a study, for lines to paste.")
    if actual is not None:
        print(f"What these clients do, exactly, from this start in {advice.rounds} rounds with all of them:")
        rows = (("best", actual.best), ("mini-batch SGD", actual.minibatch_sgd), ("one-shot", actual.one_shot))
        _choices([(name, choice, choice.distance) for name, choice in rows], "distance")
        if actual.best.rounding > 0.01 * actual.best.distance:
            print(f"Note: training is in single precision and may end up to {actual.best.rounding:.1g} from there.")
    if not advice.relative:
        of = "for these clients" if actual is not None else "by the guarantee"
        print(f"The best {of} as a study, all clients in every round (no cohort.size):\n")
        print(advice.toml() + "\n")


def _choices(rows: list[tuple[str, Any, float]], last: str) -> None:
    print_table(
        ["", *_COLUMNS, last],
        [
            (
                name,
                f"{choice.gamma:.4g}",
                f"{choice.K:,}",
                f"{choice.alpha:.3g}",
                f"{choice.server.eta:.4g}",
                f"{choice.server.momentum:.3f}",
                f"{choice.server.rho:.4f}",
                f"{choice.convergence:.3g}",
                f"{choice.drift:.3g}",
                f"{total:.3g}",
            )
            for name, choice, total in rows
        ],
        right=[*_COLUMNS, last],
    )
