"""Whole runs in this process: the server's part and the nodes' as they are, Flower replaced by a list of messages."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import parley.deploy.carrier as carrying
import parley.deploy.enrolment as enrolment
from parley.algorithms import algorithms
from parley.algorithms.exchange import disclosed, parties
from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.data import Federation
from parley.data.sources import InMemory
from parley.deploy.answering import answer, invitation
from parley.deploy.carrier import Carrier, bytes_of, record_of
from parley.deploy.check import check_node
from parley.deploy.consent import verdict
from parley.deploy.keys import fingerprint
from parley.deploy.node_data import agreed, described, fitted, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.server_folder import ServerFolder
from parley.deploy.serverapp import carry_out
from parley.deploy.submissions import Submission, Submissions, submitted_study
from parley.engine.run import Run
from parley.report.page import report_page
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import failure
from parley.store.checkpoints import Checkpoints
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.study.train import train

from .conftest import ALL, table

FEDERATED = sorted(
    name
    for name in algorithms
    if not algorithms[name]().needs.pooled
    and not parties(algorithms[name]().exchanges())
    and not name.endswith("-distill")  # they need public inputs, which these studies have not
)
QUICK = (
    "datashare", "ditto", "feature-fedavg", "fedals", "fedavg", "kernel-fedavg", "moon", "scaffold", "statistics",
)  # fmt: skip
"""Methods of every kind; the others are tried by `make test-all`."""


class Grid:
    """Flower's connection, without Flower: nodes answer at once, or as a test says."""

    def __init__(self, nodes: dict[int, NodeFolder]) -> None:
        self.nodes, self.sent, self.asked = nodes, {}, 0
        self.offline: set[int] = set()
        self.tamper: Callable[[int, bytes], Any] = lambda number, data: data
        self.twist: Callable[[int, bytes], bytes] = lambda number, data: data
        """What the server makes of a question before it leaves."""

    def get_node_ids(self) -> list[int]:
        return [number for number in self.nodes if number not in self.offline]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for message in messages:
            self.asked += 1
            number = message.metadata.dst_node_id
            self.sent[f"m{self.asked}"] = (number, bytes_of(message.content))
        return [f"m{self.asked}"]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        found = []
        for id in ids:
            number, data = self.sent[id]
            reply = self.tamper(number, answer(self.nodes[number], self.twist(number, data)))
            if reply is not None:
                found.append(self.reply(id, reply))
        return found

    @staticmethod
    def reply(id: str, reply: Any) -> Any:
        error = reply if isinstance(reply, SimpleNamespace) else None
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=id),
            has_error=lambda: error is not None,
            error=error,
            content=None if error is not None else record_of(reply),
        )


