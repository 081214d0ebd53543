"""The contract of a deployment on one machine: nodes with disks of their own that see encoded bytes only.

Whatever the method does, it gives the bits of inline; nodes come, go, lose their disks and are asked twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

import parley.runtimes.remote as remote
import parley.runtimes.wire as wire
from parley.algorithms import algorithms
from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.exchange import Party, Reply, ask, exchange
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.protocol import Algorithm, OneExchange
from parley.channels.top_k import top_k
from parley.core.context import recipient_root
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.settings import Evaluation, Faults
from parley.models import features, mlp
from parley.runtimes.frame import unpack
from parley.store.runs import RunStore
from parley.study.train import train

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes do not know this file

RARELY = Evaluation(every=3, clients=2)
UNSEEN = Evaluation(central=False, clients="none")
FAULTS = Faults(dropout=0.25, quorum=0.0)
SECRET = bytes(range(16))


@pytest.fixture(scope="module")
def points() -> Federation:
    """Five clients of different sizes, regression, with samples held out and public inputs."""
    random = np.random.default_rng(3)
    w = random.normal(size=(5, 1))
    clients = {}
    for number in range(5):
        x = random.normal(size=(9 + 4 * number, 5)).astype(np.float32)
        clients[f"c/{number}"] = (x, (x @ w + number + 0.1 * random.normal(size=(len(x), 1))).astype(np.float32))
    public = random.normal(size=(7, 5)).astype(np.float32)
    return Federation.from_arrays(clients, test_fraction=0.25, public=public)


def both(algorithm: Algorithm, federation: Federation, **more):
    """The same run inline and on nodes."""
    settings = {"model": mlp(4), "rounds": 3, "cohort": 3, "evaluation": RARELY, "faults": FAULTS, "secret": SECRET}
    return [
        train(algorithm, federation, **(settings | {"workers": 1} | more), runtime=name) for name in ("inline", "wire")
    ]


# -- every method ------------------------------------------------------------------------------------------------------

FEDERATED = [name for name in algorithms if not algorithms[name]().needs.pooled]


@pytest.mark.parametrize("name", FEDERATED)
def test_every_federated_method_gives_the_bits_of_inline(points, same, name: str):
    """Partial cohorts and drop-outs; metrics, bytes, failures and the final state agree."""
    settings = {"loss": "mse"} if name.endswith("ntk-fl") else {}
    settings |= {"lr": 0.02} if hasattr(algorithms[name], "lr") else {}
    settings |= {"floor": 1} if name == "cox" else {}  # of a few points each
    method = algorithms[name](**settings)
    model = features() if name.startswith("feature-") else mlp(4)
    runs = both(method, points, model=model if method.needs.network else None)
    same(*runs)
    assert runs[1].note == "runtime wire"
    assert name == "statistics" or any(record.failures for record in runs[1].records)  # asked in one round alone


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (FedALS(alpha="never", lr=0.05, steps=2), {"cohort": 3}),
        (FedALS(alpha=2, lr=0.05, steps=2, options={"momentum": 0.9}), {"rounds": 4}),
        (Scaffold(lr=0.05, options={"momentum": 0.9}, keep=True, clip=0.1), {}),
        (FedAvg(lr=0.05, clip=0.01), {"channels": top_k(0.3), "rounds": 4}),
        (LocalOnly(lr=0.05, optimizer="adam", keep=True), {}),
    ],
    ids=["never", "periods", "momentum", "top-k", "adam"],
)
def test_what_clients_keep_stays_on_their_nodes(points, same, algorithm, more):
    same(*both(algorithm, points, **more))


def test_statistics_of_clients_stay_on_their_nodes(images, nets, same):
    same(*both(FedAvg(lr=0.05, batch=7), images, model=nets["residual"], buffers="local", rounds=2))


@pytest.mark.parametrize("name", sorted(set(algorithms) - set(FEDERATED)))
def test_baselines_on_pooled_data_are_refused(points, name: str):
    with pytest.raises(UnsupportedError, match="needs all data in one place"):
        train(algorithms[name](), points, model=mlp(4), rounds=1, runtime="wire")


def test_the_bytes_counted_are_those_that_travel(points, monkeypatch):
    down: Counter[str] = Counter()
    up: Counter[str] = Counter()
    frame, answer = remote.call_frame, remote._answer

    def framed(envelope, message):
        down[envelope.recipient] += len(message)
        return frame(envelope, message)

    def answered(recipient, data):
        up[recipient] += len(unpack(data)[1][0])
        return answer(recipient, data)

    monkeypatch.setattr(remote, "call_frame", framed)
    monkeypatch.setattr(remote, "_answer", answered)
    run = train(
        Scaffold(lr=0.02),
        points,
        model=mlp(4),
        rounds=2,
        cohort=3,
        evaluation=UNSEEN,
        runtime="wire",
        workers=1,
        channels=top_k(0.2),
    )
    for counted, name in ((down, "down/bytes"), (up, "up/bytes")):
        total: Counter[str] = Counter()
        for record in run.records:
            total.update(record.metrics[name].clients)
        assert counted == total


# -- what the protocol promises a method -------------------------------------------------------------------------------


class Growing(OneExchange):
    """An ensemble: every round adds a member, and a client receives those that it has not seen."""

    def init(self, task, key):
        return State.of(members={"00": torch.zeros(3)})

    def round(self, task, state, cohort, number, key):
        members = state["members"]
        lacks = {i: cohort.since.get(i) for i in cohort.ids}
        sent = {
            i: Message.of(
                members={n: m for n, m in members.items() if since is None or int(n) >= since}, all=" ".join(members)
            )
            for i, since in lacks.items()
        }
        replies = yield ask(self.client, sent)
        return State.of(members=members | {f"{number:02}": replies.mean_change("own")["next"]})

    @exchange()
    def client(self, task, message, memory, data, context):
        members = memory.get("members") | message["members"]
        assert " ".join(sorted(members)) == message.scalars["all"]  # whole, however long it was away
        own = sum(members.values()) / 2 + data.y.mean() + context.key.numpy().random()
        return Reply(Message.of(own={"next": own.float()}), Memory.of(members=members))


class Members(Listener):
    """How many members each client was sent, by round; and lets a client's disk be wiped."""

    def __init__(self, store: RunStore | None = None, wiped: tuple[int, str] = (0, "")) -> None:
        self.store, self.wiped = store, wiped
        self.sent: dict[int, dict[str, int]] = {}

    def start(self, run, rounds):
        self.run = run

    def exchange(self, number, index, asked, sent, replies):
        self.sent[number] = {client: len(message.tensors) for client, message in sent.items()}

    def round(self, record):
        if self.store is not None and record.number == self.wiped[0]:
            for folder in (self.store.folder(self.run.id) / "nodes").iterdir():
                if self.wiped[1] in (folder / "node.json").read_text():
                    shutil.rmtree(folder)


