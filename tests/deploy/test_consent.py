"""A node answers what its owner approved, or the policy in advance, and writes down what it answered."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import parley.deploy.consent as consent
from parley import __version__
from parley.algorithms import algorithms
from parley.algorithms.base.exchange import disclosed
from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.answering import answer, invitation, work
from parley.deploy.consent import check_decidable, discloses, policy_obstacle, verdict
from parley.deploy.enrolment import federation_of
from parley.deploy.node_data import info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.settings import PolicySettings
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import Envelope, call_frame, failure
from parley.study.train import make_task

from .conftest import ALL, proposed


def invited(node: NodeFolder, proposal: Proposal, run: str = "r") -> dict[str, object]:
    return unpack(answer(node, invitation(node.settings.name, run, proposal)))[0]


def asked(node: NodeFolder, proposal: Proposal, number: int = 1, *, said: dict | None = None, **more) -> bytes:
    """One call of a round, framed as the server does."""
    name = node.settings.name
    told = said or invited(node, proposal)["data"]
    federation = federation_of({name: told})
    study = proposal.rebuilt(node.modules)
    task = make_task(federation, study.model, study.seed)
    message = study.algorithm.broadcast(task, study.algorithm.init(task, Key(0)), 1)
    envelope = Envelope(
        "x", more.get("incarnation", 7), number, 0, more.get("asked", "client"), None, number - 1, "0" * 32, name, False
    )
    common = json.dumps(info_to_json(federation.info)).encode()
    frame = call_frame(envelope, encode(message))
    return work(name, "r", proposal.hash, more.get("population", 3), envelope.incarnation, common, frame)


def test_without_a_word_of_its_owner_nothing_is_answered(make_node):
    node, proposal = make_node("a"), proposed()
    said = invited(node, proposal)
    assert said["kind"] == "pending"
    assert "has not approved" in str(said["reason"])
    assert node.studies() == [proposal.hash]
    assert not list((node.path / "runs").iterdir())  # not even the data were looked at
    reply = unpack(answer(node, work("a", "r", proposal.hash, 3, 1, b"{}", pack({"kind": "call", "round": 1}, b""))))[0]
    assert reply["kind"] == "failure"
    assert "has not approved" in reply["reason"]


def test_what_was_approved_is_answered_and_nothing_else(make_node):
    node, proposal = make_node("a"), proposed(rounds=3)
    invited(node, proposal)
    node.decide(proposal.hash, "approved")
    said = invited(node, proposal)
    assert said["kind"] == "enrolled"
    assert said["data"]["samples"] == 32
    assert said["data"]["test_samples"] == 8
    head, parts = unpack(answer(node, asked(node, proposal)))
    assert head["kind"] == "reply"
    assert decode(parts[1], Message).tensors == {}  # the training loss stays here
    for other in (proposed(rounds=4), proposed(seed=1), proposed("scaffold"), proposed(evaluate={"every": 2})):
        assert other.hash != proposal.hash
        assert invited(node, other)["kind"] == "pending"
    late = unpack(answer(node, asked(node, proposal, 4)))[0]
    assert late["reason"] == "round 4 is beyond the 3 rounds of the study it approved."


def test_what_was_approved_without_evaluation_is_not_evaluated(make_node):
    node = make_node("a", ALL)
    for clients, said in (
        ("none", "evaluates nothing in the study it approved."),
        ("all", "it is not a message to 'a'."),
    ):
        proposal = proposed(evaluate={"clients": clients})
        invited(node, proposal)
        frame = work("a", "r", proposal.hash, 3, 1, common(node), pack({"kind": "evaluation"}, b""))
        assert said in unpack(answer(node, frame))[0]["reason"]


def common(node: NodeFolder) -> bytes:
    own = load_data(node.settings, node.path)
    return json.dumps(info_to_json(own.info)).encode()


def test_a_rejection_holds_at_once_and_over_the_policy(make_node):
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    node.decide(proposal.hash, "rejected", note="no")
    assert "rejected" in unpack(answer(node, frame))[0]["reason"]
    assert "rejected" in str(invited(node, proposal)["reason"])


def test_settings_of_the_server_do_not_ask_again(make_node):
    first = proposed()
    assert first.hash == proposed(store={"checkpoint": 1.0}, faults={"quorum": 0.9}, runtime={"name": "inline"}).hash
    assert first.hash == proposed(data={"name": "digits", "clients": 7}).hash
    text = first.bytes().decode()
    assert str(Path.cwd()) not in text
    assert "iris" not in text
    assert Proposal.read(first.bytes()) == first


@pytest.mark.parametrize(
    ("policy", "study", "said"),
    [
        ({}, {}, "approves nothing"),
        ({"algorithms": ("scaffold",)}, {}, "the algorithm 'fedavg'"),
        ({"models": ("cnn",)}, {}, "the model 'mlp'"),
        ({"rounds": 6}, {"rounds": 7}, "7 rounds where it allows 6"),
        ({}, {"channels": {"up": ["top-k(0.1)"]}}, "the channel 'top-k'"),
        ({"required_channels": ("clip",)}, {}, "asks for the channel 'clip'"),
        ({"epsilon": 2.0}, {}, "asks for [privacy] with an epsilon of at most 2"),
        ({"epsilon": 2.0}, {"privacy": {"epsilon": 3.0}}, "epsilon 3 where it allows 2"),
        ({"epsilon": 4.0, "local_noise": True}, {"privacy": {"epsilon": 3.0}}, "noise that is added here"),
        ({"evaluation": False}, {}, "evaluation on held-out samples"),
        ({}, {"name": "datashare"}, "hands out samples' inputs and labels"),
        ({}, {"name": "ema", "algorithm": {"name": "ema", "of": {"name": "datashare"}}}, "hands out samples' inputs"),
    ],
)
def test_a_policy_names_what_it_does_not_allow(make_node, policy, study, said):
    whole = {"algorithms": ("*",), "models": ("*",), "channels": (), "rounds": 50} | policy
    settings = PolicySettings(**whole) if said != "approves nothing" else PolicySettings()
    node = make_node("a")
    assert said in str(policy_obstacle(settings, node, proposed(**study)))


def test_a_policy_that_allows_all_of_a_study_approves_it(make_node):
    allowed = PolicySettings(
        ("fedavg",), ("mlp",), ("clip",), ("clip",), 3, epsilon=5.0, local_noise=True, evaluation=False
    )
    study = proposed(
        channels={"up": ["clip(1.0)"]}, privacy={"epsilon": 5.0, "noise": "local"}, evaluate={"clients": "none"}
    )
    assert policy_obstacle(allowed, make_node("a"), study) is None


def test_a_policy_exceeded_in_round_seven_stops_there(make_node):
    """A study of six rounds is approved in advance; the seventh, of the same study prolonged, asks the owner."""
    node, six, more = make_node("a", ALL), proposed(rounds=6), proposed(rounds=10)
    assert six.lineage == more.lineage
    frame = asked(node, six, 6)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    assert "beyond the 6 rounds" in unpack(answer(node, asked(node, six, 7)))[0]["reason"]
    said = invited(node, more)
    assert said["kind"] == "pending"
    assert "10 rounds where it allows 6" in str(said["reason"])


def test_methods_that_hand_out_samples_need_consent_in_so_many_words(make_node):
    node, proposal = make_node("a", ALL), proposed("datashare")
    assert invited(node, proposal)["kind"] == "pending"
    assert discloses(node, proposal) == "samples' inputs and labels"
    with pytest.raises(InputError, match="--disclose"):
        check_decidable(node, proposal, disclose=False)
    node.decide(proposal.hash, "approved")
    assert "but not that it hands out" in verdict(node, proposal).why
    check_decidable(node, proposal, disclose=True)
    node.decide(proposal.hash, "approved", disclose=True)
    assert verdict(node, proposal).yes


def test_every_method_says_whether_it_hands_out_samples():
    """Whoever sends rows of its data must say so; those that do are listed here for reviewers to think about."""
    ready = {name: algorithms[name]() for name in algorithms}
    assert sorted(name for name, method in ready.items() if disclosed(method.exchanges())) == [
        "cp-ntk-fl", "datashare", "kernel-fedavg", "kernel-fedprox", "ntk-fl",
    ]  # fmt: skip


def test_few_samples_and_small_federations_are_never_answered(make_node):
    node, proposal = make_node("a", ALL + "minimum_samples = 33\n"), proposed()
    node.keep(proposal)
    node.decide(proposal.hash, "approved")
    assert "fewer samples than the 33" in str(invited(node, proposal)["reason"])
    (node.path / "policy.toml").write_text(ALL + "minimum_nodes = 3\n")
    assert unpack(answer(node, asked(node, proposal, population=3)))[0]["kind"] == "reply"
    assert "at least 3 nodes" in unpack(answer(node, asked(node, proposal, population=2)))[0]["reason"]


def test_another_version_is_refused_in_a_sentence(make_node, monkeypatch):
    node, proposal = make_node("a", ALL), proposed()
    old = replace(proposal, parley="0.0.9")
    reply = unpack(answer(node, invitation("a", "r", old)))[0]
    assert reply["reason"] == f"has Parley {__version__}, but the server has 0.0.9; install the same version on both."
    monkeypatch.setattr(consent, "__version__", "9.9")
    assert "has Parley 9.9" in unpack(answer(node, invitation("a", "r", proposal)))[0]["reason"]


def test_code_is_never_taken_from_the_server(make_node, tmp_path: Path):
    """A study may name modules; they must lie at the node with the very content that the study's hash covers."""
    module = tmp_path / "mine.py"
    module.write_text("from parley.algorithms.local_update import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    proposal = proposed(algorithm={"name": f"{module}:Mine", "lr": 0.1})
    assert proposal.algorithm == "mine.py:Mine"
    assert str(tmp_path) not in proposal.bytes().decode()
    node = make_node("a", ALL)
    said = invited(node, proposal)
    assert said["kind"] == "pending"
    assert "no code that is not Parley's" in str(said["reason"])
    with pytest.raises(InputError, match="hands out what cannot be told"):
        check_decidable(node, proposal, disclose=False)
    (node.modules / "mine.py").write_text("raise SystemExit('another one')")
    with pytest.raises(InputError, match="hands out what cannot be told"):
        check_decidable(node, proposal, disclose=False)
    (node.modules / "mine.py").write_text(module.read_text())
    check_decidable(node, proposal, disclose=False)
    node.decide(proposal.hash, "approved")
    frame = asked(node, proposal)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    (node.modules / "mine.py").write_text(module.read_text() + "# changed\n")
    assert "hands out what cannot be told" in unpack(answer(node, frame))[0]["reason"]


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/x.py", "a b.py", "x.txt", ".py"])
def test_names_of_modules_cannot_lead_out_of_their_folder(make_node, name: str):
    text = json.dumps({"parley": __version__, "study": {"rounds": 1}, "modules": {name: "0"}}).encode()
    node = make_node("a", ALL)
    reply = unpack(
        answer(node, pack({"kind": "invitation", "parley": __version__, "recipient": "a", "run": "r"}, text))
    )
    assert "names modules in a way that cannot be" in reply[0]["reason"]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff" * 100,
        pack({}),
        pack({"kind": "invitation", "parley": __version__, "recipient": "a", "run": "r"}, b"{}"),
        pack({"kind": "invitation", "parley": __version__, "recipient": "a", "run": "r"}, b"[" * 10_000),
        pack({"kind": "invitation", "parley": __version__, "recipient": "a", "run": "r"}, b"x" * 300_000),
        pack({"kind": "invitation", "parley": __version__, "recipient": "b", "run": "r"}, b"{}"),
        pack({"kind": "work", "parley": __version__, "recipient": "a", "run": "r", "study": "../x"}, b"{}", b""),
        pack({"kind": "work", "parley": __version__, "recipient": "a", "run": "r", "study": "0" * 64}, b"{}", b""),
        pack({"kind": "work", "parley": __version__, "recipient": "a", "run": ""}, b"{}", b""),
        pack({"kind": "shell", "parley": __version__, "recipient": "a", "run": "r"}),
    ],
)
def test_garbage_is_refused_and_logged(make_node, frame: bytes):
    node = make_node("a", ALL)
    assert unpack(answer(node, frame))[0]["kind"] == "failure"
    (line,) = node.logged()
    assert line["bytes_in"] == len(frame)
    assert not list((node.path / "runs").iterdir())