class Place:
    """A server, three nodes and the grid between them."""

    def __init__(self, server: ServerFolder, make_node: Callable[..., NodeFolder]) -> None:
        self.folder = server
        self.nodes = {name: make_node(name, ALL) for name in "abc"}
        for node in self.nodes.values():
            server.register(node.path / "node.pub")
        numbers = {key: number for number, key in enumerate(server.nodes().values(), 1)}
        server.keep_numbers(numbers)
        self.grid = Grid(dict(enumerate(self.nodes.values(), 1)))
        self.submissions = Submissions(server)
        self.parties: dict[str, NodeFolder] = {}

    def add_party(self, party: str, node: NodeFolder) -> None:
        """A node that is a party, registered after those with data."""
        self.folder.register(node.path / "node.pub")
        self.folder.keep_numbers({key: number for number, key in enumerate(self.folder.nodes().values(), 1)})
        self.parties[party] = node
        everybody = self.nodes | {one.settings.name: one for one in self.parties.values()}
        self.grid.nodes = {n: everybody[name] for n, name in enumerate(self.folder.nodes(), 1)}

    def submit(self, study: dict[str, object], **how: bool) -> Submission:
        written = {"table": study, "base": "."}
        return self.submissions.submit(written, self.proposal(study), **({"again": False, "resume": False} | how))[0]

    def proposal(self, study: dict[str, object]) -> Proposal:
        return Proposal.of(submitted_study({"table": study, "base": "."}), self.folder.nodes())

    def run(self, study: dict[str, object], **how: bool) -> Submission:
        one = self.submit(study, **how)
        self.submissions.update(one.id, attempts=1)
        carry_out(self.folder, one.id, self.grid)
        return self.submissions[one.id]

    def said(self, one: Submission) -> str:
        return self.submissions.log(one.id).read_text()

    def check_same(self, expected: Run, one: Submission) -> list[RoundRecord]:
        """The stored run ends in the same state, bit for bit; its records."""
        with RunStore(self.folder.store) as store:
            found = store.checkpoint(str(one.run))
            assert found is not None
            state = Checkpoints(store.folder(str(one.run))).load(found[1])["last"]
            records = store.records(str(one.run))
        assert expected.state.tensors.keys() == state.tensors.keys()
        assert all(torch.equal(value, state.tensors[name]) for name, value in expected.state.tensors.items())
        return records

    def inline(self, study: dict[str, object]) -> Run:
        described_ = submitted_study({"table": study, "base": "."})
        return train(replace(described_, data=self.federation(), runtime="inline", device="cpu"))

    def federation(self) -> Federation:
        """What the nodes have, in one place."""
        own = {name: load_data(node.settings, node.path) for name, node in self.nodes.items()}
        info, _ = agreed({name: described(data) for name, data in own.items()})
        clients = tuple(fitted(data.train, data.info, info) for data in own.values())
        held_out = InMemory(tuple(fitted(data.test, data.info, info) for data in own.values()))
        return Federation(info, tuple(own), InMemory(clients), held_out=held_out)


