"""`advise`: measure, forecast, try out if asked, and say what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from parley.advise import gain as gains_of
from parley.advise.gain.result import Gains
from parley.advise.linear import is_least_squares
from parley.advise.plan import reasons
from parley.advise.plan.advice import Advice, Recommendation
from parley.advise.plan.candidates import CAUTIOUS, SHARES, averaging, traffic
from parley.advise.plan.choose import Goal, Ranked, kind_of, rank
from parley.advise.plan.events import Events, early_stopping, judged_by_held_out
from parley.advise.plan.measure import Measured, measure
from parley.advise.plan.pilot import Arm, Pilot
from parley.advise.plan.pilot import pilot as run_pilot
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.algorithms.averaging.local_update import Averaging, FedAvg, FedAvgM
from parley.algorithms.averaging.server import HeavyBall
from parley.algorithms.protocol import as_algorithm
from parley.channels.base import Channel
from parley.channels.quantise import qsgd
from parley.core.errors import InputError
from parley.core.numbers import megabytes
from parley.engine.settings import Evaluation
from parley.study.channel_names import stages
from parley.study.study import Study
from parley.study.toml import study_from_dict, study_table
from parley.study.train import check_inputs, make_task
from parley.training.schedules import Constant
from parley.training.task import Task

Tell = Callable[[str, int, int], None]
_ARMS = 5
"""Candidates of a pilot."""
_GAIN_WORK = 5e7
"""Samples times parameters times rounds up to which gains are estimated by training without being asked."""


def load(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file, which need not name a method: federated averaging stands in for it."""
    table = study_table(path, overrides)
    table.setdefault("algorithm", {"name": "fedavg"})
    return study_from_dict(table, Path(path).parent)


def advise(
    study: Study | Path | str,
    *,
    rounds: int | None = None,
    megabytes: float | None = None,
    pilot: bool = False,
    gain: bool | None = None,
    whole: bool = True,
    plain: bool = False,
    tell: Tell | None = None,
) -> Advice:
    """Advise on a study (or its file): method, rates, local steps, server, channels and when to stop.

    The budget is `rounds` (default: the study's) or `megabytes` that all clients together send and receive. A target
    loss that the study names (`[evaluate] metric = "loss", target = ...`) is to be reached as cheaply as can be;
    without one the loss at the end of the budget counts. `pilot` tries the best candidates in short runs. `gain`
    estimates who profits by joining, by default where that is cheap. Without `whole` only what the choice rests on is
    measured. With `plain` only FedAvg's step size and number of local steps are chosen, as Charles and Konečný ask.
    """
    base = study if isinstance(study, Study) else load(study)
    tell = tell or (lambda _what, _done, _total: None)
    asked = base
    _check(base, rounds, megabytes)
    federation = base.federation()
    if len(federation) < 2:
        raise InputError("advice is about clients that train together, but the federation has only one.")
    check_inputs(as_algorithm(base.algorithm), federation)
    events = None if _target(base) else Events.of(base)
    few = events if events is not None and events.few else None
    if few is not None:
        base = few.regression(base)
    task = make_task(federation, base.network, base.seed, base.loss, base.buffers)
    like = base.algorithm if isinstance(base.algorithm, LocalSGD) else FedAvg()
    tell("measuring", 0, 3)
    measured = measure(base, federation, task, like.batch, whole=whole, ridge=few.penalty if few is not None else 0.0)
    unknown = list(measured.unknown)
    goal = _goal(base, measured, rounds, megabytes, unknown)
    tell("forecasting", 1, 3)
    ranked: list[Ranked] = []
    if measured.quadratic is not None:
        seen, grid = measured.quadratic, None
        if few is not None:
            grid = averaging(seen.largest, CAUTIOUS)
        elif plain:
            grid = averaging(seen.clients.L, SHARES)
        ranked = rank(seen, task, goal, base.seed, grid)
    arms = _arms(ranked, base, like, task, goal)
    if few is not None:
        arms = [few.arm(arm) for arm in arms]
    limit, first = _limit(goal, arms[0], task, measured.participants), arms[0].ranked
    made: list[Recommendation] = []
    tried: Pilot | None = None
    if pilot:
        tell("pilot", 2, 3)
        least = measured.quadratic.least_loss if measured.quadratic is not None else None
        tried = run_pilot(base, arms, goal, limit, least)
        arms = [arms[tried.winner], *[arm for index, arm in enumerate(arms) if index != tried.winner]]
        limit = _limit(goal, arms[0], task, measured.participants)
        made.append(reasons.pilot_reason(tried, arms[0].name))
    chosen = arms[0]
    if chosen.ranked is not None:
        others = [arm.ranked for arm in arms[1:] if arm.ranked is not None]
        made = [*reasons.forecast_reasons(chosen.ranked, next(iter(others), None), measured, goal), *made]
    else:
        made = [_own_reason(chosen, tried), *made]
    assert isinstance(chosen.algorithm, Averaging)
    steps = limit * chosen.algorithm.work().count(measured.sizes[1]) * measured.participants / measured.clients
    if whole and (parts := reasons.parts_reason(task, measured, steps)) is not None:
        made.append(parts)
    if few is not None:
        made = few.reasons(made)
    best = replace(base, algorithm=chosen.algorithm, channels=chosen.channels, rounds=limit, name=_title(base))
    if not _target(base):
        best = judged_by_held_out(best, limit)
        made += [recommendation for recommendation in (early_stopping(best),) if recommendation is not None]
    gains = _gains(best, task, measured, gain, whole, tell, unknown)
    made.append(reasons.stopping_reason(chosen.ranked, goal, limit, gains))
    unknown += [*_left_out(base, like), *_always_unknown(measured, goal, tried)]
    listed = [arm.ranked for arm in arms if arm.ranked is not None]
    return Advice(asked, best, goal, measured, tuple(made), tuple(listed), tuple(unknown), gains, tried, first)


