"""Where compressed FedAvg settles on heterogeneous quadratics: EF21 where FedAvg does, the others elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.server import Descent
from parley.algorithms.exchange import Reply, ask, exchange
from parley.channels.base import MIRROR, Chain, Channel
from parley.channels.ef21 import ef21
from parley.channels.quantise import fedcom, fedpaq, qsgd
from parley.channels.random_k import random_k
from parley.channels.sign import sign
from parley.channels.top_k import top_k
from parley.conformance.problem import QuadraticProblem, TwoParts, quadratic_problem
from parley.core.form import Form
from parley.core.message import Memory, Message
from parley.core.wire import decode
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults
from parley.runtimes.frame import unpack
from parley.store.runs import RunStore
from parley.study.train import train

LR, STEPS = 0.1, 3
PROBLEM = quadratic_problem()
SHARE = 0.4


def maps(problem: QuadraticProblem = PROBLEM) -> list[np.ndarray]:
    """p_i (I - (I - lr A_i)^K): a client's part of a round is this times (x - c_i)."""
    eye = np.eye(problem.clients.A.shape[1])
    weights = np.array(problem.sizes) / sum(problem.sizes)
    return [
        w * (eye - np.linalg.matrix_power(eye - LR * A, STEPS)) for w, A in zip(weights, problem.clients.A, strict=True)
    ]


def fixed_point() -> np.ndarray:
    P = maps()
    return np.linalg.solve(sum(P), sum(p @ c for p, c in zip(P, PROBLEM.clients.c, strict=True)))


def after(rounds: int, server: float) -> np.ndarray:
    """FedAvg's model after so many rounds: an affine map, applied so often."""
    x, star, step = PROBLEM.start, fixed_point(), server * sum(maps())
    for _ in range(rounds):
        x = x - step @ (x - star)
    return x


def fedavg(server: float = 1.0) -> FedAvg:
    return FedAvg(lr=LR, steps=STEPS, batch=0, server=Descent(lr=server))


def play(up: Channel | Chain | tuple = (), rounds: int = 90, algorithm: FedAvg | None = None, **more) -> Run:
    settings = {"runtime": "inline", "evaluation": Evaluation(every=1000)} | more
    return train(
        algorithm or fedavg(),
        PROBLEM.federation(),
        model=TwoParts(PROBLEM.start, PROBLEM.phi),
        rounds=rounds,
        loss="half-squares",
        channels=up,
        **settings,
    )


def position(run: Run) -> np.ndarray:
    weights = run.state["model"]
    return torch.cat([weights["phi.weight"].view(-1), weights["h.weight"].view(-1)]).numpy()


def distance(run: Run) -> float:
    return float(np.linalg.norm(position(run) - fixed_point()))


@dataclass(frozen=True)
class Failing(FedAvg):
    """Some clients fail in some early rounds, after they have worked."""

    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context):
        reply = super().client(task, message, memory, data, context)
        if context.round < 40 and context.round_key.fold("fails").numpy().random() < 0.3:
            raise ValueError("out of battery")
        return reply


def test_where_each_settles():
    assert distance(play(ef21() | top_k(SHARE), 90)) < 1e-8
    assert distance(play(ef21() | sign(), 90)) < 1e-8
    plans = ((1.0, 60), (0.25, 160))  # server steps and rounds
    near = [distance(play(top_k(SHARE), rounds, fedavg(step))) for step, rounds in plans]
    assert 1e-4 < near[1] < near[0] / 2
    elsewhere = [distance(play(top_k(SHARE, False), rounds, fedavg(step))) for step, rounds in plans]
    assert all(far > 0.1 for far in elsewhere)
    assert elsewhere[1] > elsewhere[0] / 1.5


def test_ef21_with_clients_that_drop_out():
    method = Failing(lr=LR, steps=STEPS, batch=0)
    run = play(ef21() | top_k(SHARE), 130, method, faults=Faults(quorum=0.0))
    failed = [failure.client for record in run.records for failure in record.failures]
    assert len(set(failed)) == 4
    assert distance(run) < 1e-8
    for client in run.federation.ids:
        ours, theirs = run.memories[client], run.memories[MIRROR + client]
        assert all(torch.equal(theirs.tensors[name], ours.tensors[name]) for name in theirs.tensors)
        assert run.memories.version(client) == run.memories.version(MIRROR + client)


@pytest.mark.parametrize("up", [ef21() | top_k(SHARE), top_k(SHARE), ef21() | sign()], ids=str)
def test_mirrors_and_residuals_agree_with_drop_outs_all_along(up):
    run = play(up, 25, faults=Faults(dropout=0.3, quorum=0.0), listeners=(_Mirrors(),))
    assert any(record.failures for record in run.records)


