"""A node answers what its owner approved, or the policy in advance, and writes down what it answered."""

from __future__ import annotations

import json
import math
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest

import parley.deploy.consent as consent
from parley import __version__
from parley.algorithms import algorithms
from parley.algorithms.exchange import disclosed
from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.answering import answer, invitation, work
from parley.deploy.consent import check_decidable, discloses, policy_obstacle, verdict
from parley.deploy.enrolment import federation_of
from parley.deploy.keys import public_text
from parley.deploy.node_data import info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.settings import PolicySettings
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import Envelope, call_frame, failure
from parley.study.train import make_task

from .conftest import ALL, SAME, key_of, proposed


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
        "x",
        more.get("incarnation", 7),
        number,
        0,
        more.get("asked", "client"),
        None,
        number - 1,
        key_of(study.seed, number, name),
        name,
        False,
    )
    common = json.dumps(info_to_json(federation.info)).encode()
    frame = call_frame(envelope, encode(message))
    return work(name, "r", proposal.hash, more.get("population", 3), common, frame)


def test_without_a_word_of_its_owner_nothing_is_answered(make_node):
    node, proposal = make_node("a"), proposed()
    said = invited(node, proposal)
    assert said["kind"] == "pending"
    assert "has not approved" in str(said["reason"])
    assert node.studies() == [proposal.hash]
    assert not list((node.path / "runs").iterdir())  # not even the data were looked at
    reply = unpack(answer(node, work("a", "r", proposal.hash, 3, b"{}", pack({"kind": "call", "round": 1}, b""))))[0]
    assert reply["kind"] == "failure"
    assert "has not approved" in reply["reason"]


def test_what_was_approved_is_answered_and_nothing_else(make_node):
    node, proposal = make_node("a"), proposed(rounds=3)
    invited(node, proposal)
    node.decide(proposal.hash, "approved")
    said = invited(node, proposal)
    assert said["kind"] == "enrolled"
    assert said["data"]["samples"] == 40
    assert said["data"]["test_samples"] == 10
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
        invited(node, proposal, clients)
        frame = work("a", clients, proposal.hash, 3, common(node), pack({"kind": "evaluation", "round": 1}, b""))
        reply = unpack(answer(node, frame))[0]
        assert said in (reply["reason"] if clients == "none" else why(node, reply))


def why(node: NodeFolder, reply: dict[str, object]) -> str:
    """What the owner's log has under the id that the server was told."""
    told = re.fullmatch(r"refused; its owner finds why in the node's log under ([0-9a-f]{8})\.", str(reply["reason"]))
    assert told, reply
    (line,) = (line for line in node.logged() if line.get("id") == told[1])
    return str(line["why"])


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
        ({"required_channels": ("clip(1.0)",)}, {}, "asks for the channel 'clip'"),
        ({"epsilon": 2.0}, {}, "asks for [privacy] with an epsilon of at most 2"),
        ({"epsilon": 2.0}, {"privacy": {"epsilon": 3.0}}, "epsilon 3 where it allows 2"),
        ({"epsilon": 4.0, "local_noise": True}, {"privacy": {"epsilon": 3.0}}, "noise that is added here"),
        ({"evaluation": False}, {}, "evaluation on held-out samples"),
        ({}, {"evaluate": {"pooled": True}}, "counts of held-out samples"),
        ({}, {"name": "datashare"}, "discloses samples' inputs and labels"),
        ({}, {"name": "ema", "algorithm": {"name": "ema", "of": {"name": "datashare"}}}, "discloses samples' inputs"),
    ],
)
def test_a_policy_names_what_it_does_not_allow(make_node, policy, study, said):
    whole = {"algorithms": ("*",), "models": ("*",), "channels": (), "rounds": 50} | policy
    settings = PolicySettings(**whole) if said != "approves nothing" else PolicySettings()
    node = make_node("a")
    assert said in str(policy_obstacle(settings, node, proposed(**study)))


