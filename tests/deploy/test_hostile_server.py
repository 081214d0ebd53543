"""A server that lies, over TLS, to nodes as they are: beside every honest question it asks one of them a dozen others.

The honest run ends with its bits, nothing else is answered, and every frame is in the node's log.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import parley as pl
from parley.statistics.run import statistics_table

from .processes import federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LIAR = """
import json
from dataclasses import asdict

import parley.deploy.serverapp as inside
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.carrier import Carrier
from parley.runtimes.frame import pack, unpack

honest, done = Carrier.ask, set()


def moved(part):
    message = decode(part, Message)
    return encode(Message({{name: value + 1 for name, value in message.tensors.items()}}, message.scalars))


def lies(frame):
    head, parts = unpack(frame)
    inner, (message,) = unpack(parts[1])
    common = json.loads(parts[0])
    yield "repeated", frame
    for label, changes in {{
        "model": {{}}, "start": {{"incarnation": inner["incarnation"] + 1}}, "round": {{"round": 99}},
        "exchange": {{"exchange": inner.get("exchange", 0) + 1}}, "key": {{"round_key": "0" * 32}},
        "version": {{"version": "0-0"}}, "asked": {{"asked": "sketch"}}, "rows": {{"start": 0, "stop": 1, "batch": 1}},
    }}.items():
        yield label, pack(head, parts[0], pack(inner | changes, moved(message)), *parts[2:])
    yield "run", pack(head | {{"run": head["run"] + "x"}}, *parts)
    yield "study", pack(head | {{"study": "0" * 64}}, *parts)
    yield "recipient", pack(head | {{"recipient": "north"}}, *parts)
    other = pack(inner, moved(message))
    yield "population", pack(head | {{"population": 10**6}}, parts[0], other)
    yield "classes", pack(head, json.dumps(common | {{"vocabulary": 9}}).encode(), other)
    yield "half a character", pack(head | {{"run": "\\ud800"}}, *parts)
    yield "no frame", b"garbage"


def ask(self, frames, seconds, group):
    kept = {{name: frame() for name, frame in frames.items()}}
    answers = honest(self, {{name: lambda data=data: data for name, data in kept.items()}}, seconds, group)
    kind = unpack(unpack(kept["west"])[1][1])[0]["kind"] if "west" in kept else None
    if kind in ("call", "evaluation") and kind not in done:
        done.add(kind)
        for label, data in lies(kept["west"]):
            told = honest(self, {{"west": lambda: data}}, seconds, group)["west"]
            head = unpack(told)[0] if isinstance(told, bytes) else {{"kind": "lost", "reason": told.reason}}
            line = [kind, label, head["kind"], str(head.get("reason")), told == answers["west"]]
            with open({log!r}, "a") as file:
                file.write(json.dumps(line) + "\\n")
    return answers


Carrier.ask = ask
app = inside.server_app()
"""


def test_a_lying_server_over_tls_gets_what_one_honest_run_gives(tmp_path: Path):
    told = tmp_path / "told.jsonl"
    with federation(tmp_path, "server", "north", "south", "west") as bench:
        before = bench.submit(bench.table(rounds=1, seed=1))
        bench.ended(before)
        app = bench.folder.path / "flower" / "app" / "parley_app" / "server.py"
        app.write_text(LIAR.format(log=str(told)))
        table = bench.table(rounds=2, seed=2, evaluate={"every": 2})
        one = bench.ended(bench.submit(table))
        bench.same_as_inline(one, table)
        log = list(bench.nodes["west"].logged())
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [kind for kind, *_ in lines] == ["evaluation"] * 16 + ["call"] * 16
    for kind, label, answered, reason, same in lines:
        if label == "repeated":
            assert same, (kind, label)
        else:
            assert answered == "failure", (kind, label, reason)
            assert not same
            assert str(tmp_path) not in reason
    assert sum(line["event"] == "received" for line in log) == sum(line["event"] == "message" for line in log)
    assert sum("refused" in str(line.get("answered")) or "why" in line for line in log) >= 20
    assert sum(line.get("kind") == "work" and line["event"] == "message" for line in log) >= 30


STAGES = """
import json

import parley.deploy.serverapp as inside
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.answering import PROTOCOL
from parley.deploy.carrier import Carrier
from parley.runtimes.frame import pack, unpack

honest, done, kept = Carrier.ask, set(), {{}}