@pytest.fixture(autouse=True)
def identity():
    """Messages say whose they are, which Flower tells a process at its start."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def place(server: ServerFolder, make_node, monkeypatch) -> Place:
    (server.path / "deploy.toml").write_text(
        'names = ["localhost"]\nenrolment = 1.5\ndecision = 1.5\nwait = 2.0\nreply_megabytes = 1.0\n'
    )
    monkeypatch.setattr(enrolment, "_AGAIN", 0.2)
    monkeypatch.setattr(carrying, "POLL", 0.02)
    return Place(ServerFolder.open(server.path), make_node)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FEDERATED])
def test_every_federated_method_gives_the_bits_of_inline(place: Place, name: str):
    study = table(name, 2, algorithm={"name": name})
    if not algorithms[name]().needs.network:
        del study["model"]
    if name.startswith(("feature-", "kernel-")):  # they fit numbers
        study |= {"model": {"name": "features" if name.startswith("feature-") else "mlp"}}
        for node in place.nodes.values():
            data = dict(np.load(str(node.settings.data)))
            np.savez(str(node.settings.data), x=data["x"].astype(np.float64), y=data["y"] / 9.5)
    if name in ("cox", "glm", "kaplan-meier"):  # times, some of rows that were last seen then
        for number, node in enumerate(place.nodes.values()):
            draw = np.random.default_rng(number)
            y = draw.exponential(size=50) * np.where(np.arange(50) % 3, 1, -1)
            np.savez(str(node.settings.data), x=draw.normal(size=(50, 3)), y=y)
    exchanges = algorithms[name]().exchanges()
    if disclosed(exchanges) or any(each.rare for each in exchanges):  # columns of few digits stand out
        for node in place.nodes.values():
            proposal = Proposal.of(submitted_study({"table": study, "base": "."}), place.folder.nodes())
            node.keep(proposal)
            node.decide(proposal.hash, "approved", disclose=True)
    one = place.run(study)
    assert one.status == "finished", place.said(one)
    expected = place.inline(study)
    records = place.check_same(expected, one)
    for ours, theirs in zip(expected.records, records, strict=True):
        assert not theirs.failures
        for metric in ("clients/loss", "up/bytes", "down/bytes"):
            assert ours.metrics.get(metric) == theirs.metrics.get(metric)


def test_rounded_metrics_are_those_of_inline(place: Place):
    study = table("ditto", 2, evaluate={"digits": 2, "metrics": ["f1"]})
    one = place.run(study)
    expected = place.inline(study)
    for ours, theirs in zip(expected.records, place.check_same(expected, one), strict=True):
        for name in ("clients/loss", "clients/accuracy", "clients/f1"):
            assert ours.metrics[name] == theirs.metrics[name]
            for value in ours.metrics[name].clients.values():
                assert value == pytest.approx(round(value, 2), abs=1e-12)


def test_a_node_with_few_held_out_samples_trains_and_is_not_asked_to_evaluate(place: Place):
    place.nodes["b"].set(test_fraction=0.1)
    one = place.run(table("fedavg", 1))
    assert one.status == "finished", place.said(one)
    with RunStore(place.folder.store) as store:
        record = store.records(str(one.run))[-1]
    assert not record.failures
    assert sorted(record.metrics["clients/loss"].clients) == ["a", "c"]


def test_secure_sums_give_the_bits_of_inline_and_nobody_s_reply(place: Place):
    study = table("scaffold", 2, channels={"up": ["secure-sum"]})
    seen: list[bytes] = []
    place.grid.tamper = lambda number, data: seen.append(data) or data
    one = place.run(study)
    assert one.status == "finished", place.said(one)
    records = place.check_same(place.inline(study), one)
    assert [record.metrics["cohort"].value for record in records if "cohort" in record.metrics] == [3.0, 3.0]
    sent = [decode(parts[0]) for head, parts in map(unpack, seen) if head["kind"] == "reply"]
    assert not any("update" in message for message in sent)
    assert sum("masked" in message for message in sent) == 6
    asked = [line["asked"] for line in place.nodes["a"].logged() if "asked" in line and line["asked"] != "evaluation"]
    assert asked == ["secure-sum-keys", "secure-sum-shares", "client", "secure-sum-unmask"] * 2


def swapped(data: bytes, change: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]) -> bytes:
    """A question of a secure sum with other keys in it."""
    head, parts = unpack(data)
    inner, message = unpack(parts[1]) if head["kind"] == "work" else ({}, [])
    if inner.get("kind") != "call" or "keys" not in decode(message[0]).get("secure-sum"):
        return data
    told, signed = decode(message[0]), json.loads(parts[2])
    group = dict(told["secure-sum"])
    group["keys"] = change(group["keys"].clone(), signed)
    twisted = pack(inner, encode(told.replace(**{"secure-sum": group})))
    return pack(head, parts[0], twisted, json.dumps(signed).encode())


def of_the_server(keys: torch.Tensor, signed: dict[str, Any]) -> torch.Tensor:
    """In place of b's, with b's signature or without it."""
    keys[1] ^= 1
    row = keys[1].numpy().tobytes()
    signed["b"] = [blake2b(row, digest_size=16).hexdigest(), signed["b"][1]]
    return keys


def unsigned(keys: torch.Tensor, signed: dict[str, Any]) -> torch.Tensor:
    del signed["b"]
    return keys


def twice(keys: torch.Tensor, signed: dict[str, Any]) -> torch.Tensor:
    keys[1] = keys[2]
    return keys


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_the_server, "refused a secure sum with keys that 'b' has not signed."),
        (unsigned, "refused a secure sum with keys that no node of the roster has signed."),
        (twice, "refused a secure sum with keys that no node of the roster has signed."),
    ],
)
def test_a_server_that_swaps_a_key_of_a_secure_sum_is_refused_by_name(place: Place, change, why: str):
    place.grid.twist = lambda number, data: swapped(data, change)
    one = place.run(table("fedavg", 1, channels={"up": ["secure-sum"]}))
    assert one.status != "finished"
    assert why.rstrip(".") in place.said(one)
    assert not any(
        line.get("answered") == "reply" and line["asked"] != "secure-sum-keys" for line in place.nodes["a"].logged()
    )


def test_keys_signed_for_another_sum_are_refused(place: Place):
    """The signature of round 1, with which the server comes again in round 2."""
    first: dict[str, Any] = {}

    def old(number: int, data: bytes) -> bytes:
        def change(keys: torch.Tensor, signed: dict[str, Any]) -> torch.Tensor:
            first.setdefault("row", keys[1].clone())
            first.setdefault("signed", signed["b"])
            keys[1], signed["b"] = first["row"], first["signed"]
            return keys

        return swapped(data, change)

    place.grid.twist = old
    one = place.run(table("fedavg", 2, channels={"up": ["secure-sum"]}))
    assert "round 1: asked 3, answered 3" in place.said(one)
    assert "refused a secure sum with keys that 'b' has not signed" in place.said(one)


def test_the_roster_is_what_owners_approve_and_what_minimum_nodes_counts(place: Place):
    node, study = place.nodes["a"], submitted_study({"table": table(), "base": "."})
    roster = place.folder.nodes()
    whole, alone = Proposal.of(study, roster), Proposal.of(study, {"a": roster["a"]})
    other = Proposal.of(study, roster | {"a": roster["b"], "b": roster["a"]})
    nobody = Proposal.of(study)
    assert len({one.hash for one in (whole, alone, other, nobody)}) == 4
    (node.path / "policy.toml").write_text(ALL + "minimum_nodes = 3\n")

    def invited(proposal: Proposal) -> str:
        reply = unpack(answer(node, invitation("a", proposal.hash, proposal)))[0]
        logged = list(node.logged())[-1]
        return str(logged.get("why") or reply.get("reason") or reply["kind"])

    assert invited(whole) == "enrolled"
    assert "at least 3 nodes; this one has 1" in invited(alone)
    for proposal in (other, nobody):
        assert "is not in the roster of the study with the key that it has" in invited(proposal)
    peers = [fingerprint(roster[name]) for name in "bc"]
    (node.path / "policy.toml").write_text(ALL + f"minimum_nodes = 3\npeers = {json.dumps(peers)}\n")
    assert invited(whole) == "enrolled"
    (node.path / "policy.toml").write_text(ALL + f"minimum_nodes = 3\npeers = {json.dumps(peers[:1])}\n")
    assert "nodes whose keys its peers do not name" in invited(whole)


def test_the_report_says_who_agreed_to_what(place: Place):
    (place.nodes["b"].path / "policy.toml").write_text(ALL.replace('["*"]', '["scaffold"]', 1))
    one = place.run(table("fedavg", 2))
    key = fingerprint(place.folder.nodes()["a"])
    with RunStore(place.folder.store) as store:
        named, plain = (unescape(report_page(store, [str(one.run)], names=names)) for names in (True, False))
    assert f"owners approved study {one.hash[:12]}" in named
    for page in (named, plain):
        rows = re.findall(r'<th scope="row">([^<]*)</th><td data-head="took part">([^<]*)</td>', page)
        assert [took for _, took in rows] == ["with its data", "no", "with its data"]
    assert "a b c" in " ".join(re.findall(r'"row">([^<]*)</th><td data-head="took part"', named))
    assert key in named
    assert key not in plain


def test_a_study_without_a_roster_does_not_pass_by_the_peers(place: Place):
    """A roster that the server leaves out names no stranger, and was approved."""
    node, study = place.nodes["a"], submitted_study({"table": table(), "base": "."})
    peers = [fingerprint(place.folder.nodes()[name]) for name in "bc"]
    (node.path / "policy.toml").write_text(ALL + f"peers = {json.dumps(peers)}\n")
    nobody = Proposal.of(study)
    assert "without a roster to compare its peers with" in verdict(node, nobody).why
    node.keep(nobody)
    node.decide(nobody.hash, "approved")
    reply = unpack(answer(node, invitation("a", "r", nobody)))[0]
    assert "is not in the roster of the study with the key that it has" in reply["reason"]


def test_check_warns_of_secure_sums_among_nodes_that_a_server_may_invent(place: Place):
    node = place.nodes["a"]
    for peers, warned in (("", True), ('peers = ["sha256:x"]\n', False)):
        (node.path / "policy.toml").write_text(ALL + 'required_channels = ["secure-sum(24, 8.0, 0.7, 3)"]\n' + peers)
        said = {one.what: one.text for one in check_node(node)}["policy"]
        assert ("could invent all other nodes" in said) == warned


def test_a_node_can_demand_secure_sums(place: Place):
    (place.nodes["b"].path / "policy.toml").write_text(ALL + 'required_channels = ["secure-sum"]\n')
    one = place.run(table("fedavg", 1, channels={"up": ["secure-sum"]}, faults={"at_least": 3}))
    assert one.status == "finished", place.said(one)
    one = place.run(table("fedavg", 1, faults={"at_least": 3}))
    assert one.status != "finished"
    assert "it asks for the channel 'secure-sum'" in place.said(one)


def test_baselines_that_need_all_data_are_refused(place: Place):
    pooled = next(name for name in algorithms if algorithms[name]().needs.pooled)
    one = place.run(table(pooled, algorithm={"name": pooled}))
    assert one.status == "failed"
    assert "needs all data in one place" in one.reason


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"garbage", "sent bytes that are no reply"),
        (bytes(1_100_000), "sent 1100000 bytes, more than the 1000000 that are allowed"),
        (None, "gave no answer within 2 s"),
        (SimpleNamespace(code=5, reason="x"), "went away before it answered"),
        (SimpleNamespace(code=2, reason="<class 'ValueError'>"), "its program failed (<class 'ValueError'>)"),
        (SimpleNamespace(code=99, reason=None), "failed"),
    ],
)
def test_a_node_that_gives_no_good_answer_is_left_out_by_name(place: Place, reply, why: str):
    def tamper(number: int, data: bytes) -> Any:
        return reply if number == 2 and b'"kind":"reply"' in data[:40] else data

    place.grid.tamper = tamper
    one = place.run(table(rounds=1, evaluate={"clients": "none"}))
    assert one.status == "finished", place.said(one)
    assert f"round 1: asked 3, answered 2; missing: b {why}" in place.said(one)


def test_numbers_that_are_none_are_left_out(place: Place):
    """A node that does not check what it sends: the server does."""

    def tamper(number: int, data: bytes) -> bytes:
        if number != 2 or b'"kind":"reply"' not in data[:40]:
            return data
        head, (message, observed) = unpack(data)
        sent = decode(message, Message)
        bad = Message({name: value * float("nan") for name, value in sent.tensors.items()}, sent.scalars)
        return pack(head, encode(bad), observed)

    place.grid.tamper = tamper
    one = place.run(table(rounds=1, evaluate={"clients": "none"}))
    assert "round 1: asked 3, answered 2; missing: b sent NaN or infinite numbers in its message" in place.said(one)


def test_no_node_can_end_the_run_of_the_others(place: Place):
    """A node that claims that what all share is spoilt is left out like any other."""
    fatal = failure(Failure("b", "is malicious.", fatal=True))
    place.grid.tamper = lambda number, data: fatal if number == 2 and b'"kind":"reply"' in data[:40] else data
    one = place.run(table(rounds=1, evaluate={"clients": "none"}))
    assert one.status == "finished"
    assert "missing: b is malicious" in place.said(one)


@pytest.mark.parametrize(
    "wrong", [{"correct": 1e300}, {"correct": -1}, {"samples": 10**9}, {"positions": -1}, {"values": {"\x1b": 1.0}}]
)
def test_no_node_decides_what_all_are_judged_by(place: Place, wrong: dict[str, object]):
    """A score of a billion samples was the federation's accuracy."""

    def tamper(number: int, data: bytes) -> bytes:
        head, parts = unpack(data)
        return pack(head | wrong, *parts) if number == 2 and head["kind"] == "score" else data

    place.grid.tamper = tamper
    one = place.run(table(rounds=1))
    assert one.status == "finished", place.said(one)
    with RunStore(place.folder.store) as store:
        accuracy = store.records(str(one.run))[-1].metrics["clients/accuracy"]
    assert 0 <= accuracy.value <= 1
    assert set(accuracy.clients) == {"a", "c"}


