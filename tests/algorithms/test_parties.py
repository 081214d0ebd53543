"""A key server and a shuffler: who receives what, and what is refused. The rows are the clients' numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms import parties
from parley.algorithms.exchange import Exchange, Reply, exchange
from parley.algorithms.parties import KEY_SERVER, SHUFFLER, Parties, Shared, kept_secret, packed, unpacked, width_of
from parley.algorithms.protocol import Algorithm, Cohort, Learned
from parley.core.context import Context, Secrets
from parley.core.errors import QuorumError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.study.train import train

NAMES = "abcd"
FORM = Form.of(x=(torch.float32, (2,)), n=(torch.int64, ()))
SECRET = bytes(range(16))


def federation() -> Federation:
    return Federation.from_arrays(
        {
            name: (np.full((3 + i, 2), i + np.arange(3 + i)[:, None] / 16, np.float32), np.zeros(3 + i, np.float32))
            for i, name in enumerate(NAMES)
        }
    )


EVERYTHING = sorted(float(v) for name in NAMES for v in federation().client(name).x[:, 0])


def toy() -> Parties:
    """Made in a function, so that workers get the class by value."""

    class Collected(Parties):
        """The server keeps the rows of the last round."""

        def init(self, task, key: Key) -> State:
            return State.of(x=torch.zeros(0))

        def round(self, task, state: State, cohort: Cohort, number: int, key: Key) -> Exchange:
            found = yield from self.shuffled_rows(cohort, number, Message(), width_of(FORM))
            return State.of(**unpacked(found.rows, FORM)), found.metrics

        @exchange()
        def client(self, task, message: Message, memory: Memory, data, context: Context) -> Reply:
            rows = packed({"x": data.x, "n": torch.arange(len(data))})
            return Reply(parties.sealed_rows(rows, kept_secret(memory), message.tensor("shuffler"), context))

        def learned(self, task):
            return Untrained(task)

    return Collected()


class Untrained(Learned):
    def outputs(self, message, memory, x, before=None):
        return self.task.predictor(self.task.initial())(x)


class Watch(Listener):
    """Everything that the server sent and received."""

    def __init__(self) -> None:
        self.exchanges: list[tuple[int, str, Mapping[Any, Message], Mapping[Any, Message]]] = []

    def exchange(self, number, index, asked, sent, replies) -> None:
        self.exchanges.append((number, asked, dict(sent), dict(replies)))


def trained(method: Algorithm, rounds: int = 2, watch: Watch | None = None, **settings: Any) -> Run:
    chosen = {"runtime": "inline", "secret": SECRET} | settings
    return train(
        method, federation(), model=lambda: nn.Linear(2, 1), rounds=rounds, listeners=[watch] if watch else [], **chosen
    )


def mended(method: Parties, name: str, function: Any) -> Parties:
    """The method with one function replaced."""
    setattr(type(method), name, wraps(getattr(type(method), name))(function))
    return method


def test_the_server_gets_every_row_in_an_order_of_the_shuffler_s():
    watch = Watch()
    run = trained(toy(), watch=watch)
    assert sorted(run.state.tensor("x")[:, 0].tolist()) == EVERYTHING
    orders = [
        tuple(map(bytes, replies[SHUFFLER].tensor("rows")[:, 32:].numpy()))
        for _, asked, _, replies in watch.exchanges
        if asked == "shuffle"
    ]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    in_order = [row.tobytes() for name in NAMES for row in federation().client(name).x.numpy()]
    assert [row[:8] for row in orders[0]] != in_order


def seen_by_server(watch: Watch) -> bytes:
    """All bytes that pass the server before the shuffler's reply, and all scalars."""
    found = []
    for _, asked, sent, replies in watch.exchanges:
        messages = [*sent.values(), *(replies.values() if asked != "shuffle" else ())]
        for message in messages:
            found += [value.contiguous().numpy().tobytes() for value in message.tensors.values()]
            found += [str(value).encode() for value in message.scalars.values()]
    return b"|".join(found)


def secret_of(party: str = "party:key server") -> Shared:
    lasting = Secrets(SECRET, (), party)
    return Shared(lasting.bytes("projection seed", 32), lasting.bytes("row checks", 32))