def test_clients_receive_only_what_they_have_not_seen(points, same):
    heard = Members(), Members()
    runs = [
        train(
            Growing(),
            points,
            model=mlp(2),
            rounds=7,
            cohort=3,
            evaluation=UNSEEN,
            faults=FAULTS,
            runtime=name,
            workers=1,
            listeners=[listener],
        )
        for name, listener in zip(("inline", "wire"), heard, strict=True)
    ]
    same(*runs)
    assert heard[0].sent == heard[1].sent
    assert not [f for record in runs[1].records for f in record.failures if "simulated" not in f.reason]
    later = [count < number for number, counts in heard[1].sent.items() for count in counts.values()]
    assert any(later)
    assert not all(later)


def test_a_node_that_lost_its_disk_says_so_and_is_sent_everything_again(points, tmp_path):
    """Its client is left out of one round; then it gets a whole message, and secrets and data as before."""
    with RunStore(tmp_path / "runs.db") as store:
        heard = Members(store, (2, "c/3"))
        run = train(
            Growing(),
            points,
            model=mlp(2),
            rounds=5,
            evaluation=UNSEEN,
            runtime="wire",
            workers=1,
            store=store,
            listeners=[heard],
        )
    failures = [(record.number, f) for record in run.records for f in record.failures]
    assert [(number, f.client, f.lost) for number, f in failures] == [(3, "c/3", True)]
    assert failures[0][1].reason == "no longer has its memory of round 2."
    assert [heard.sent[number]["c/3"] for number in range(1, 6)] == [1, 1, 1, 4, 1]
    assert [heard.sent[number]["c/1"] for number in range(1, 6)] == [1, 1, 1, 1, 1]