def test_a_message_asked_twice_is_answered_once_and_memory_is_the_nodes(make_node):
    node, proposal = make_node("a", ALL), proposed("scaffold")
    frame = asked(node, proposal)
    first = answer(node, frame)
    assert answer(node, frame) == first
    assert unpack(first)[0]["version"] == "1-0-7"
    assert (node.run("r") / "memory-1-0-7").exists()
    assert [line["bytes_out"] for line in node.logged()][-2:] == [len(first)] * 2


def test_noise_of_a_round_done_again_is_another(make_node):
    local = {"epsilon": 50.0, "delta": 1e-3, "noise": "local"}
    node, proposal = make_node("a", ALL), proposed(privacy=local, evaluate={"clients": "none"})
    replies = []
    for incarnation in (1, 2):
        head, parts = unpack(answer(node, asked(node, proposal, incarnation=incarnation)))
        assert head["kind"] == "reply", head
        replies.append(decode(parts[0], Message))
    assert all(not torch.equal(value, replies[1].tensors[name]) for name, value in replies[0].tensors.items())


def test_the_log_seals_every_line(make_node):
    node, proposal = make_node("a", ALL), proposed()
    invited(node, proposal)
    node.decide(proposal.hash, "rejected")
    invited(node, proposal)
    assert [line["event"] for line in node.logged()] == ["message", "owner", "message"]
    path = node.path / "audit.jsonl"
    whole = path.read_text()
    for changed in (whole.replace("rejected", "approved", 1), "".join(whole.splitlines(True)[1:]),
                    "".join(whole.splitlines(True)[::2])):  # fmt: skip
        path.write_text(changed)
        with pytest.raises(InputError, match="was changed"):
            list(node.logged())


