"""Trains with extreme numbers in every setting, under a limit of memory, and prints what ended neither well nor in a
sentence: python extremes.py KIND [all]."""

from __future__ import annotations

import inspect
import logging
import resource
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np
import torch
from torch import nn

from parley.algorithms import algorithms
from parley.algorithms.averaging.server import server_optimizers
from parley.channels import channels
from parley.core.errors import ParleyError
from parley.core.fields import settings_of
from parley.data import Federation
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import models
from parley.privacy import Privacy
from parley.study.train import train
from parley.training.schedules import schedules

FLOATS = (1e39, 1e-46, 1e308, 5e-324, -1.0, float("nan"), float("inf"))
INTS = (2**31, 2**63 - 1, 10**30, -1)
ROOM = 3 << 29
"""Bytes that may be taken beyond those of the start."""
SECONDS = 1.0
"""A run that still goes on then is well."""

Case = tuple[str, Callable[[], dict[str, Any]]]
"""What is tried, and how `train`'s arguments are made."""


class Late(BaseException):
    pass


def numbers(hint: Any) -> set[type]:
    """Which numbers a setting takes."""
    if get_origin(hint) is Annotated:
        return numbers(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return set().union(*map(numbers, get_args(hint)))
    return {hint} & {int, float}


def extremes(cls: type, seen: set[Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Every setting with every extreme value; those in `seen`, which another class has defined, are left out."""
    for setting in settings_of(cls):
        kinds = numbers(setting.hint)
        owner = next(base for base in cls.__mro__ if setting.name in inspect.get_annotations(base))
        if not kinds or (seen is not None and (owner, setting.name) in seen):
            continue
        if seen is not None:
            seen.add((owner, setting.name))
        for value in (FLOATS if float in kinds else ()) + INTS:
            yield setting.name, value


def tables() -> tuple[Federation, Federation]:
    """Classes, and numbers."""
    random = np.random.default_rng(5)
    inputs = {f"c{i}": random.normal(size=(size, 6)).astype(np.float32) + i / 3 for i, size in enumerate((8, 16, 7))}
    classes = {i: (x, (x[:, 0] > 0.5).astype(np.int64) + (x[:, 2] > 1)) for i, x in inputs.items()}
    values = {i: (x, x[:, 1]) for i, x in inputs.items()}
    public = torch.from_numpy(inputs["c0"])
    return Federation.from_arrays(classes).with_public(public), Federation.from_arrays(values).with_public(public)


CLASSES, VALUES = tables()


def arguments(algorithm: Any, **more: Any) -> dict[str, Any]:
    """Regressions and the kernel methods fit numbers, the latter with a model of their own kind or none."""
    title = algorithm.title
    data = VALUES if title.startswith(("Cox", "GLM", "Kaplan", "Kernel", "Feature")) else CLASSES
    if title.startswith("Feature"):
        more["model"] = models["features"]()
    elif algorithm.needs.network:
        outputs = 3 if data is CLASSES else 1
        more["model"] = lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))
    return {"algorithm": algorithm, "data": data, **more}


def cases(kind: str, seen: set[Any] | None) -> Iterator[Case]:
    if kind == "algorithms":
        for name in algorithms:
            cls = algorithms[name]
            if cls.__module__.startswith("parley."):
                for setting, value in extremes(cls, seen):
                    yield f"{name}.{setting} = {value}", lambda c=cls, s=setting, v=value: arguments(c(**{s: v}))
    elif kind == "parts":
        for name in server_optimizers:
            cls = server_optimizers[name]
            for setting, value in extremes(cls):
                yield (
                    f"server {name}.{setting} = {value}",
                    lambda c=cls, s=setting, v=value: arguments(algorithms["local-update"](server=c(**{s: v}))),
                )
        for name in schedules:
            cls = schedules[name]
            for setting, value in extremes(cls):
                yield (
                    f"schedule {name}.{setting} = {value}",
                    lambda c=cls, s=setting, v=value: arguments(algorithms["fedavg"](schedule=c(**{s: v}), keep=True)),
                )
        for name in channels:
            cls = channels[name]
            for setting, value in extremes(cls):
                yield (
                    f"channel {name}.{setting} = {value}",
                    lambda c=cls, s=setting, v=value: arguments(algorithms["fedavg"](), channels=c(**{s: v})),
                )
    else:
        fixed = {"delta": 0.1, "noise_multiplier": 1.0}
        for more in ({}, {"quantile": 0.5}, {"noise": "local"}, {"accountant": "rdp"}):
            for setting, value in extremes(Privacy):
                yield (
                    f"privacy {more} {setting} = {value}",
                    lambda m=more, s=setting, v=value: arguments(
                        algorithms["fedavg"](), privacy=Privacy(**fixed | m | {s: v}), cohort=2
                    ),
                )
        for cls, name in ((Sampling, "cohort"), (Faults, "faults"), (Evaluation, "evaluation")):
            for setting, value in extremes(cls):
                yield (
                    f"{name}.{setting} = {value}",
                    lambda c=cls, n=name, s=setting, v=value: arguments(algorithms["fedavg"](), **{n: c(**{s: v})}),
                )


def trained(make: Callable[[], dict[str, Any]], seconds: float = SECONDS) -> str:
    """How it ended."""
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        given = make()
        algorithm, data = given.pop("algorithm"), given.pop("data")
        run = train(algorithm, data, rounds=2, runtime="inline", secret=bytes(16), **given)
        return "trained: " + "; ".join(failure.reason for record in run.records for failure in record.failures)
    except Late:
        return "goes on"
    except ParleyError as error:
        return f"says: {error}"
    except BaseException as error:
        return f"raises {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def wrong(outcome: str) -> bool:
    return outcome.startswith("raises") or "\n" in outcome or "MemoryError" in outcome or "allocate" in outcome


def late(*_: object) -> None:
    raise Late


def main(kind: str, everything: bool) -> None:
    signal.signal(signal.SIGALRM, late)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    known = [name for name in algorithms if algorithms[name].__module__.startswith("parley.")]
    plain = [
        lambda n=name: arguments(algorithms[n]()) for name in (known if kind == "algorithms" else ["local-update"])
    ]
    if kind == "settings":
        private = Privacy(delta=0.1, noise_multiplier=1.0)
        plain.append(lambda: arguments(algorithms["fedavg"](), privacy=private, cohort=2))
    for make in plain:  # which imports what it needs
        if not (outcome := trained(make, 60.0)).startswith("trained"):
            print(f"{make()['algorithm'].title} with its defaults: {outcome}")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    count = 0
    for label, make in cases(kind, None if everything else set()):
        outcome, count = trained(make), count + 1
        if wrong(outcome):
            print(f"{label}: {outcome[:300]!r}", flush=True)
    print(f"{count} tried")


if __name__ == "__main__":
    main(sys.argv[1], "all" in sys.argv)