class TwoQuestions(Algorithm):
    """Both questions of a round are about the same rows; who fails in the second keeps nothing of the first."""

    fails: str = ""

    def init(self, task, key):
        return State.of(total=torch.zeros(1), model=task.initial())

    def round(self, task, state, cohort, number, key):
        first = yield ask(self.mean, dict.fromkeys(cohort.ids, Message()))
        middle = first.mean_change("of")["rows"]
        second = yield ask(self.spread, {i: Message.of(middle=middle) for i in first})
        new = state.tensor("total") + second.mean_change("of")["rows"] + sum(second[i].number("rounds") for i in second)
        return State.of(total=new, model=state["model"]), {"mean": float(middle)}

    def _rows(self, data, context):
        return torch.from_numpy(context.round_key.numpy().choice(len(data), 3, replace=False))

    @exchange()
    def mean(self, task, message, memory, data, context):
        rows = self._rows(data, context)
        done = int(memory.scalars.get("done", 0)) + 1
        return Reply(Message.of(of={"rows": data.y[rows].mean()[None]}), Memory.of(rows=rows, done=done))

    @exchange()
    def spread(self, task, message, memory, data, context):
        rows = self._rows(data, context)
        assert torch.equal(rows, memory.tensor("rows"))
        assert context.key != context.round_key
        if (context.id, context.round) == (self.fails, 2):
            raise RuntimeError("no second answer")
        spread = (data.y[rows] - message.tensor("middle")).abs().mean()[None]
        return Reply(Message.of(of={"rows": spread}, rounds=memory.number("done")))


def test_two_questions_of_a_round_share_a_subsample_and_a_memory(points):
    method = TwoQuestions()
    method.fails = "c/2"
    runs = both(method, points, rounds=4, cohort=None, evaluation=UNSEEN, faults=Faults())
    for a, b in zip(runs[0].records, runs[1].records, strict=True):
        assert [f.client for f in a.failures] == [f.client for f in b.failures] == (["c/2"] if a.number == 2 else [])
        assert a.metrics["server/mean"] == b.metrics["server/mean"]
    assert torch.equal(runs[0].state.tensor("total"), runs[1].state.tensor("total"))
    assert runs[0].memory("c/1").number("done") == 4
    assert runs[0].memory("c/2").number("done") == 3  # nothing of the round in which it failed


def test_who_failed_is_not_asked_again_in_the_round(points):
    """Its second answer would count at the server, while it keeps nothing of it."""

    class Insists(OneExchange):
        def init(self, task, key):
            return State.of(model=task.initial())

        def round(self, task, state, cohort, number, key):
            yield ask(self.first, dict.fromkeys(cohort.ids, Message()))
            replies = yield ask(self.client, dict.fromkeys(cohort.ids, Message()))
            assert "c/1" not in replies
            return state

        @exchange()
        def first(self, task, message, memory, data, context):
            if context.id == "c/1":
                raise RuntimeError("not now")
            return Reply(Message.of(a=torch.ones(1)))

        @exchange()
        def client(self, task, message, memory, data, context):
            return Reply(Message.of(a=torch.ones(1)))

    for run in both(Insists(), points, rounds=1, cohort=None, evaluation=UNSEEN, faults=Faults()):
        assert [f.client for f in run.records[0].failures] == ["c/1"]


@dataclass(frozen=True)
class Sealing(Algorithm):
    """A party answers with bytes of its own secret, and remembers how often it was asked; fails as often as told."""

    tries: str = ""
    fails: int = 0

    def init(self, task, key):
        return State.of(seal=torch.zeros(16, dtype=torch.uint8), count=0)

    def round(self, task, state, cohort, number, key):
        replies = yield ask(self.seal, {Party("keys"): Message.of(number=number)})
        (reply,) = replies.values()
        yield ask(self.noise, dict.fromkeys(cohort.ids, Message()))
        return State.of(seal=reply.tensor("seal"), count=int(reply.number("count")))

    @exchange(asks=Party("keys"))
    def seal(self, task, message, memory, context):
        if self.tries:
            with Path(self.tries).open("a") as file:
                file.write(".")
            if len(Path(self.tries).read_text()) <= self.fails:
                raise RuntimeError("not yet")
        count = int(memory.scalars.get("count", 0)) + 1
        seal = torch.frombuffer(bytearray(context.secrets.bytes("seal", 16)), dtype=torch.uint8)
        return Reply(Message.of(seal=seal, count=count), Memory.of(count=count))

    @exchange()
    def noise(self, task, message, memory, data, context):
        return Reply(Message.of(noise=torch.from_numpy(context.secrets.key("noise").numpy().normal(size=2))))