def test_a_policy_that_allows_all_of_a_study_approves_it(make_node):
    allowed = PolicySettings(
        ("fedavg",), ("mlp",), ("clip",), ("clip(2.0)",), 3, epsilon=5.0, local_noise=True, evaluation=False
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
    assert "but not that it discloses" in verdict(node, proposal).why
    check_decidable(node, proposal, disclose=True)
    node.decide(proposal.hash, "approved", disclose=True)
    assert verdict(node, proposal).yes


def test_every_method_says_whether_it_hands_out_samples():
    """Whoever sends rows of its data must say so; those that do are listed here for reviewers to think about."""
    ready = {name: algorithms[name]() for name in algorithms}
    assert sorted(name for name, method in ready.items() if disclosed(method.exchanges())) == [
        "cp-ntk-fl",
        "datashare",
        "histogram-boosting",
        "kernel-fedavg",
        "kernel-fedprox",
        "ntk-fl",
    ]


def test_few_samples_and_small_federations_are_never_answered(make_node):
    node, proposal = make_node("a", ALL + "minimum_samples = 41\n"), proposed()
    node.keep(proposal)
    node.decide(proposal.hash, "approved")
    assert "fewer samples than the 41" in why(node, invited(node, proposal))
    names = ("a", "b", "c")
    roster = {name: public_text((node if name == "a" else make_node(name)).path / "node.pub") for name in names}
    proposal = replace(proposal, roster=roster)
    (node.path / "policy.toml").write_text(ALL + "minimum_nodes = 3\n")
    assert unpack(answer(node, asked(node, proposal, population=3)))[0]["kind"] == "reply"
    assert "at least 3 nodes" in why(node, unpack(answer(node, asked(node, proposal, population=2)))[0])


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
    module.write_text(
        "from parley.algorithms.averaging.local_update import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    )
    proposal = proposed(algorithm={"name": f"{module}:Mine", "lr": 0.1})
    assert proposal.algorithm == "mine.py:Mine"
    assert str(tmp_path) not in proposal.bytes().decode()
    node = make_node("a", ALL)
    said = invited(node, proposal)
    assert said["kind"] == "pending"
    assert "no code that is not Parley's" in str(said["reason"])
    with pytest.raises(InputError, match="discloses what is unknown"):
        check_decidable(node, proposal, disclose=False)
    (node.modules / "mine.py").write_text("raise SystemExit('another one')")
    with pytest.raises(InputError, match="discloses what is unknown"):
        check_decidable(node, proposal, disclose=False)
    (node.modules / "mine.py").write_text(module.read_text())
    check_decidable(node, proposal, disclose=False)
    node.decide(proposal.hash, "approved")
    frame = asked(node, proposal)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    (node.modules / "mine.py").write_text(module.read_text() + "# changed\n")
    assert "discloses what is unknown" in unpack(answer(node, frame))[0]["reason"]


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/x.py", "a b.py", "x.txt", ".py"])
def test_names_of_modules_cannot_lead_out_of_their_folder(make_node, name: str):
    text = json.dumps({"parley": __version__, "study": {"rounds": 1}, "modules": {name: "0"}}).encode()
    node = make_node("a", ALL)
    reply = unpack(answer(node, pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, text)))
    assert "names modules in a way that cannot be" in why(node, reply[0])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff" * 100,
        pack({}),
        pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, b"{}"),
        pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, b"[" * 10_000),
        pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, b"x" * 300_000),
        pack({"kind": "invitation", **SAME, "recipient": "b", "run": "r"}, b"{}"),
        pack({"kind": "work", **SAME, "recipient": "a", "run": "r", "study": "../x"}, b"{}", b""),
        pack({"kind": "work", **SAME, "recipient": "a", "run": "r", "study": "0" * 64}, b"{}", b""),
        pack({"kind": "work", **SAME, "recipient": "a", "run": ""}, b"{}", b""),
        pack({"kind": "shell", **SAME, "recipient": "a", "run": "r"}),
    ],
)
def test_garbage_is_refused_and_logged(make_node, frame: bytes):
    node = make_node("a", ALL)
    assert unpack(answer(node, frame))[0]["kind"] == "failure"
    before, line = node.logged()
    assert (before["event"], line["event"]) == ("received", "message")
    assert before["bytes_in"] == line["bytes_in"] == len(frame)
    assert not list((node.path / "runs").iterdir())


def test_a_message_asked_twice_is_answered_once_and_memory_is_the_nodes(make_node):
    node, proposal = make_node("a", ALL), proposed("scaffold")
    frame = asked(node, proposal)
    first = answer(node, frame)
    assert answer(node, frame) == first
    assert unpack(first)[0]["version"] == "1-0"
    assert (node.run("r") / "memory-1-0").exists()
    assert [line["bytes_out"] for line in node.logged() if "bytes_out" in line][-2:] == [len(first)] * 2


def test_noise_is_drawn_once_for_a_round_however_often_the_server_was_started(make_node):
    local = {"epsilon": 50.0, "delta": 1e-3, "noise": "local"}
    node, proposal = make_node("a", ALL), proposed(privacy=local, evaluate={"clients": "none"})
    replies = [answer(node, asked(node, proposal, incarnation=start)) for start in (1, 2, 9)]
    assert unpack(replies[0])[0]["kind"] == "reply"
    assert replies[1:] == replies[:1] * 2
    refused = unpack(answer(node, asked(node, proposal, 2, incarnation=1)))[0]
    assert refused["kind"] == "reply"  # nothing new was asked since by a later start
    assert unpack(answer(node, asked(node, proposal, 3, incarnation=9)))[0]["kind"] == "reply"
    late = unpack(answer(node, asked(node, proposal, 3, incarnation=8)))[0]
    assert "only its newest start is answered" in late["reason"]


