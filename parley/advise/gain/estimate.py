"""Gains by whichever route a study allows: in closed form, else every model trained through the engine.

The *predictive gain* of a client is the error of its own model on new data of its own over the federated model's, what
nobody can predict included: above 1 the federated model serves it better. Linear least squares and kernels are solved
in closed form; every other model and algorithm is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from parley.advise.gain.closed import Options, Solved, solve_kernel, solve_linear
from parley.advise.gain.federated import federated_losses
from parley.advise.gain.folds import Deal, Setup, Tell, looked_at
from parley.advise.gain.local import OwnModel, local_losses, stages
from parley.advise.gain.measures import check_measure, make_measure, shown
from parley.advise.gain.result import ClientGain, Decision, Gains
from parley.advise.gain.stop import by_curves
from parley.algorithms import Algorithm, algorithms
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import Federation
from parley.engine.settings import Faults, Sampling
from parley.models.buffers import BufferPolicy
from parley.study.toml import Study
from parley.study.train import Model, make_task
from parley.theory.gain.interval import FEWEST, GainEstimate, HeldOut, Verdict, check_level, decide, gain_from_losses
from parley.training.losses import IGNORE, Loss

FACTORS = (0.3, 1.0, 3.0)
"""Rates tried for own models, in units of the algorithm's."""
RATES = (0.01, 0.03, 0.1, 0.3)
"""Rates tried where the algorithm's own says nothing about plain SGD."""
FEWEST_ROUNDS = 50
"""Rounds an own model may train at least, however few the federation takes."""
CLOSED_REPEATS = 3
"""Times the samples are dealt where models come in closed form; trained ones are dealt once unless asked."""
_WORDS: dict[Verdict, Decision] = {"gains": "join", "loses": "stay alone", "undecided": "undecided"}
RARE = 3
"""Samples of a class below which a client has hardly seen it."""


def from_study(study: Study, **options: Any) -> Gains:
    """`gain` with the data, model, algorithm and settings of a study; `options` are `gain`'s."""
    return gain(
        study.algorithm,
        study.federation(),
        model=study.network,
        rounds=study.rounds,
        cohort=study.sampling,
        seed=study.seed,
        loss=study.loss,
        buffers=study.buffers,
        faults=study.faults,
        runtime=study.runtime,
        workers=study.workers,
        **options,
    )


def gain(
    algorithm: Algorithm,
    federation: Federation,
    *,
    model: Model,
    rounds: int,
    cohort: int | Sampling | None = None,
    seed: int = 0,
    loss: str | Loss | None = None,
    buffers: BufferPolicy = "average",
    faults: Faults | None = None,
    runtime: str = "auto",
    workers: int | None = None,
    folds: int = 8,
    repeats: int | None = None,
    clients: int | None = None,
    level: float = 0.9,
    measure: str | None = None,
    seeds: int = 1,
    local_rounds: int | None = None,
    local_rates: Sequence[float] | None = None,
    kernel: str | None = None,
    lengthscale: float | None = None,
    sigma: float | None = None,
    norm: float = 1.0,
    tell: Tell | None = None,
) -> Gains:
    """Every client's predictive gain with an interval of the given `level`, and the round to stop at.

    The first arguments are those of `train`. `folds` and `repeats` say how samples are held out; `clients` judges a
    random set of so many (all take part in training); `measure` is `loss` (the one trained with), `error-rate` or
    `brier`. With several `seeds` everything is trained so often, and intervals include the luck of one training. Own
    models train up to `local_rounds` rounds with the best of `local_rates`. `kernel` replaces the model by kernel
    regression. `sigma` and `norm` are the noise and ||f_0 - f*||_H of the stopping rule of linear and kernel models.
    """
    task = make_task(federation, model, seed, loss, buffers)
    sampling = cohort if isinstance(cohort, Sampling) else Sampling(size=cohort)
    setup = Setup(algorithm, federation, task, rounds, sampling, faults or Faults(), seed, runtime, workers)
    name = _checked(setup, folds, repeats, level, measure, seeds, local_rounds, local_rates)
    sizes = _sizes(federation)
    judged = _judged(sizes, clients, folds, seed)
    enough = [i for i in judged if sizes[i] >= FEWEST]
    options = Options(folds, repeats or CLOSED_REPEATS, level, sigma, norm)
    report_progress = tell or (lambda _what, _done, _total: None)
    solved: Solved | None = None
    if kernel is not None:
        if name != "loss":
            raise InputError("a kernel is judged by squared errors; leave the measure out.")
        solved = solve_kernel(setup, kernel, lengthscale, enough, options, report_progress)
    elif name == "loss":
        on_points = getattr(algorithm, "kernel", None) is not None
        solved = (
            solve_kernel(setup, None, None, enough, options, report_progress)
            if on_points
            else solve_linear(setup, enough, options, report_progress)
        )
    if solved is None or not solved.estimates:
        methods = _own_methods(algorithm, local_rates)
        most = local_rounds or max(rounds, FEWEST_ROUNDS)
        options = replace(options, repeats=repeats or 1)
        setups = [
            replace(setup, seed=seed + k, task=make_task(federation, model, seed + k, loss, buffers))
            for k in range(seeds)
        ]
        solved = _trained(setups, options, name, methods, most, enough, report_progress, solved)
    elif seeds > 1:
        seeds = 1
        solved = replace(
            solved, notes=[*solved.notes, "closed forms know no luck of training; --seeds changes nothing."]
        )
    notes = [*solved.notes, *_rare(setup, enough, solved.measure)]
    if federation.held_out is not None:
        notes.append("the clients' own test samples stayed out; --set data.test_fraction=0 uses them too.")
    how = f"{solved.how}; {folds} folds{f', {options.repeats} times' if options.repeats > 1 else ''}."
    rows = _rows(federation, judged, sizes, dict(zip(enough, solved.estimates, strict=True)), level)
    assert solved.stop is not None
    return Gains(rows, len(federation), solved.measure, level, how, solved.stop, tuple(notes), seeds)