def test_a_partys_secret_cannot_be_derived_from_what_the_server_sends(points, same, monkeypatch):
    sent: list[bytes] = []
    frame = remote.call_frame
    monkeypatch.setattr(remote, "call_frame", lambda *parts: sent.append(frame(*parts)) or sent[-1])
    packed = wire._packed
    monkeypatch.setattr(wire, "_packed", lambda job: sent.append(packed(job)) or sent[-1])
    more = {"rounds": 2, "cohort": 2, "evaluation": UNSEEN, "faults": Faults(), "seed": 5}
    runs = both(Sealing(), points, **more)
    same(*runs)
    assert runs[1].state.scalars["count"] == 2
    seal = bytes(runs[1].state.tensor("seal").tolist())
    roots = [recipient_root(SECRET, name) for name in ("party:keys", *points.ids)]
    for secret in (SECRET, seal, *roots):
        assert not any(secret in data or secret.hex().encode() in data for data in sent)
    server = Key(5).fold("round", 2)
    for key in (server, server.fold("recipient", "party:keys"), server.fold("recipient", "party:keys").fold("seal", 0)):
        assert seal not in (key.digest, key.fold("seal").digest)
    other = train(Sealing(), points, model=mlp(4), runtime="inline", **(more | {"secret": bytes(16)}))
    assert not torch.equal(other.state.tensor("seal"), runs[1].state.tensor("seal"))
    assert not any(x.numpy().tobytes()[:64] in data for x in [points.client(i).x for i in points.ids] for data in sent)


@pytest.mark.parametrize("runtime", ["inline", "wire"])
def test_a_party_that_fails_is_asked_again(points, tmp_path, runtime: str):
    more = {"model": mlp(2), "rounds": 1, "cohort": 1, "evaluation": UNSEEN, "runtime": runtime, "workers": 1}
    run = train(Sealing(str(tmp_path / "two"), 2), points, **more)
    assert run.state.scalars["count"] == 1
    assert (tmp_path / "two").read_text() == "..."
    with pytest.raises(QuorumError, match=r"party 'keys' raised RuntimeError: not yet.*asked 3 times"):
        train(Sealing(str(tmp_path / "three"), 3), points, **more)


@dataclass(frozen=True)
class Distilling(FedAvg):
    """Clients send what their models say of the public inputs, and learn from the mean of it."""

    def init(self, task, key):
        return State.of(teacher={"outputs": torch.zeros(len(task.public), 1)})

    def broadcast(self, task, state, number):
        return Message.of(teacher=state["teacher"])

    @exchange(reads="mean")
    def client(self, task, message, memory, data, context):
        x = memory.get("model") or task.initial()
        local = self.train(task, x, message, memory, data, context)
        outputs = (task.predictor(local.parameters)(task.public).detach() + message["teacher"]["outputs"]) / 2
        return Reply(Message.of(student={"outputs": outputs}), Memory.of(model=local.parameters), local.observed)

    def aggregate(self, task, state, replies, number, key):
        return State.of(teacher={"outputs": replies.mean_change("student")["outputs"]})


def test_distillation_on_public_inputs(points, same):
    same(*both(Distilling(lr=0.05, steps=2), points, evaluation=UNSEEN))


# -- nodes that fail ---------------------------------------------------------------------------------------------------


class Dies(FedAvg):
    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context):
        if context.id == "c/1":
            os.kill(os.getpid(), signal.SIGKILL)
        if context.id == "c/2":
            time.sleep(60)
        return super().client(task, message, memory, data, context)


def test_a_node_that_dies_or_hangs_is_left_out(points):
    run = train(
        Dies(),
        points,
        model=mlp(2),
        rounds=1,
        evaluation=UNSEEN,
        runtime="wire",
        workers=1,
        faults=Faults(deadline=3.0),
    )
    assert {f.client: f.reason for f in run.records[0].failures} == {
        "c/1": "its process died (exit code -9).",
        "c/2": "gave no answer within 3 s.",
    }


