"""Messages of a server that lies, for every method: refused in one sentence, or answered as an honest one could be.

A run's own messages are taken and changed. A node checks them (`Exchange.check`) before the method sees anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.exchange import Exchange, Reply
from parley.algorithms.ntk.tct import TCT
from parley.algorithms.protocol import Algorithm
from parley.core.errors import WireError
from parley.core.failure import Failure
from parley.core.message import Message
from parley.runtimes.execute import attempt
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Answer, Call, Job, Stamp

QUIET = pl.Evaluation(every=100, clients="none", central=False)
SETTINGS: dict[str, Any] = {
    "ema": {"of": pl.FedAvg(lr=0.05)},
    "fedbabu": {"personalise_after": 1},
    "glm": {"sites": True},
    "histogram-boosting": {"depth": 2, "min_leaf": 2, "bins": 8},
}
FEDERATED = [name for name in algorithms if not algorithms[name](**SETTINGS.get(name, {})).needs.pooled]
METHODS: dict[str, Algorithm] = {name: algorithms[name](**SETTINGS.get(name, {})) for name in FEDERATED} | {
    "histogram-boosting with a floor": pl.HistogramBoosting(depth=2, min_leaf=2, bins=8, floor=3, ranges=((-9, 9),)),
    "cox with a grid": pl.Cox(times="grid", grid=(0.0, 0.6)),
    "cox with times": pl.Cox(times="raw"),
    "fedals, never": pl.FedALS(alpha="never", lr=0.05, steps=2),
    "ntk-fl, judged": pl.NtkFL(select="clients", lr=0.01),
    "tct": TCT(first=pl.FedAvg(lr=0.05), rounds=1, features=8),
    "statistics": pl.FederatedStatistics(floor=2),
}


class Overheard(Inline):
    """Keeps every call."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.calls: list[Call] = []

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        self.calls += calls
        return super().run(calls, stamp, deadline)


def data(name: str) -> pl.Federation:
    draw, arrays = np.random.default_rng(0), {}
    regression = name.startswith(("cox", "glm", "kaplan-meier", "kernel-", "feature-"))
    for client in "abc":
        x = draw.normal(size=(40, 3))
        y = draw.exponential(size=40) * np.where(np.arange(40) % 3, 1, -1) if regression else np.arange(40) % 2
        arrays[client] = (x, y) if regression else (x.astype(np.float32), y)
    public = None if regression else torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return pl.Federation.from_arrays(arrays, public=public)


def overheard(name: str) -> tuple[Job, dict[str, Call]]:
    """The job, and the last call of each exchange of a short run."""
    return trained(name)[:2]


@cache
def trained(name: str) -> tuple[Job, dict[str, Call], Message]:
    """And what nodes would get to evaluate."""
    method, seen = METHODS[name], list[Overheard]()

    def execute(job: Job) -> Overheard:
        seen.append(Overheard(job))
        return seen[0]

    model: Any = pl.models.features() if name.startswith("feature-") else pl.models.mlp(3)
    model = torch.nn.Linear(3, 1).double() if name.startswith("kernel-") else model
    settings = {"model": model if method.needs.network else None, "rounds": 2, "evaluation": QUIET, "cohort": 2}
    if name.startswith("ntk-fl, judged"):
        settings["cohort"] = 3
    run = pl.train(method, data(name), execute=execute, **settings)
    job, calls = seen[0].job, {}
    for call in seen[0].calls:
        job.exchange(call.context.asked).check(job.server, call.message)  # what an honest server sends is accepted
        calls[call.context.asked] = call
    return job, calls, run.model()


def cases() -> list[tuple[str, str]]:
    return [(name, each.name) for name, method in METHODS.items() for each in method.exchanges()]


def refused(each: Exchange, job: Job, message: Message) -> None:
    with pytest.raises(WireError) as error:
        each.check(job.server, message)
    said = str(error.value)
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("name", METHODS)
def test_every_exchange_of_the_library_says_what_it_accepts(name: str):
    job, calls = overheard(name)
    assert calls
    for asked, call in calls.items():
        assert job.exchange(asked).accepts(job.server, call.message) is not None