@pytest.mark.parametrize("up", [ef21() | top_k(SHARE), top_k(SHARE)], ids=["ef21", "feedback"])
def test_resumed_is_the_same(tmp_path, up):
    faults = Faults(dropout=0.2, quorum=0.0)
    whole = play(up, 14, faults=faults)
    with RunStore(tmp_path / "runs.db") as store:
        first = play(up, 6, faults=faults, store=store, name="r")
        again = play(up, 14, faults=faults, store=store, name="r", resume=first.id)
    assert np.array_equal(position(whole), position(again))
    assert [r.metrics["up/bytes"].value for r in whole.records] == [r.metrics["up/bytes"].value for r in again.records]


def test_on_the_wire_and_resumed_there(tmp_path):
    up, faults = ef21() | top_k(SHARE), Faults(dropout=0.2, quorum=0.0)
    inline = play(up, 6, faults=faults)
    with RunStore(tmp_path / "runs.db") as store:
        first = play(up, 3, faults=faults, runtime="wire", workers=1, store=store, name="r")
        again = play(up, 6, faults=faults, runtime="wire", workers=1, store=store, name="r", resume=first.id)
    assert np.array_equal(position(inline), position(again))
    other = play(qsgd(4), 3)
    wire = play(qsgd(4), 3, runtime="wire", workers=1)
    assert np.array_equal(position(other), position(wire))


def test_a_node_that_lost_its_memory_and_the_server_begin_again_together(tmp_path):
    up = ef21() | top_k(SHARE)
    with RunStore(tmp_path / "runs.db") as store:
        first = play(up, 3, runtime="wire", workers=1, store=store, name="r")
        folder = next((store.folder(first.id) / "nodes").iterdir())
        for memory in folder.glob("memory-*"):
            memory.unlink()
        again = play(up, 6, runtime="wire", workers=1, store=store, name="r", resume=first.id)
        lost = [failure for record in again.records for failure in record.failures]
        assert len(lost) == 1
        versions = [again.memories.version(MIRROR + client) for client in again.federation.ids]
    assert versions == [6, 6, 6, 6]
    assert np.isfinite(position(again)).all()
    mirror = again.memories[MIRROR + lost[0].client]["channel-0-client"]
    newest = max(folder.glob("memory-6-*"))
    theirs = decode(unpack(newest.read_bytes())[1][0], Memory)["channel-0-client"]
    assert all(torch.equal(theirs[name], value) for name, value in mirror.items())


@dataclass(frozen=True)
class Twice(FedAvg):
    """Asks again after the update; client 1 fails then."""

    def round(self, task, state, cohort, number, key):
        message = self.broadcast(task, state, number)
        replies = yield ask(self.client, dict.fromkeys(cohort.ids, message))
        yield ask(self.again, dict.fromkeys(cohort.ids, message))
        return self.aggregate(task, state, replies, number, key)

    @exchange(form=lambda self, task, message: Form())
    def again(self, task, message, memory, data, context):
        if context.id == "1" and context.round == 2:
            raise ValueError("out of battery")
        return Reply(Message.of(fine=1))


def test_who_fails_later_in_a_round_keeps_nothing_of_it_and_neither_does_the_server():
    run = play(ef21() | top_k(SHARE), 2, Twice(lr=LR, steps=STEPS, batch=0))
    for client, number in (("0", 2), ("1", 1), ("2", 2)):
        assert run.memories.version(client) == run.memories.version(MIRROR + client) == number
        ours, theirs = run.memories[client]["channel-0-client"], run.memories[MIRROR + client]["channel-0-client"]
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("up", [qsgd(3), fedcom(), fedpaq(4), random_k(0.6)], ids=str)
def test_the_mean_over_seeds_follows_fedavg(up):
    rounds, seeds = 4, 16
    found = np.array([position(play(up, rounds, fedavg(0.5), seed=seed)) for seed in range(seeds)])
    expected, spread = after(rounds, 0.5), found.std(0, ddof=1)
    assert np.all(np.abs(found.mean(0) - expected) <= 4.5 * spread / seeds**0.5 + 1e-12)
    assert np.allclose(position(play((), rounds, fedavg(0.5))), expected, atol=1e-12)
    assert spread.max() > 0


def test_bytes_before_and_after():
    plain, packed = play((), 2), play(qsgd(4), 2)
    assert "up/raw/bytes" not in plain.records[-1].metrics
    metrics = packed.records[-1].metrics
    assert metrics["up/raw/bytes"].clients == plain.records[-1].metrics["up/bytes"].clients
    assert metrics["up/bytes"].value < metrics["up/raw/bytes"].value


class _Mirrors(Listener):
    """After every round: a client's memory and the server's copy of it are of the same round and the same."""

    def start(self, run, rounds):
        self.run = run

    def round(self, record):
        memories = self.run.memories
        for client in self.run.federation.ids:
            mirror = memories[MIRROR + client]
            if mirror.tensors:
                assert memories.version(client) == memories.version(MIRROR + client)
                ours = memories[client]["channel-0-client"]
                assert all(torch.equal(value, ours[name]) for name, value in mirror["channel-0-client"].items())