def test_who_sees_what():
    """The server: no secret, no row whose owner it knows. The parties: nothing but their own."""
    watch = Watch()
    run = trained(toy(), watch=watch)
    passed, shared = seen_by_server(watch), secret_of()
    assert Shared.of(bytes(run.memory("a").tensor("shared").numpy())) == shared  # so it is the secret that clients have
    assert shared.seed not in passed
    assert shared.checks not in passed
    assert shared.check_key(1) in passed  # which it is told, and which leads to neither
    for name in NAMES:
        for row in federation().client(name).x.numpy():
            if row.any():  # eight zero bytes are everywhere
                assert row.tobytes() not in passed
    received = [
        (asked, party, set(message.tensors) | set(message.scalars))
        for _, asked, sent, _ in watch.exchanges
        for party, message in sent.items()
        if not isinstance(party, str)
    ]
    names = {(asked, party): names for asked, party, names in received}
    keys = {f"keys/{name}" for name in NAMES}
    assert names["shuffle", SHUFFLER] == keys | {f"boxes/{name}" for name in NAMES} | {"width"}
    assert names["begin", SHUFFLER] == set()
    first = next(sent[KEY_SERVER] for _, asked, sent, _ in watch.exchanges if asked == "deal")
    assert set(first.tensors) == keys
    assert "shared" not in run.memory(SHUFFLER).tensors
    assert shared.check_key(1) not in b"".join(
        value.contiguous().numpy().tobytes()
        for _, _, sent, _ in watch.exchanges
        if SHUFFLER in sent
        for value in sent[SHUFFLER].tensors.values()
    )


def test_a_planted_leak_of_the_secret_would_be_seen():
    method = toy()
    deal = type(method).deal

    def leaky(self, task, message, memory, context):
        reply = deal(self, task, message, memory, context)
        return Reply(reply.message.replace(oops=parties._tensor(secret_of().seed)), reply.memory)

    watch = Watch()
    trained(mended(method, "deal", leaky), watch=watch)
    assert secret_of().seed in seen_by_server(watch)


def test_a_planted_unsealed_row_would_be_seen():
    method = toy()
    client = type(method).client

    def careless(self, task, message, memory, data, context):
        reply = client(self, task, message, memory, data, context)
        return Reply(reply.message.replace(plain=packed({"x": data.x})))

    watch = Watch()
    trained(mended(method, "client", careless), watch=watch)
    row = federation().client("b").x.numpy()[1]
    assert row.tobytes() in seen_by_server(watch)


@pytest.mark.parametrize("runtime", ["pool", "wire"])
def test_runtimes_agree(runtime: str):
    a, b = (trained(toy(), runtime=name, workers=2) for name in ("inline", runtime))
    assert all(torch.equal(value, b.state.tensors[name]) for name, value in a.state.tensors.items())


def test_resumed(tmp_path):
    whole = trained(toy(), rounds=4)

    class Stop(Listener):
        def round(self, record) -> None:
            if record.number == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(toy(), rounds=4, watch=Stop(), store=tmp_path / "runs.db", checkpoint=0.0)  # type: ignore[arg-type]
    again = trained(toy(), rounds=4, store=tmp_path / "runs.db", resume=True)
    assert torch.equal(whole.state.tensor("x"), again.state.tensor("x"))


# --- what is refused ---


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows: rows[1:], r"clients sent 18 rows and it forwarded 17"),
        (lambda rows: torch.cat([rows, rows[:1]]), r"clients sent 18 rows and it forwarded 19"),
        (lambda rows: torch.cat([rows[1:], rows[1:2]]), r"1 rows came more than once"),
        (lambda rows: torch.cat([rows[:-1], rows[-1:] ^ 1]), r"a row is none that a client made"),
        (lambda rows: torch.cat([rows[:-1], torch.cat([rows[-1, :40], rows[0, 40:]])[None]]), r"is none that a client"),
    ],
    ids=["dropped", "added", "in place of another", "changed", "mixed"],
)
def test_a_shuffler_that_cheats(spoil, said: str):
    method = toy()
    shuffle = type(method).shuffle

    def cheating(self, task, message, memory, context):
        reply = shuffle(self, task, message, memory, context)
        return Reply(reply.message.replace(rows=spoil(reply.message.tensor("rows"))), reply.memory)

    with pytest.raises(QuorumError, match=rf"round 1: the shuffler cannot be trusted: .*{said}"):
        trained(mended(method, "shuffle", cheating))