def wrong_messages(message: Message) -> Iterator[tuple[str, Message]]:
    """What no method ever asks for."""
    tensors, scalars = message.tensors, message.scalars
    yield "an extra tree", Message(tensors | {"more/w": torch.zeros(2)}, scalars)
    yield "an extra tensor", Message(tensors | {"more": torch.zeros(2)}, scalars)
    yield "an extra scalar", Message(tensors, scalars | {"more": 1})
    for name, value in tensors.items():
        rest = {n: v for n, v in tensors.items() if n != name}
        yield f"{name}, renamed", Message(rest | {name + "x": value}, scalars)
        yield f"{name}, another shape", Message(tensors | {name: torch.stack([value, value])[None, None]}, scalars)
        if value.is_floating_point() and value.numel():
            for wrong in (np.nan, np.inf, -np.inf):
                bad = value.clone(memory_format=torch.contiguous_format)
                bad.view(-1)[0] = wrong
                yield f"{name}, {wrong}", Message(tensors | {name: bad}, scalars)
        yield (
            f"{name}, another dtype",
            Message(tensors | {name: torch.zeros(value.shape, dtype=torch.complex64)}, scalars),
        )
    for name, value in scalars.items():
        yield f"{name} is missing", Message(tensors, {n: v for n, v in scalars.items() if n != name})
        wrongs: list[Any] = [float("nan"), float("inf"), -1, -(2**70), 2**70]
        wrongs += [3] if isinstance(value, str) else ["1"]
        wrongs += [True] if not isinstance(value, bool) else [1]
        for wrong in wrongs:
            yield f"{name} = {wrong!r}", Message(tensors, scalars | {name: wrong})


@pytest.mark.parametrize(("name", "asked"), cases())
def test_wrong_names_shapes_types_and_numbers_are_refused(name: str, asked: str):
    job, calls = overheard(name)
    if asked not in calls:
        pytest.skip(f"a short run does not ask '{asked}'")
    for what, message in wrong_messages(calls[asked].message):
        try:
            refused(job.exchange(asked), job, message)
        except BaseException as error:
            raise AssertionError(f"{what}: {error}") from error


def bent(message: Message) -> Iterator[tuple[str, Message]]:
    """Messages of the right form whose numbers no honest run has."""
    for name, value in message.tensors.items():
        if not value.numel():
            continue
        made: list[Tensor] = []
        if value.is_floating_point():
            made = [torch.full_like(value, 1e300 if value.dtype == torch.float64 else 1e38), value * 0, -value]
        elif value.dtype != torch.bool:
            top = torch.iinfo(value.dtype).max
            made = [torch.full_like(value, top), torch.full_like(value, top // 2), value * 0]
            made += [torch.full_like(value, -top)] if torch.iinfo(value.dtype).min < 0 else []
        for number, one in enumerate(made):
            yield f"{name}, way {number}", Message(message.tensors | {name: one}, message.scalars)


@pytest.mark.parametrize(("name", "asked"), cases())
@pytest.mark.filterwarnings("ignore")
def test_numbers_of_no_honest_run_are_refused_or_answered_in_the_form_of_a_reply(name: str, asked: str):
    job, calls = overheard(name)
    if asked not in calls:
        pytest.skip(f"a short run does not ask '{asked}'")
    call, each = calls[asked], job.exchange(asked)
    for what, message in bent(call.message):
        try:
            each.check(job.server, message)
        except WireError:
            continue
        answer = attempt(job, Call(call.recipient, message, call.memory, call.context, party=call.party))
        if isinstance(answer, Failure):
            assert not answer.trace, f"{what}: {answer.reason}"
            continue
        assert isinstance(answer, Reply)
        form = each.form(job.server, message)
        if form is not None:
            form.check(answer.message.tensors)


# --- models to evaluate ---


@pytest.mark.parametrize("name", METHODS)
def test_a_model_to_evaluate_has_the_shapes_of_the_methods(name: str):
    """Otherwise a bias of [n, outputs] is one for each sample, and a single loss has the labels of all of them."""
    job, _, model = trained(name)
    learned = job.algorithm.learned(job.server)
    learned.check(model)
    assert model.tensors or learned.personal
    for each, value in model.tensors.items():
        for wrong in ({each: torch.stack([value] * 40)}, {f"{each}x": value}):
            with pytest.raises(Exception) as error:  # which `runtimes.node` refuses, whatever it is
                learned.check(Message(model.tensors | wrong, model.scalars))
            assert isinstance(error.value, (pl.WireError, IndexError, RuntimeError)), (each, error.value)


# --- parts that clients keep to themselves ---


@pytest.mark.parametrize(
    "lists",
    [
        {"send": "0,1"},
        {"due": "0,1", "send": "0,1"},
        {"send": "-1"},
        {"send": "1,1"},
        {"send": "7"},
        {"send": "one"},
        {"due": "1", "send": ""},
        {"send": 1},
    ],
)
def test_a_part_that_is_never_averaged_cannot_be_asked_for(lists: dict[str, Any]):
    job, calls = overheard("fedals, never")
    message = calls["client"].message
    assert message.scalars["send"] == "1"
    refused(job.exchange("client"), job, Message(message.tensors, message.scalars | lists))
