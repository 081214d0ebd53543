"""Whoever executes the clients, the numbers are the same: bit for bit in processes, to rounding in stacks."""

import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FOMAML, MAML, FedAdam, FedAvg, FedAvgM, FedProx
from parley.algorithms.averaging.server import Adam
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.personal.fedrep import FedRep
from parley.algorithms.protocol import OneExchange
from parley.core.context import Context
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData, Dirichlet, Federation, load
from parley.engine.settings import Evaluation, Faults
from parley.models import lstm, mlp
from parley.runtimes import Call, Job, Stamp, open_runtime
from parley.runtimes.auto import choose
from parley.runtimes.inline import Inline
from parley.study.train import make_task, train

everywhere = Evaluation(clients="all", batch=37)


@pytest.mark.parametrize(
    ("model", "buffers", "algorithm"),
    [
        ("mlp", "average", FedAdam(lr=0.05, epochs=2, batch=None)),
        ("dropout", "average", FedAdam(lr=0.05, batch=7)),
        ("residual", "average", FedAvgM(lr=0.05, batch=7)),
        ("residual", "local", FedProx(lr=0.05, batch=7, optimizer="adam")),
    ],
)
def test_processes_give_the_same_bits(table, images, nets, same, model: str, buffers, algorithm):
    """Also on full batches of unaligned rows, on which matrix products would round differently."""
    federation = table if model == "mlp" else images
    made = mlp(9) if model == "mlp" else nets[model]
    runs = [
        train(
            algorithm,
            federation,
            model=made,
            rounds=3,
            cohort=3,
            buffers=buffers,
            evaluation=everywhere,
            runtime=runtime,
            workers=2,
            seed=1,
        )
        for runtime in ("inline", "pool")
    ]
    same(*runs)
    first, last = runs[0].records[0], runs[0].records[-1]
    assert last.metrics["central/loss"].value != first.metrics["central/loss"].value


def test_the_threads_a_user_has_do_not_matter(table, same):
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(train(FedAvg(batch=None), table, model=mlp(64), rounds=2, runtime="inline"))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    same(*runs)


def test_own_classes_work_in_processes(table, same):
    """An algorithm, a module and a loss that exist only here."""

    class Halving(OneExchange):
        def init(self, task, key) -> State:
            return State.of(model=task.initial())

        @exchange()
        def client(self, task, message, memory, data, context) -> Reply:
            shift = 0.1 * context.key.fold("own").numpy().random()
            return Reply(Message.of(model={n: v / 2 + shift + data.x.mean() for n, v in message["model"].items()}))

        def aggregate(self, task, state, replies, number, key) -> State:
            return State.of(model=replies.mean("model"))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(13, 4)

        def forward(self, x):
            return self.layer(x).tanh()

    runs = [
        train(
            Halving(),
            table,
            model=Own,
            rounds=2,
            runtime=runtime,
            workers=2,
            loss=lambda outputs, y: outputs.square().sum(1) + y,
        )
        for runtime in ("inline", "pool")
    ]
    same(*runs)


# -- stacks ------------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A parameter without dimensions, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x) * self.scale


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        (FedAvg(batch=5), "mlp"), (FedAdam(epochs=2, batch=5, server=Adam(0.1)), "mlp"), (FedProx(batch=5), "conv"),
        (FOMAML(epochs=2, batch=8), "mlp"), (MAML(batch=8), "mlp"), (LocalOnly(batch=5), "mlp"),
        (LocalOnly(batch=5), "conv"), (FedAvg(batch=5), "scaled"), (FedAvg(batch=4, optimizer="adam", lr=0.01), "mlp"),
    ],
    ids=str,
)  # fmt: skip
def test_stacks_agree_to_rounding(table, images, nets, algorithm, model: str):
    """Ragged clients, two of three in each round, so that some come with a memory and some without."""
    federation = images if model == "conv" else table
    made = {"mlp": lambda: nn.Sequential(nn.Linear(13, 9), nn.ReLU(), nn.Linear(9, 4)), "scaled": Scaled, **nets}[model]
    runs = [
        train(algorithm, federation, model=made, rounds=4, cohort=3, evaluation=everywhere, runtime=runtime)
        for runtime in ("inline", "stacked")
    ]
    for name, value in runs[0].state.tensors.items():
        torch.testing.assert_close(runs[1].state.tensors[name], value, rtol=1e-4, atol=1e-5)
    for a, b in zip(runs[0].records, runs[1].records, strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        for name in a.metrics.keys() - {"seconds", "evaluate/seconds"}:
            assert b.metrics[name].value == pytest.approx(a.metrics[name].value, rel=1e-3, abs=1e-5), name
            assert b.metrics[name].clients == pytest.approx(a.metrics[name].clients, rel=1e-3, abs=0.05), name
        if a.number:
            assert a.metrics["up/bytes"] == b.metrics["up/bytes"]


@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.05, batch=7), FedRep(lr=0.05, batch=7)])
def test_stacks_read_samples_where_a_pool_has_them(algorithm):
    """Each client's lie all over the pool, which stays as it is."""
    federation = load("digits").split(Dirichlet(alpha=0.3), clients=6, seed=3)
    pool = federation.source.pool
    assert pool is not None
    assert not torch.equal(pool.index, torch.arange(len(pool.index)))
    before = pool.x.clone()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
    runs = [
        train(algorithm, federation, model=model, rounds=3, cohort=4, evaluation=everywhere, runtime=name)
        for name in ("inline", "stacked")
    ]
    for name, value in runs[0].state.tensors.items():
        torch.testing.assert_close(runs[1].state.tensors[name], value, rtol=1e-4, atol=1e-5)
    assert torch.equal(pool.x, before)