def _trained(
    setups: Sequence[Setup],
    options: Options,
    name: str,
    methods: Sequence[OwnModel],
    most: int,
    judged: Sequence[int],
    tell: Tell,
    before: Solved | None,
) -> Solved:
    """Through the engine, with every seed in turn; `before` may already know when to stop."""
    setup, folds, repeats = setups[0], options.folds, options.repeats
    held: dict[int, list[HeldOut]] = {i: [] for i in judged}
    curves, last = [], 0
    runs, models, times = 2 * folds, len(judged) * len(methods), repeats * len(setups)
    for done, (training, repeat) in enumerate(product(range(len(setups)), range(repeats))):
        deal = Deal(folds, Key(setup.seed).fold("gain", repeat), setup.federation.source)
        seeded = setups[training]
        measure = make_measure(seeded.task, name)
        common = federated_losses(seeded, deal, judged, measure, tell, runs * done, runs * times)
        local_by_client = local_losses(
            seeded, deal, judged, measure, methods, most, tell, models * done, models * times
        )
        curves.append(common.curves)
        last += sum((losses.chosen + 1) % len(stages(most)) == 0 for losses in local_by_client.values())
        for i in judged:
            held[i].append(
                HeldOut(
                    local_by_client[i].local,
                    common.losses[i],
                    local_by_client[i].groups,
                    local_by_client[i].without,
                    training,
                )
            )
    notes = list(before.notes) if before is not None else []
    if last > len(judged) * times / 2:
        notes.append("most own models were still improving at their last round; --local-rounds gives them more.")
    how = (
        f"Trained: own models by SGD, rate (of {', '.join(f'{method.lr:.3g}' for method in methods)}) and round (up to "
        f"{most}) chosen on samples held out; the federated model by {_name(setup.algorithm)}, its round (up to "
        f"{setup.rounds}) chosen likewise"
    )
    stop = before.stop if before is not None else None
    return Solved(
        [gain_from_losses(held[i], options.level, counts=name == "error-rate") for i in judged],
        stop or by_curves(np.concatenate(curves), looked_at(setup.rounds)),
        how,
        notes,
        shown(setup.task, name),
    )


def _own_methods(algorithm: Algorithm, rates: Sequence[float] | None) -> list[OwnModel]:
    """Local training as the algorithm does it, by plain SGD, with each of the rates."""
    work: dict[str, Any] = {name: getattr(algorithm, name, None) for name in ("steps", "epochs")}
    batch, lr = getattr(algorithm, "batch", 32), getattr(algorithm, "lr", 0.0)
    plain = getattr(algorithm, "optimizer", "sgd") == "sgd" and isinstance(lr, float) and lr > 0
    if not plain:
        work, batch = {"epochs": 1}, 32
    if rates is None:
        options = getattr(algorithm, "options", None) or {}
        faster = 1 / max(1 - float(options.get("momentum", 0.0)), 1e-3)
        rates = [factor * lr * faster for factor in FACTORS] if plain else RATES
    return [OwnModel(lr=float(rate), batch=batch, **work) for rate in rates]