def test_a_node_that_cannot_write_its_log_answers_nothing(make_node):
    """A full disk: no file may grow any more."""
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    size = (node.path / "audit.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        reply, later = unpack(answer(node, frame))[0], invited(node, proposal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (reply["kind"], later["kind"]) == ("failure", "pending")  # an invitation is made again
    for said in (reply, later):
        assert str(said["reason"]).startswith("cannot answer: the log of this node cannot be written (audit.jsonl): ")
    assert (node.path / "audit.jsonl").stat().st_size == size
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    assert len(list(node.logged())) == 2


def test_where_files_lie_and_code_failed_stays_at_the_node(make_node, monkeypatch, capsys):
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    told = failure(Failure("a", f"raised OSError: {node.path}/runs/x is gone.", trace="Traceback: of the owner's"))
    monkeypatch.setattr("parley.deploy.answering.handle", lambda *_: told)
    reply = answer(node, frame)
    assert unpack(reply)[0]["reason"] == "raised OSError: runs/x is gone."
    assert b"Traceback" not in reply
    assert "of the owner's" in capsys.readouterr().err


def test_a_server_cannot_fill_the_disk_with_proposals(make_node, monkeypatch):
    node = make_node("a")
    monkeypatch.setattr("parley.deploy.node_folder.MOST_PENDING", 2)
    kinds = [invited(node, proposed(seed=seed))["kind"] for seed in range(3)]
    assert kinds == ["pending", "pending", "failure"]