def test_large_cohorts_are_stacked_in_pieces(table):
    task = make_task(table, mlp(5), 0)
    job = Job(FedAvg(batch=5), task, table)
    whole, _ = open_runtime("stacked", job)
    pieces, _ = open_runtime("stacked", job)
    pieces.most = 2
    message = job.algorithm.broadcast(task, job.algorithm.init(task, Key(0)), 1)
    calls = [Call(client, message, Memory(), Context.alone(Key(0).fold(client), client)) for client in table.ids]
    stamp = Stamp("", 1, 0, 0)
    for one, other in zip(whole.run(calls, stamp), pieces.run(calls, stamp), strict=True):
        for name, value in one.message.tensors.items():
            torch.testing.assert_close(other.message.tensors[name], value)
    assert whole.run([], stamp) == []
    whole.close()
    pieces.close()


def test_memories_that_name_their_tensors_in_another_order_are_stacked_together(table):
    """Those that come from disk do, each in its own."""
    task = make_task(table, mlp(5), 0)
    runtime, _ = open_runtime("stacked", Job(LocalOnly(batch=5), task, table))
    memory = Memory.of(model=task.initial())
    other = Memory(dict(reversed(memory.tensors.items())))
    together = runtime._stack
    stacks: list[int] = []
    runtime._stack = lambda calls: stacks.append(len(calls)) or together(calls)

    def trained(memories: list[Memory]) -> list[dict[str, torch.Tensor]]:
        places = [Context.alone(Key(0).fold(c), c) for c in table.ids]
        calls = [Call(p.id, Message(), own, p) for p, own in zip(places, memories, strict=True)]
        return [reply.memory.tensors for reply in runtime.run(calls, Stamp("", 1, 0, 0))]

    for one, again in zip(trained([memory] * 6), trained([memory, other] * 3), strict=True):
        assert all(torch.equal(value, again[name]) for name, value in one.items())
    assert stacks == [6, 6]
    runtime.close()


class Stubborn(FedAvg):
    """Decides by a value, which differs between clients."""

    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context) -> Reply:
        reply = super().client(task, message, memory, data, context)
        return reply if float(reply.message["update"]["1.bias"].sum()) else Reply(Message())


class Meddling(FedAvg):
    """Divides by the norm of each client's own update."""

    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context) -> Reply:
        reply = super().client(task, message, memory, data, context)
        size = torch.stack([value.square().sum() for value in reply.message["update"].values()]).sum().sqrt()
        return Reply(Message.of(update={n: v / size for n, v in reply.message["update"].items()}))


def test_a_stack_computes_for_every_client_by_itself(table):
    """A norm over a client's update is not one over the stack's: no method can be stacked wrongly."""
    runs = [train(Meddling(), table, model=mlp(5), rounds=3, cohort=4, runtime=name) for name in ("inline", "stacked")]
    for name, value in runs[0].state.tensors.items():
        torch.testing.assert_close(runs[1].state.tensors[name], value)


def test_what_cannot_be_stacked_is_refused_in_one_sentence(table, images, nets):
    words = Federation.from_arrays({"a": (np.arange(12).reshape(3, 4), np.array([0, 1, 11]))})
    cases = [
        (FedAvg(), images, nets["dropout"], "dropout"),
        (FedAvg(), images, nets["residual"], "BatchNorm"),
        (FedAvg(), words, lstm(), "recurrent"),
        (Stubborn(), table, mlp(5), "Stubborn cannot take a stack of clients"),
        (FedAvg(), table, ByHand, "torch.func cannot stack"),
    ]
    for algorithm, federation, model, says in cases:
        with pytest.raises(UnsupportedError, match=says) as caught:
            train(algorithm, federation, model=model, rounds=1, runtime="stacked")
        assert "\n" not in str(caught.value)
        assert 'use "inline" or "pool"' in str(caught.value)