def test_the_log_seals_every_line(make_node):
    node, proposal = make_node("a", ALL), proposed()
    invited(node, proposal)
    node.decide(proposal.hash, "rejected")
    invited(node, proposal)
    assert [line["event"] for line in node.logged()] == ["received", "message", "owner", "received", "message"]
    path = node.path / "audit.jsonl"
    whole = path.read_text()
    for changed in (
        whole.replace("rejected", "approved", 1),
        "".join(whole.splitlines(True)[1:]),
        "".join(whole.splitlines(True)[::2]),
    ):
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
        assert said["reason"] == "cannot answer: its log cannot be written."
    assert (node.path / "audit.jsonl").stat().st_size == size
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    assert len(list(node.logged())) == 4


def test_where_files_lie_and_code_failed_stays_at_the_node(make_node, monkeypatch):
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    told = failure(Failure("a", f"raised OSError: {node.path}/runs/x is gone.", trace="Traceback: of the owner's"))
    monkeypatch.setattr("parley.deploy.answering.handle", lambda *_: told)
    reply = answer(node, frame)
    assert why(node, unpack(reply)[0]) == f"raised OSError: {node.path}/runs/x is gone."
    assert b"gone" not in reply
    assert b"Traceback" not in reply
    assert list(node.logged())[-1]["trace"] == "Traceback: of the owner's"


def test_a_server_cannot_fill_the_disk_with_proposals(make_node, monkeypatch):
    node = make_node("a")
    monkeypatch.setattr("parley.deploy.node_folder.MOST_PENDING", 2)
    kinds = [invited(node, proposed(seed=seed))["kind"] for seed in range(3)]
    assert kinds == ["pending", "pending", "failure"]


def test_studies_that_the_policy_approves_do_not_wait_for_the_owner(make_node, monkeypatch):
    node = make_node("a", ALL)
    monkeypatch.setattr("parley.deploy.node_folder.MOST_PENDING", 2)
    assert [invited(node, proposed(seed=seed), f"r{seed}")["kind"] for seed in range(4)] == ["enrolled"] * 4


# --- one run for an approval ---


def test_an_approval_is_for_one_run_whoever_gave_it(make_node):
    for name, policy in (("a", ALL), ("b", "")):
        node, proposal = make_node(name, policy), proposed()
        if not policy:
            node.keep(proposal)
            node.decide(proposal.hash, "approved")
        assert invited(node, proposal, "first")["kind"] == "enrolled"
        for _ in range(2):
            said = invited(node, proposal, "second")
            assert said["kind"] == "pending"
            assert "another run needs a new approval of its owner" in str(said["reason"])
        assert invited(node, proposal, "first")["kind"] == "enrolled"
        node.decide(proposal.hash, "approved")
        node.decide(proposal.hash, "approved")  # said twice, it is still for one run
        assert invited(node, proposal, "second")["kind"] == "enrolled"
        assert invited(node, proposal, "third")["kind"] == "pending"
        assert len(list((node.path / "runs").iterdir())) == 2


def test_a_run_that_goes_on_keeps_its_name_and_what_it_has_answered(make_node):
    node, six, more = make_node("a", ALL), proposed(rounds=3), proposed(rounds=5)
    assert unpack(answer(node, asked(node, six, 3)))[0]["kind"] == "reply"
    assert invited(node, more)["kind"] == "enrolled"
    early = unpack(answer(node, asked(node, more, 2)))[0]
    assert "answers nothing new in round 2" in why(node, early)
    assert unpack(answer(node, asked(node, more, 4)))[0]["kind"] == "reply"
    assert "knows this run by another study" in str(invited(node, proposed("scaffold"))["reason"])


def test_a_private_run_goes_on_only_with_the_noise_that_it_had(make_node):
    for name, solved in (("a", {"epsilon": 50.0}), ("b", {"noise_multiplier": 2.0})):
        node = make_node(name, ALL)
        private = {"privacy": {"noise": "local", "delta": 1e-3} | solved, "evaluate": {"clients": "none"}}
        assert invited(node, proposed(rounds=2, **private))["kind"] == "enrolled"
        said = invited(node, proposed(rounds=3, **private))
        assert said["kind"] == ("pending" if name == "a" else "enrolled")
        assert name == "b" or "needs a noise_multiplier" in str(said["reason"])