def test_what_a_node_says_does_nothing_to_the_operators_terminal(place: Place):
    """Nor to the run: half of a character could not be written, and ended it."""
    mean = failure(Failure("b", "is \x1b[2Jmean \ud800.", trace="\ud800"))
    place.grid.tamper = lambda number, data: mean if number == 2 and b'"kind":"reply"' in data[:40] else data
    one = place.run(table(rounds=1))
    assert one.status == "finished", place.said(one)
    assert r"missing: b is \x1b[2Jmean \ud800" in place.said(one)

    def described(number: int, data: bytes) -> bytes:
        head, parts = unpack(data)
        return pack(head | {"data": head["data"] | {"columns": ["\x1b[2J"]}}, *parts) if number == 2 else data

    place.grid.tamper = described
    ended = place.run(table(rounds=1, seed=3))
    assert ended.status == "failed"
    assert "\x1b" not in str(ended.reason) + place.said(ended)
    place.grid.tamper = lambda number, data: mean if number == 2 else data
    one = place.run(table(rounds=1, seed=2))
    assert one.status == "finished", place.said(one)
    assert "\x1b" not in place.said(one)


def test_who_is_required_must_enrol_and_answer(place: Place):
    place.grid.offline = {2}
    one = place.run(table(faults={"require": ["b"]}))
    assert (one.status, one.run) == ("failed", None)
    assert one.reason == "'b', which faults.require names, is not connected."
    one = place.run(table(faults={"at_least": 3}, seed=1))
    assert "only 2 nodes enrolled of the 3 that are needed. b is not connected." in one.reason
    one = place.run(table(rounds=1, seed=2))
    assert one.status == "finished"
    assert list(one.enrolled) == ["a", "c"]