def _target(study: Study) -> bool:
    """Whether the study itself says what is to be reached."""
    return study.evaluation is not None and study.evaluation.target is not None


def _check(study: Study, rounds: int | None, megabytes: float | None) -> None:
    study.network  # noqa: B018 (refuses methods without a network)
    if rounds is not None and rounds < 1:
        raise InputError(f"the budget must be at least one round, not {rounds}.")
    if megabytes is not None and not 0 < megabytes < np.inf:
        raise InputError(f"the budget in megabytes must be positive and finite, not {megabytes:g}.")
    if study.privacy is not None:
        raise InputError("advice does not cover [privacy]: noise and clipping change what is best; leave it out.")
    if not isinstance(study.algorithm, LocalSGD):
        name = type(study.algorithm).__name__
        raise InputError(
            f"advice is for methods of local SGD, and {name} is none; name fedavg or leave [algorithm] out."
        )


def _goal(study: Study, measured: Measured, rounds: int | None, megabytes: float | None, unknown: list[str]) -> Goal:
    """The budget, and the target where the study's is a loss that can be forecast."""
    evaluation = study.evaluation or Evaluation()
    excess: float | None = None
    if evaluation.target is not None and measured.quadratic is not None:
        loss = evaluation.metric == "loss" or (
            evaluation.metric == "auto" and study.federation().info.kind == "regression"
        )
        if loss and evaluation.headline is None:
            excess = evaluation.target - measured.quadratic.least_loss
            if excess <= 0:
                unknown.append(
                    f"when the target {evaluation.target:g} is reached: the training loss of all clients "
                    f"has its minimum at {measured.quadratic.least_loss:.4g}."
                )
                excess = None
        else:
            unknown.append("when the target is reached: only losses can be forecast, so the loss at the end counts.")
    if rounds is None and megabytes is None:
        rounds = study.rounds
    return Goal(rounds, megabytes, excess, measured.participants)


def _arms(ranked: Sequence[Ranked], study: Study, like: LocalSGD, task: Task, goal: Goal) -> list[Arm]:
    """The candidates of a pilot, the advised one first: those forecast that differ, else variations of the study's."""
    if ranked:
        arms: list[Arm] = []
        for ranked_candidate in _different(ranked, _ARMS):
            name, algorithm = str(ranked_candidate.candidate), ranked_candidate.candidate.algorithm(like)
            arms.append(
                Arm(
                    name,
                    algorithm,
                    ranked_candidate.candidate.channels,
                    goal.price(ranked_candidate.bytes_each),
                    ranked_candidate,
                )
            )
        return arms
    channels: tuple[Channel, ...] = (qsgd(8),) if goal.megabytes is not None else ()
    method = study.algorithm if isinstance(study.algorithm, Averaging) else FedAvg()
    tries: list[tuple[str, Averaging]] = [("the study's own", method)]
    tries += [(f"lr times {factor:g}", replace(method, lr=method.lr * factor)) for factor in (3.0, 1 / 3)]
    if type(method) is FedAvg:
        settings = {"lr": method.lr, "steps": method.steps, "epochs": method.epochs, "batch": method.batch or 0}
        tries.append(("server momentum", FedAvgM(**settings, server=HeavyBall(0.3, 0.9))))  # type: ignore[arg-type]
    return [
        Arm(name, ranked_candidate, channels, goal.price(traffic(ranked_candidate, task, channels)))
        for name, ranked_candidate in tries
    ]