def lies(head, parts, inner, message, asked):
    def changed(tensors=None, **changes):
        told = encode(Message(message.tensors | (tensors or {{}}), message.scalars))
        return pack(head, parts[0], pack(inner | changes, told), *parts[2:])

    later = inner["exchange"] + 7
    if asked == "cells":
        edges = message.tensor("edges")
        yield "another grid", changed({{"edges": edges + 1e-3}})
        yield "another grid later", changed({{"edges": edges + 1e-3}}, exchange=later)
        yield "another grid in another round", changed({{"edges": edges + 1e-3}}, round=inner["round"] + 1)
        yield "edges that fall", changed({{"edges": edges.flip(1)}}, exchange=later)
    if asked == "secure-sum-shares":
        keys = message.tensor("secure-sum/keys")
        yield "swapped key", changed({{"secure-sum/keys": keys.flip(0).roll(1, 1)}}, exchange=later)
    if asked == "secure-sum-unmask":
        summed = message.tensor("secure-sum/summed").clone()
        summed[0] = False
        yield "unmasked without one", changed({{"secure-sum/summed": summed}})
        yield "unmasked without one, later", changed({{"secure-sum/summed": summed}}, exchange=later)
        yield "unmasked without one, by another start", changed(
            {{"secure-sum/summed": summed}}, incarnation=inner["incarnation"] + 1
        )
    if asked == "client":
        moved = {{name: value + 1 for name, value in message.tensors.items() if name.startswith("model/")}}
        for start in range(1, 6):
            yield "the same by another start", changed(incarnation=inner["incarnation"] + start)
            yield "another model by another start", changed(moved, incarnation=inner["incarnation"] + start)
    study = {{"rounds": 1, "algorithm": {{"name": "fedavg"}}, "model": {{"name": "linear"}}}}
    for where, name in {{"loss": "evil.py:thing", "model": {{"name": "evil.py:Net"}}, "kernel": "/etc/passwd"}}.items():
        proposal = {{"parley": head["parley"], "study": study | {{where: name}}, "modules": {{}}}}
        top = {{"kind": "invitation", "parley": head["parley"], "protocol": PROTOCOL, "recipient": "west", "run": "x"}}
        yield "file " + where, pack(top, json.dumps(proposal).encode())


def ask(self, frames, seconds, group):
    sent = {{name: frame() for name, frame in frames.items()}}
    answers = honest(self, {{name: lambda data=data: data for name, data in sent.items()}}, seconds, group)
    if "west" in sent:
        head, parts = unpack(sent["west"])
        inner, messages = unpack(parts[1])
        asked = inner.get("asked")
        if asked in {stages!r} and asked not in done:
            done.add(asked)
            for label, data in lies(head, parts, inner, decode(messages[0], Message), asked):
                told = honest(self, {{"west": lambda: data}}, seconds, group)["west"]
                answer = unpack(told)[0] if isinstance(told, bytes) else {{"kind": "lost", "reason": told.reason}}
                line = [asked, label, answer["kind"], str(answer.get("reason")), told == answers["west"]]
                with open({log!r}, "a") as file:
                    file.write(json.dumps(line) + "\\n")
    return answers


Carrier.ask = ask
app = inside.server_app()
"""


def test_a_lying_server_over_tls_gets_nothing_of_sums_noise_cells_and_files(tmp_path: Path):
    """Double unmasking and swapped keys, repeated starts under local noise, crafted cells, files by name."""
    told = tmp_path / "told.jsonl"
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    with federation(tmp_path, "server", "north", "south", "west") as bench:
        bench.ended(bench.submit(bench.table(rounds=1, seed=1)))
        app = bench.folder.path / "flower" / "app" / "parley_app" / "server.py"
        local = {"epsilon": 50.0, "delta": 1e-3, "noise": "local"}
        for stages, table in (
            (
                ["secure-sum-shares", "secure-sum-unmask"],
                bench.table(rounds=1, seed=2, channels={"up": ["secure-sum"]}),
            ),
            (["client"], bench.table(rounds=1, seed=3, privacy=local, evaluate={"clients": "none"})),
            (["cells"], statistics_table({}, pl.FederatedStatistics(bins=2))),
        ):
            app.write_text(STAGES.format(log=str(told), stages=stages))
            one = bench.ended(bench.submit(table))
            assert one.status == "finished", bench.said(one)
        log = list(bench.nodes["west"].logged())
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    labels = [label for _, label, *_ in lines]
    assert len(set(labels)) == 13
    for asked, label, answered, reason, same in lines:
        assert same == (label == "the same by another start"), (asked, label, reason)
        assert answered == ("reply" if same else "failure"), (asked, label, reason)
    assert not (tmp_path / "mark").exists()
    assert sum(line["event"] == "received" for line in log) == sum(line["event"] == "message" for line in log)