def test_owners_may_take_their_time(place: Place):
    """A node whose owner decides during enrolment is asked again and takes part."""
    for node in place.nodes.values():
        (node.path / "policy.toml").write_text("")
    asked = []

    def tamper(number: int, data: bytes) -> bytes:
        asked.append(number)
        if asked.count(number) == 2:
            node = place.grid.nodes[number]
            node.decide(node.studies()[-1], "approved" if number < 3 else "rejected")
        return data

    place.grid.tamper = tamper
    one = place.run(table(rounds=1, evaluate={"clients": "none"}))
    assert one.status == "finished", place.said(one)
    assert list(one.enrolled) == ["a", "b"]
    assert "c its owner rejected study" in place.said(one)


def test_a_run_that_died_goes_on_with_those_that_enrolled(place: Place):
    study = table("scaffold", 3, evaluate={"every": 3})
    count = 0

    def dies(number: int, data: bytes) -> bytes:
        nonlocal count
        count += b'"kind":"reply"' in data[:40]
        if count == 5:
            raise ConnectionError("Flower is gone")
        return data

    place.grid.tamper = dies
    one = place.run(study)
    assert one.status == "queued"
    assert list(one.enrolled) == ["a", "b", "c"]
    place.grid.tamper = lambda number, data: data
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    done = place.submissions[one.id]
    assert (done.status, done.run) == ("finished", one.run)
    place.check_same(place.inline(study), done)