def _rows(
    federation: Federation,
    judged: Sequence[int],
    sizes: Sequence[int],
    estimates: dict[int, GainEstimate],
    level: float,
) -> tuple[ClientGain, ...]:
    verdicts = dict(zip(estimates, decide(list(estimates.values()), level), strict=True))
    result = []
    for i in judged:
        row = ClientGain(str(federation.ids[i]), sizes[i])
        if i in estimates:
            estimate = estimates[i]
            row = replace(
                row,
                local_error=estimate.local,
                federated_error=estimate.federated,
                gain=estimate.gain,
                low=estimate.low,
                high=estimate.high,
                decision=_WORDS[verdicts[i]],
            )
        result.append(row)
    return tuple(result)


def _judged(sizes: Sequence[int], clients: int | None, folds: int, seed: int) -> list[int]:
    if clients is not None and clients < 1:
        raise InputError(f"the number of clients to judge must be at least 1, not {clients}.")
    drawn = Key(seed).fold("judged clients").numpy().permutation(len(sizes))[: clients or len(sizes)]
    judged = sorted(drawn.tolist())
    largest = max(sizes[i] for i in judged)
    if largest < FEWEST:
        raise InputError(f"no client has more than {largest} samples; judging one needs at least {FEWEST}.")
    if folds > largest:
        raise InputError(f"there are {folds} folds, but no client has more than {largest} samples; take fewer folds.")
    return judged


def _checked(
    setup: Setup,
    folds: int,
    repeats: int | None,
    level: float,
    measure: str | None,
    seeds: int,
    local_rounds: int | None,
    rates: Sequence[float] | None,
) -> str:
    """The measure's name, after everything else was looked at."""
    method, task = setup.algorithm, setup.task
    if method.learned(task).personal:
        raise InputError(
            f"the algorithm {_name(method)} keeps a model per client and has none of the server's, so there is no "
            f"federated model to judge; choose another."
        )
    if task.traits.has_batchnorm and task.buffers == "local":
        raise InputError(
            'buffers = "local" gives every client statistics of its own, so there is no one federated model to judge; '
            'use buffers = "average".'
        )
    if setup.rounds < 1 or (local_rounds is not None and local_rounds < 1):
        raise InputError("rounds and local rounds must be at least 1.")
    if folds < FEWEST:
        raise InputError(f"folds must be at least {FEWEST}, not {folds}.")
    if repeats is not None and repeats < 1:
        raise InputError(f"repeats must be at least 1, not {repeats}.")
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}.")
    if rates is not None and not (len(rates) and all(0 < rate < np.inf for rate in rates)):
        raise InputError("rates of own models must be positive and finite.")
    check_level(level)
    name = measure or "loss"
    check_measure(task, name)
    return name


def _rare(setup: Setup, judged: Sequence[int], measure: str) -> list[str]:
    """A warning where cross-entropy is judged on classes that clients have hardly seen."""
    if measure != "cross-entropy":
        return []
    labels = [setup.federation.source.load(i).y for i in judged]
    few = sum(
        bool((client_labels[client_labels != IGNORE].unique(return_counts=True)[1] < RARE).any())
        for client_labels in labels
    )
    if not few:
        return []
    return [
        f"{few} of {len(judged)} clients have classes with fewer than {RARE} samples. Cross-entropy punishes a model "
        "that has not seen a class without limit, so on data with exactly today's class shares own models are better "
        "than they look here, and gains smaller; --measure brier or error-rate is not led by such classes."
    ]


def _sizes(federation: Federation) -> list[int]:
    """Samples per client, looked at for numbers that are none."""
    sizes = []
    for id in federation.ids:
        client = federation.client(id)
        for values, what in ((client.x, "inputs"), (client.y, "targets")):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                raise InputError(f"client '{id}' has NaN or infinite {what}; remove or fill them in first.")
        sizes.append(len(client))
    return sizes


def _name(algorithm: Algorithm) -> str:
    try:
        return algorithms.name_of(type(algorithm))
    except InputError:
        return type(algorithm).__name__