def relayed(change) -> Parties:
    """The method with a wire between clients and the shuffler on which boxes are changed."""
    method = toy()
    shuffle = type(method).shuffle

    def tampered(self, task, message, memory, context):
        return shuffle(self, task, change(message, memory, context), memory, context)

    return mended(method, "shuffle", tampered)


def boxes(message: Message, **changed) -> Message:
    return message.replace(boxes={**message["boxes"], **changed})


@pytest.mark.parametrize(
    "change",
    [
        lambda m, memory, c: boxes(m, b=m["boxes"]["b"] ^ (torch.arange(len(m["boxes"]["b"])) == 50).to(torch.uint8)),
        lambda m, memory, c: boxes(m, b=m["boxes"]["c"]),
        lambda m, memory, c: boxes(m, b=m["boxes"]["b"][:-1]),
        lambda m, memory, c: boxes(m, b=torch.zeros(3, dtype=torch.uint8)),
        lambda m, memory, c: m.replace(keys={**m["keys"], "b": m["keys"]["a"]}),
    ],
    ids=["a bit", "somebody else's", "cut short", "no box", "another sender"],
)
def test_a_message_that_was_changed_is_left_out(change, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "parley"):
        run = trained(relayed(change), rounds=1)
    assert run.last("server/refused") == 1
    assert len(run.state.tensor("x")) == 18 - 4
    assert "round 1 went on without client 'b': a sealed message" in caplog.text


def test_a_message_sent_again_in_a_later_round_is_left_out():
    kept: dict[str, torch.Tensor] = {}

    def replay(message, memory, context):
        kept.setdefault("b", message["boxes"]["b"])
        return boxes(message, b=kept["b"])

    run = trained(relayed(replay), rounds=2)
    assert "server/refused" not in run.records[-2].metrics
    assert run.last("server/refused") == 1
    assert len(run.state.tensor("x")) == 18 - 4


def test_a_client_without_the_right_key_is_left_out():
    """It cannot open the secret; and with another key than it first came with, nobody deals with it."""
    method = toy()
    keep = type(method).keep

    def stranger(self, task, message, memory, data, context):
        if context.id == "b":
            context = Context.alone(context.round_key, "b", context.round)
        return keep(self, task, message, memory, data, context)

    run = trained(mended(method, "keep", stranger), rounds=1)
    (failure,) = run.records[-1].failures
    assert failure.client == "b"
    assert "sealed for another key" in failure.reason
    assert len(run.state.tensor("x")) == 18 - 4
    known = Memory.of(keys={"b": torch.ones(32, dtype=torch.uint8)})
    context = Context("party:key server", 3, "deal", 0, Key(), Secrets(SECRET, (3,), "party:key server"))
    offered = Message.of(keys={"b": parties._tensor(parties.own_key(context).public)})
    assert not toy().deal(None, offered, known, context).message.get("boxes")


def test_if_nobody_is_left_the_run_stops():
    nothing = relayed(lambda m, memory, c: m.replace(boxes={n: b[:-1] for n, b in m["boxes"].items()}))
    with pytest.raises(QuorumError, match="the shuffler refused every client"):
        trained(nothing)


@given(n=st.integers(1, 5), width=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_rows_of_bytes_hold_the_tensors(n: int, width: int, seed: int):
    draw = np.random.default_rng(seed)
    form = Form.of(a=(torch.float32, (width, 2)), b=(torch.int64, ()), c=(torch.float64, (3,)), d=(torch.uint8, (1,)))
    tree = {
        "a": torch.from_numpy(draw.standard_normal((n, width, 2)).astype(np.float32)),
        "b": torch.from_numpy(draw.integers(-9, 9, n)),
        "c": torch.from_numpy(draw.standard_normal((n, 3))),
        "d": torch.from_numpy(draw.integers(0, 255, (n, 1), dtype=np.uint8)),
    }
    rows = packed(tree)
    assert tuple(rows.shape) == (n, width_of(form))
    back = unpacked(rows, form)
    assert all(torch.equal(value, back[name]) for name, value in tree.items())
    with pytest.raises(WireError):
        unpacked(rows[:, :-1], form)