@pytest.mark.parametrize("noise", ["local", "central"])
def test_a_private_run_that_died_goes_on_and_tells_each_place_once(place: Place, monkeypatch, noise: str):
    """Nodes resend what they sent, and what the server adds is drawn once: the bits of an undisturbed run."""
    monkeypatch.setattr("secrets.token_bytes", lambda count: b"7" * count)
    private = {"noise": noise, "noise_multiplier": 1.0, "delta": 1e-3}
    study = table("fedavg", 3, privacy=private, evaluate={"clients": "none"})
    told: dict[tuple[int, int, str], set[bytes]] = {}
    count = 0

    def dies(number: int, data: bytes) -> bytes:
        nonlocal count
        head, parts = unpack(data)
        if head["kind"] == "reply":
            count += 1
            asked = [line for line in place.grid.nodes[number].logged() if line.get("answered") == "reply"][-1]
            told.setdefault((number, int(asked["round"]), asked["asked"]), set()).add(parts[0])
            if count == 5:
                raise ConnectionError("Flower is gone")
        return data

    place.grid.tamper = dies
    one = place.run(study)
    assert one.status == "queued"
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    done = place.submissions[one.id]
    assert (done.status, done.run) == ("finished", one.run), place.said(one)
    assert count > len(told) == 9
    assert all(len(answers) == 1 for answers in told.values())
    if noise == "central":  # what nodes draw is their own, and another in a simulation
        written = replace(submitted_study({"table": study, "base": "."}), runtime="inline", device="cpu")
        expected = train(replace(written, data=place.federation()), secret=b"7" * 16)
        place.check_same(expected, done)