def _different(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The best, and the best of other kinds."""
    best_of_kind = {kind_of(candidate.candidate): candidate for candidate in reversed(ranked)}
    first = kind_of(ranked[0].candidate)
    others = sorted(
        (candidate for kind, candidate in best_of_kind.items() if kind != first), key=lambda candidate: candidate.score
    )
    return [ranked[0], *others[: count - 1]]


def _limit(goal: Goal, arm: Arm, task: Task, participants: int) -> int:
    """Rounds that the budget pays for with this method."""
    assert isinstance(arm.algorithm, Averaging)
    each = arm.ranked.bytes_each if arm.ranked is not None else traffic(arm.algorithm, task, arm.channels)
    limit = goal.limit(each)
    if limit < 1:
        raise InputError(
            f"{goal.megabytes:g} MB do not pay for one round, which takes {megabytes(each * participants)} MB."
        )
    return limit


def _own_reason(arm: Arm, tried: Pilot | None) -> Recommendation:
    if tried is not None:
        return Recommendation("method", arm.name, "nothing could be forecast; the pilot decided.")
    return Recommendation(
        "method", arm.name, "nothing could be forecast, so the study's own setting stays; try --pilot."
    )


def _gains(
    study: Study, task: Task, measured: Measured, wanted: bool | None, whole: bool, tell: Tell, unknown: list[str]
) -> Gains | None:
    """Who gains, where that is cheap or asked for."""
    if wanted is False or not whole:
        return None
    work = float(measured.clients * measured.sizes[1]) * measured.parameters * study.rounds
    if wanted is None and not is_least_squares(task) and work > _GAIN_WORK:
        unknown.append(
            "who gains by joining: many trainings at this size; `--gain`, or parley gain on the study, takes them."
        )
        return None
    try:
        return gains_of.from_study(study, folds=5 if not is_least_squares(task) else 8, tell=tell)
    except InputError as error:
        unknown.append(f"who gains by joining: {error}")
        return None


def _left_out(study: Study, like: LocalSGD) -> list[str]:
    """What the study asks for and forecasts do not cover."""
    sentences = []
    if like.optimizer != "sgd" or like.options or like.clip is not None or like.schedule != Constant():
        sentences.append(
            "the study's local optimizer, its options, clipping and schedule: plain SGD is advised in their place."
        )
    if stages(study.channels):
        sentences.append("the study's own channels, which are left out of what is advised.")
    if study.start is not None:
        sentences.append("the weights that the study begins from: those of its seed were measured.")
    return sentences


def _always_unknown(measured: Measured, goal: Goal, tried: Pilot | None) -> list[str]:
    """What no measurement here says."""
    quadratic = measured.quadratic
    sentences = []
    if quadratic is not None and not quadratic.exact:
        sentences.append(
            "how far the loss is from the quadratic it resembles: forecasts hold for that quadratic, with curvature "
            "averaged between the first weights and where L-BFGS got. Try --pilot before you rely on them."
        )
    if measured.looked < measured.clients:
        sentences.append(f"clients that were not looked at: {measured.looked} of {measured.clients:,} stand for all.")
    if quadratic is not None and measured.parameters > quadratic.clients.g.shape[1]:
        sentences.append(
            f"what happens outside {quadratic.clients.g.shape[1]} directions of {measured.parameters:,}: of a model "
            "this large forecasts rank settings, they promise no loss. A pilot says more."
        )
    if goal.excess is None:
        sentences.append("accuracy on new samples: forecasts are of the training loss of all clients together.")
    if tried is None:
        sentences.append("the luck of one run: nothing was trained. --pilot tries the best candidates out.")
    sentences.append("clients that fail, and seconds: rounds and megabytes are all that is counted.")
    return sentences


def _title(study: Study) -> str:
    """An unnamed study is named after its data set: the method may change."""
    return f"{study.name or study.federation().info.name} (advised)"