class Typo(FedAvg):
    """A bug in a function of one's own."""

    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context) -> Reply:
        return message["modle"]


class OnlyInStacks(FedAvg):
    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context) -> Reply:
        if not isinstance(data, ClientData):
            raise KeyError("rows")
        return super().client(task, message, memory, data, context)


@pytest.mark.parametrize("runtime", ["auto", "stacked"])
def test_a_bug_in_a_client_shows_as_itself(table, runtime):
    with pytest.raises(QuorumError, match="modle"):
        train(Typo(), table, model=mlp(5), rounds=1, runtime=runtime)
    with pytest.raises(KeyError, match="rows"):
        train(OnlyInStacks(), table, model=mlp(5), rounds=1, runtime=runtime)


def test_auto_goes_on_client_by_client_where_the_first_stack_fails(table):
    runs = [train(Stubborn(), table, model=mlp(5), rounds=2, runtime=name) for name in ("inline", "auto")]
    assert "runtime inline: the algorithm Stubborn cannot take a stack of clients" in runs[1].note
    for name, value in runs[0].state.tensors.items():
        assert torch.equal(runs[1].state.tensors[name], value)


class Dear(FedAvg):
    """Its first state takes long to make."""

    made: ClassVar[int] = 0

    def init(self, task, key):
        type(self).made += 1
        return super().init(task, key)


def test_choosing_a_runtime_plays_no_round(table):
    train(Dear(), table, model=mlp(5), rounds=1)
    assert Dear.made == 1


class ByHand(nn.Module):
    """Dropout that no layer shows, built in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 4)
        self.eval()

    def forward(self, x):
        return self.layer(nn.functional.dropout(x, 0.5, self.training))


def test_hand_written_dropout_is_seeded_too(table, same):
    same(*[train(FedAvg(), table, model=ByHand, rounds=2, runtime="inline") for _ in range(2)])


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_chooses_and_says_why(table, images, nets):
    dense = Job(FedAvg(), make_task(table, mlp(5), 0), table)
    assert choose(dense, 2, None, 10**9)[0] == "stacked"
    assert choose(dense, 2, 1.5, 0) == ("pool", "clients with a deadline need processes of their own")
    conv = Job(FedAvg(), make_task(images, nets["dropout"], 0), images)
    assert choose(conv, 2, None, 10**9)[0] == "pool"
    assert choose(conv, 1, None, 10**9)[0] == "inline"
    name, why = choose(conv, 2, None, 100)
    assert name == "inline"
    assert "dropout" in why
    assert "too little work" in why
    run = train(FedAvg(), table, model=mlp(5), rounds=1)
    assert run.note == "runtime stacked: the model is a chain of dense layers"
    assert train(FedAvg(), table, model=mlp(5), rounds=1, runtime="inline").note == "runtime inline"
    with pytest.raises(InputError, match="did you mean 'inline'"):
        train(FedAvg(), table, model=mlp(5), rounds=1, runtime="inlin")


def test_auto_takes_what_stacks_cannot(table):
    """A dense chain on sequences, soft labels, MAML on ragged clients: each of them runs."""
    run = train(MAML(), table, model=mlp(5), rounds=1)
    assert run.note.startswith("runtime stacked")
    random = np.random.default_rng(0)
    sequences = {i: (random.normal(size=(n, 5, 3)), random.normal(size=(n, 5, 2))) for i, n in (("a", 4), ("b", 7))}
    train(FedAvg(), Federation.from_arrays(sequences), model=lambda: nn.Linear(3, 2), rounds=1)
    soft = {i: (random.normal(size=(n, 3)), random.dirichlet(np.ones(2), n)) for i, n in (("a", 4), ("b", 7))}
    train(FedAvg(), Federation.from_arrays(soft), model=lambda: nn.Linear(3, 2), rounds=1, loss="cross-entropy")


def test_deadlines_need_processes(table):
    with pytest.raises(InputError, match='runtime = "pool"'):
        train(FedAvg(), table, model=mlp(5), rounds=1, runtime="inline", faults=Faults(deadline=1.0))


def test_what_cannot_be_pickled_is_refused(table):
    algorithm = FedAvg()
    object.__setattr__(algorithm, "lock", threading.Lock())
    threads = torch.get_num_threads()
    with pytest.raises(UnsupportedError, match="cannot be sent to worker processes"):
        train(algorithm, table, model=mlp(5), rounds=1, runtime="pool")
    assert torch.get_num_threads() == threads


def test_inline_can_be_stepped_through(table):
    runtime, note = open_runtime("inline", Job(FedAvg(), make_task(table, mlp(5), 0), table))
    assert isinstance(runtime, Inline)
    assert note == ""
    runtime.close()