def test_a_server_restored_from_an_older_backup_is_told_what_it_needs(place: Place, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("parley.runtimes.remote._PATIENCE", 0.5)
    study = table("scaffold", 4, evaluate={"every": 4})
    count = 0

    def dies(number: int, data: bytes) -> bytes:
        nonlocal count
        count += b'"kind":"reply"' in data[:40]
        if count == 5:
            raise ConnectionError("Flower is gone")
        return data

    place.grid.tamper = dies
    one = place.run(study)
    shutil.copytree(place.folder.path, tmp_path / "backup")
    place.grid.tamper = lambda number, data: data
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    place.submissions.update(one.id, attempts=3)
    assert place.submissions[one.id].status == "finished"
    shutil.rmtree(place.folder.path)
    shutil.copytree(tmp_path / "backup", place.folder.path)
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    done = place.submissions[one.id]
    assert done.status == "stopped"
    assert "restored from an older backup needs a new approval" in done.reason


def test_more_rounds_ask_again_and_go_on(place: Place):
    study = table(rounds=2, evaluate={"every": 2})
    first = place.run(study)
    longer = place.run(study | {"rounds": 4}, resume=True)
    assert (longer.status, longer.run) == ("finished", first.run)
    place.check_same(place.inline(study | {"rounds": 4}), longer)
    with pytest.raises(InputError, match="no earlier run of this study"):
        place.submit(table(rounds=2, seed=9), resume=True)


def test_the_same_study_is_submitted_once(place: Place):
    first = place.submit(table())
    assert place.submit(table()).id == first.id
    assert place.submit(table(faults={"quorum": 0.9})).id == first.id
    assert place.submit(table(), again=True).id != first.id
    assert place.submit(table(seed=5)).id not in (first.id,)
    place.submissions.update(first.id, status="failed", reason="x")
    again = place.submit(table(seed=5))
    assert place.submissions["last"].id == again.id
    with pytest.raises(InputError, match="no run 'nothing' was submitted"):
        _ = place.submissions["nothing"]


def test_a_run_can_be_stopped_while_it_waits(place: Place):
    place.grid.tamper = lambda number, data: None
    one = place.submit(table())
    place.submissions.ask_to_stop(one.id)
    begun = time.monotonic()
    carry_out(place.folder, one.id, place.grid)
    assert time.monotonic() - begun < 30
    assert place.submissions[one.id].status == "stopped"
    assert not place.submissions.asked_to_stop(one.id)


def test_waits_are_bounded(place: Place):
    place.grid.tamper = lambda number, data: None
    carrier = Carrier(place.grid, {"a": 1, "b": 2}, 10**6)
    begun = time.monotonic()
    answers = carrier.ask({"a": lambda: b"x", "b": lambda: b"y"}, 0.5, "")
    assert 0.5 <= time.monotonic() - begun < 30
    assert [getattr(one, "reason", "") for one in answers.values()] == ["gave no answer within 0.5 s."] * 2


def test_a_changed_study_is_not_carried_out(place: Place, tmp_path: Path):
    one = place.submit(table())
    place.submissions.update(one.id, hash="0" * 64)
    carry_out(place.folder, one.id, place.grid)
    assert "have changed since the run was submitted" in place.submissions[one.id].reason


def test_nodes_that_do_not_fit_together_are_told_before_round_one(place: Place, tmp_path: Path):
    (tmp_path / "b.csv").write_text("u,v,w\n1,2,3\n4,5,6\n7,8,1\n")
    place.nodes["b"].point(data=str(tmp_path / "b.csv"))
    one = place.run(table())
    assert one.status == "failed"
    assert "node 'b' has shape" in one.reason