def test_what_was_deleted_of_a_run_is_not_begun_again(make_node):
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    shutil.rmtree(node.run("r"))
    for reply in (invited(node, proposal), unpack(answer(node, frame))[0]):
        assert "keeps nothing of this run any more" in reply["reason"]
    assert not node.run("r").exists()


def test_a_policy_has_a_total_over_all_studies(make_node):
    node = make_node("a", ALL + "runs = 2\n")
    said = [invited(node, proposed(seed=seed), f"r{seed}") for seed in range(3)]
    assert [one["kind"] for one in said] == ["enrolled", "enrolled", "pending"]
    assert "approves 2 runs in advance in all" in said[2]["reason"]
    node.decide(proposed(seed=2).hash, "approved")
    assert invited(node, proposed(seed=2), "r2")["kind"] == "enrolled"
    node = make_node("b", ALL + "total_epsilon = 9.0\n")
    private = {"privacy": {"epsilon": 4.0, "delta": 1e-3, "noise": "local"}, "evaluate": {"clients": "none"}}
    said = [invited(node, proposed(seed=seed, **private), f"r{seed}") for seed in range(3)]
    assert [one["kind"] for one in said] == ["enrolled", "enrolled", "pending"]
    assert "an epsilon of 9 in all" in said[2]["reason"]


# --- values, not names ---


@pytest.mark.parametrize(
    ("policy", "study", "said"),
    [
        ({"epsilon": 2.0}, {"epsilon": 2.0, "noise": "local", "noise_multiplier": 1e-9}, "epsilon inf where"),
        ({"epsilon": 2.0}, {"epsilon": 2.0, "noise": "local", "noise_multiplier": 1.0}, "where it allows 2"),
        ({"epsilon": 2.0}, {"epsilon": 2.0, "noise_multiplier": 0.5}, "where it allows 2"),
        ({"epsilon": 2.0}, {"epsilon": 2.0, "noise": "local", "delta": 0.32}, "delta 0.32 where it allows 0.001"),
        ({"local_noise": True}, {"epsilon": 2.0, "noise": "local", "delta": 0.32}, "delta 0.32 where it allows 0.001"),
        ({"epsilon": 2.0, "delta": 0.5}, {"epsilon": 2.0, "noise": "local", "delta": 0.32}, None),
        ({"epsilon": 2.0, "local_noise": True}, {"epsilon": 2.0, "noise": "local"}, None),
        ({"epsilon": 2.0}, {"noise": "local", "noise_multiplier": 30.0}, None),
        ({"epsilon": 2.0}, {"epsilon": 2.0}, None),
    ],
)
def test_epsilon_is_computed_here_and_not_believed(make_node, policy, study, said):
    settings = PolicySettings(("*",), ("*",), rounds=50, **policy)
    found = policy_obstacle(settings, make_node("a"), proposed(privacy=study))
    assert found is None if said is None else said in str(found)


def test_epsilon_of_local_noise_is_that_of_the_gaussian_mechanism(make_node):
    """delta(epsilon) of mu-Gaussian privacy (Dong, Roth and Su, 2022, Corollary 2.13), mu = 2 sqrt(rounds) / z."""
    private = {"noise": "local", "noise_multiplier": 8.0, "delta": 1e-5}
    found = consent.epsilon(proposed(rounds=9, privacy=private).rebuilt(make_node("a").modules))
    mu, normal = 2 * 9**0.5 / 8.0, NormalDist()
    delta = normal.cdf(-found / mu + mu / 2) - math.exp(found) * normal.cdf(-found / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize(
    ("asks", "used", "said"),
    [
        ("clip(1.0)", "clip(1e30)", "less strict than clip(1.0)"),
        ("noise(0.5)", "noise(1e-30)", "less strict than noise(0.5)"),
        ("secure-sum(24, 8.0, 0.7, 3)", "secure-sum(24, 8.0, 0.51, 3)", "less strict"),
        ("secure-sum(24, 8.0, 0.7, 3)", "secure-sum(24, 8.0, 0.7, 2)", "less strict"),
        ("secure-sum", "secure-sum(24, 8.0, 0.51, 2)", "less strict"),
        ("clip", "clip(1.0)", "without a value, which any value meets"),
        ("clip(1.0)", "clip(0.5)", None),
        ("noise(0.5)", "noise(0.5)", None),
        ("secure-sum(24, 8.0, 0.7, 3)", "secure-sum(16, 4.0, 0.8, 4)", None),
        ("secure-sum", "secure-sum", None),
    ],
)
def test_a_required_channel_is_as_strict_as_the_policy_says(make_node, asks, used, said):
    settings = PolicySettings(("*",), ("*",), ("*",), (asks,), rounds=50)
    found = policy_obstacle(settings, make_node("a"), proposed(channels={"up": [used]}))
    assert found is None if said is None else said in str(found)
