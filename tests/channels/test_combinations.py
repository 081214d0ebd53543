"""Every method with every channel: it runs, or one sentence says why not. Stacked rows give the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parley.algorithms import algorithms
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.exchange import Reply
from parley.algorithms.protocol import Algorithm
from parley.channels import channels
from parley.channels.base import Chain, Channels
from parley.channels.ef21 import ef21
from parley.channels.quantise import qsgd
from parley.channels.sign import sign
from parley.channels.top_k import top_k
from parley.core.context import Context, Secrets
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory
from parley.core.wire import encode
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import features, mlp
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Call, Job, Stamp
from parley.runtimes.stacked import Stacked
from parley.study.task import make_task
from parley.study.train import train

GIVEN: dict[str, Any] = {"share": 0.2, "bound": 5.0, "bits": 4}
OURS = [
    name
    for name in channels
    if channels[name].__module__.startswith("parley.channels.")
    and not any(other in name for other in ("noise", "adaptive", "secure"))
]


def made(name: str) -> Chain:
    kind: Any = channels[name]
    one = kind(**{field: value for field, value in GIVEN.items() if field in kind.__dataclass_fields__})
    return ef21() | top_k(0.3) if name == "ef21" else Chain((one,))


@pytest.fixture(scope="module")
def clients() -> Federation:
    rng = torch.Generator().manual_seed(0)
    arrays = {str(i): (torch.randn(6, 3, generator=rng), torch.arange(6) % 2) for i in range(3)}
    return Federation.from_arrays(arrays, public=torch.randn(5, 3, generator=rng))


@pytest.fixture(scope="module")
def targets() -> Federation:
    rng = torch.Generator().manual_seed(0)
    arrays = {
        str(i): (torch.randn(6, 3, generator=rng).double(), torch.randn(6, generator=rng).double()) for i in range(3)
    }
    return Federation.from_arrays(arrays)


def method(name: str) -> Algorithm:
    kind: Any = algorithms[name]
    if name == "ema":
        return kind(of=FedAvg(lr=0.05))
    return kind(floor=2) if name in ("cox", "glm", "kaplan-meier") else kind()


@pytest.mark.parametrize("name", list(algorithms))
def test_every_method_with_every_channel(name: str, clients: Federation, targets: Federation):
    algorithm = method(name)
    numbers = name.startswith(("cox", "glm", "kaplan", "kernel", "feature"))
    federation, model = (targets, features()) if numbers else (clients, mlp(3))
    if name.startswith("kernel"):
        model = torch.nn.Linear(3, 1).double()
    model = model if algorithm.needs.network else None
    ran = refused = 0
    for channel in OURS:
        sentence = ""
        try:
            run = train(
                algorithm,
                federation,
                model=model,
                rounds=2,
                channels=made(channel),
                runtime="inline",
                evaluation=Evaluation(every=2),
            )
        except (InputError, UnsupportedError, QuorumError) as error:
            sentence = str(error)
        if sentence:
            assert channel in sentence or "clipping" in sentence
            assert sentence.endswith(".")
            assert "\n" not in sentence
            refused += 1
            continue
        ran += 1
        assert not [failure for record in run.records for failure in record.failures]
        metrics = run.records[-1].metrics
        assert metrics["up/raw/bytes"].clients.keys() == metrics["up/bytes"].clients.keys()
    exchanges = algorithm.exchanges()
    if any(each.compress for each in exchanges):
        assert ran >= len(OURS) - 2  # shuffling has no rows to shuffle, and clipping refuses what it cannot scale
    else:
        assert refused == len(OURS) - any(each.reorder for each in exchanges)  # rows that are a set may be shuffled


@pytest.mark.parametrize("runtime", ["stacked", "pool"])
def test_other_runtimes(runtime: str, clients: Federation):
    for up in (ef21() | top_k(0.3), top_k(0.2) | qsgd(4)) if runtime == "stacked" else (ef21() | top_k(0.3) | qsgd(4),):
        runs = [
            train(FedAvg(lr=0.1), clients, model=mlp(3), rounds=2, channels=up, runtime=name, workers=1)
            for name in ("inline", runtime)
        ]
        # Where stacks round differently a level or a place may fall the other way; pool gives the same bits.
        for name, value in runs[0].state["model"].items():
            assert torch.allclose(value, runs[1].state["model"][name], rtol=0, atol=0 if runtime == "pool" else 0.05)


@pytest.mark.parametrize("up", [top_k(0.3), qsgd(4), sign(), ef21() | top_k(0.3)], ids=str)
def test_the_rows_of_a_stack_give_the_same_bytes_as_each_alone(up, clients: Federation):
    algorithm = Scaffold(lr=0.1)
    task = make_task(clients, mlp(3), seed=0)
    message = algorithm.broadcast(task, algorithm.init(task, Key(0)), 1)
    calls = [
        Call(i, message, Memory(), Context(i, 1, "client", 0, Key(7).fold(i), Secrets(bytes(16), (), i)))
        for i in clients.ids
    ]
    stamp = Stamp("", 1, 0, 0)
    through = Channels.of(algorithm, up)
    plain = Stacked(Job(algorithm, task, clients))
    packed = Stacked(Job(algorithm, task, clients, through))
    alone = Inline(Job(algorithm, task, clients, through))
    try:
        answers = zip(calls, plain.run(calls, stamp), packed.run(calls, stamp), alone.run(calls, stamp), strict=True)
    finally:
        for runtime in (alone, packed, plain):
            runtime.close()
    for call, row, sent, other in answers:
        assert isinstance(row, Reply)
        assert isinstance(sent, Reply)
        expected = through.send(row, call.memory, call.context)
        assert encode(sent.message) == encode(expected.message)
        assert encode(sent.memory) == encode(expected.memory)
        assert sent.message.tensors.keys() == other.message.tensors.keys()