def test_a_host_that_dies_is_replaced(points):
    class KillsHost(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context):
            if context.id == "c/1":
                os.kill(os.getppid(), signal.SIGKILL)
            return super().client(task, message, memory, data, context)

    run = train(KillsHost(), points, model=mlp(2), rounds=1, evaluation=UNSEEN, runtime="wire", workers=1)
    assert [f.reason for f in run.records[0].failures] == ["the host process of its node died (exit code -9)."]


def test_what_cannot_be_sent_to_nodes_is_refused(points):
    import threading

    algorithm = FedAvg()
    object.__setattr__(algorithm, "lock", threading.Lock())
    with pytest.raises(UnsupportedError, match="cannot be sent to nodes"):
        train(algorithm, points, model=mlp(2), rounds=1, runtime="wire")


# -- runs that go on ---------------------------------------------------------------------------------------------------


def test_a_resumed_run_finds_its_nodes_again(points, tmp_path, same):
    """Residuals of a channel, under drop-outs: as if nothing had happened."""
    method, more = Scaffold(lr=0.05), {"channels": top_k(0.3), "faults": FAULTS, "cohort": 3, "model": mlp(4)}
    whole = train(method, points, rounds=4, runtime="inline", **more)
    store = tmp_path / "runs.db"
    first = train(method, points, rounds=2, runtime="wire", workers=1, store=store, **more)
    again = train(method, points, rounds=4, runtime="wire", workers=1, store=store, resume=first.id, **more)
    same(whole, again)
    with pytest.raises(InputError, match="on the disk of its node"):
        again.memory("c/1")


def test_a_run_goes_on_only_where_its_memories_are(points, tmp_path):
    method, store = Scaffold(lr=0.05), tmp_path / "runs.db"
    more = {"model": mlp(4), "store": store, "evaluation": UNSEEN, "workers": 1}
    for first, then, says in (
        ("wire", "inline", 'resume it with runtime = "wire"'),
        ("inline", "wire", "the server's"),
    ):
        run = train(method, points, rounds=1, runtime=first, **more)
        with pytest.raises(UnsupportedError, match=says):
            train(method, points, rounds=2, runtime=then, resume=run.id, **more)


SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from parley.algorithms.averaging.scaffold import Scaffold
from parley.channels.top_k import top_k
from parley.data import Federation
from parley.engine.settings import Evaluation, Faults
from parley.models import mlp
from parley.study.train import train

class Killed(Scaffold):
    def aggregate(self, task, state, replies, number, key):
        if number == 4 and __name__ == "__main__":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate(task, state, replies, number, key)

def clients():
    random = np.random.default_rng(3)
    return {str(i): (random.normal(size=(9 + i, 5)).astype("f4"), random.normal(size=(9 + i, 1)).astype("f4"))
            for i in range(4)}

def go(**more):
    federation = Federation.from_arrays(clients(), test_fraction=0.25)
    return train(
        Killed(lr=0.05), federation, model=mlp(4), rounds=6, cohort=3, faults=Faults(dropout=0.2, quorum=0.0),
        channels=top_k(0.3), evaluation=Evaluation(every=2, clients=1), workers=1, **more
    )

if __name__ == "__main__":
    go(runtime="wire", store=Path(sys.argv[1]) / "runs.db", checkpoint=float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["0", "1e9"], ids=["every round", "never"])
def test_a_server_killed_in_the_middle_of_a_round_goes_on_with_the_same_numbers(tmp_path, same, interval: str):
    """Its nodes have answered the round and written memories that nobody ever accepted."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, str(script), str(tmp_path), interval], env=environment, timeout=200)
    assert done.returncode == -signal.SIGKILL
    space: dict[str, object] = {"__name__": "again"}
    exec(compile(SCRIPT, "script", "exec"), space)
    with RunStore(tmp_path / "runs.db") as store:
        (info,) = store.runs()
        again = space["go"](runtime="wire", store=store, resume=info.id)
    same(space["go"](runtime="inline"), again)


def test_a_plain_module_works_too(points, same):
    same(*both(FedAvg(lr=0.02, batch=0), points, model=lambda: nn.Linear(5, 1), rounds=1))
