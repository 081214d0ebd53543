"""Owners who take their time, servers that start again meanwhile, studies side by side, approvals that end."""

from __future__ import annotations

import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as inside
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from parley.cli.main import main
from parley.deploy.guard import until_answered
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder
from parley.deploy.serverapp import carry_out
from parley.deploy.submissions import QUEUED, RUNNING, Submissions
from parley.deploy.supervisor import Supervisor
from parley.runtimes.frame import unpack
from parley.store.locks import acquire, release

from .conftest import ALL, proposed, table
from .test_consent import answer, asked, invited
from .test_runs import Place, identity, place  # noqa: F401 (fixtures)


def test_a_study_waits_for_an_owner_long_after_the_others_have_answered(place: Place):  # noqa: F811
    """An invitation ended after 300 s, whoever had to decide."""
    toml = (place.folder.path / "deploy.toml").read_text()
    (place.folder.path / "deploy.toml").write_text(
        toml.replace("enrolment = 1.5", "enrolment = 0.1").replace("decision = 1.5", "decision = 60.0")
    )
    place.folder = ServerFolder.open(place.folder.path)
    node, study = place.nodes["b"], table(rounds=1)
    (node.path / "policy.toml").write_text("")
    hash = place.proposal(study).hash

    def decide() -> None:
        while hash not in node.studies():
            time.sleep(0.05)
        time.sleep(0.5)
        node.decide(hash, "approved")

    thread = threading.Thread(target=decide)
    thread.start()
    one = place.run(study)
    thread.join()
    assert one.status == "finished", place.said(one)
    assert set(one.enrolled) == set("abc")


def test_a_server_that_died_while_it_waited_invites_again(place: Place):  # noqa: F811
    """It went on without anybody, and failed."""
    one = place.submit(table(rounds=1))
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    assert place.submissions[one.id].status == "finished", place.said(one)


def test_a_run_that_was_started_twice_goes_on_once(place: Place):  # noqa: F811
    """On a slow machine a run that had not begun was started again, and both asked the nodes."""
    one = place.submit(table(rounds=1))
    lock = place.submissions.path / f"{one.id}.run.lock"
    assert acquire(lock)
    carry_out(place.folder, one.id, place.grid)
    assert place.submissions[one.id].status == QUEUED
    release(lock)
    carry_out(place.folder, one.id, place.grid)
    done = place.submissions[one.id]
    assert done.status == "finished"
    asked_ = place.grid.asked
    carry_out(place.folder, one.id, place.grid)
    assert (place.submissions[one.id], place.grid.asked) == (done, asked_)


def test_studies_go_on_side_by_side(server: ServerFolder, monkeypatch: pytest.MonkeyPatch):
    submissions = Submissions(server)
    for seed in range(6):
        written = {"table": table(seed=seed), "base": "."}
        submissions.submit(written, proposed(seed=seed), again=False, resume=False)
    supervisor = Supervisor(server, lambda line: None)
    supervisor.submissions = submissions
    monkeypatch.setattr(supervisor, "_look_after", lambda one: None)
    monkeypatch.setattr(supervisor, "_start", lambda one: submissions.update(one.id, status=RUNNING))
    for _ in range(8):
        supervisor._runs()
    assert [one.status for one in submissions.all()] == [RUNNING] * 4 + [QUEUED] * 2
    submissions.update(submissions.all()[0].id, status="finished")
    supervisor._runs()
    assert [one.status for one in submissions.all()][1:] == [RUNNING] * 4 + [QUEUED]


def aged(node: NodeFolder, name: str) -> None:
    """As if an approval, or the beginning of a run, were from long ago."""
    path = node.path / "studies" / name
    text = path.read_text()
    said = json.loads(text)
    when = (said if isinstance(said, dict) else said[0])["when"]
    path.write_text(text.replace(when, "2020-01-01T00:00:00+00:00"))


def test_an_approval_ends(make_node):
    node, proposal = make_node("a"), proposed()
    node.keep(proposal)
    node.decide(proposal.hash, "approved")
    aged(node, f"{proposal.hash}.decision")
    said = invited(node, proposal)
    assert said["kind"] == "pending"
    assert "90 days ago or more; its owner has to decide again" in str(said["reason"])
    node.decide(proposal.hash, "approved")
    assert invited(node, proposal)["kind"] == "enrolled"


def test_a_run_ends_with_its_approval_and_what_is_kept_of_it_is_removed(make_node, capsys: pytest.CaptureFixture[str]):
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)
    assert unpack(answer(node, frame))[0]["kind"] == "reply"
    kept = node.run("r")
    assert purge(node) == 0
    assert kept.exists()
    aged(node, f"{proposal.hash}.runs")
    assert "began this run 90 days ago or more" in unpack(answer(node, frame))[0]["reason"]
    assert purge(node, "--dry-run") == 0
    assert kept.exists()
    assert purge(node) == 0
    assert "1 runs" in capsys.readouterr().out
    assert not kept.exists()
    # What it has taken part in is known for ever: the run is not begun again.
    node.decide(proposal.hash, "approved")
    assert "keeps nothing of this run any more" in str(invited(node, proposal)["reason"])
    assert list((node.path / "rows").iterdir())


def test_studies_that_nobody_decided_about_are_removed_with_time(make_node):
    node = make_node("a")
    for seed in (1, 2):
        invited(node, proposed(seed=seed))
    old = node.path / "studies" / f"{proposed(seed=1).hash}.json"
    os.utime(old, (1e9, 1e9))
    assert purge(node) == 0
    assert node.studies() == [proposed(seed=2).hash]


def purge(node: NodeFolder, *more: str) -> int:
    try:
        main(["node", "purge", "--node", str(node.path), *more])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_node_does_not_fall_one_answer_behind():
    """A run that ends between the pull of a message and its confirmation leaves it with Flower's node, which answered
    it later and then, after every message, sent the answer to the one before."""
    state = InMemoryNodeState(ObjectStoreFactory().store())
    sent: list[str] = []

    def store(id: str, reply_to: str = "") -> None:
        about = SimpleNamespace(
            message_id=id, reply_to_message_id=reply_to, run_id=1, group_id="", message_type="query"
        )
        state.store_message(SimpleNamespace(metadata=about))

    def push(state: InMemoryNodeState) -> None:  # as Flower's, without the network
        while not (replies := state.get_messages_legacy(is_reply=True)):
            time.sleep(0.01)
        for one in replies:
            sent.append(one.metadata.message_id)
            state.delete_messages(message_ids=[one.metadata.message_id, one.metadata.reply_to_message_id])

    assert hasattr(inside, "_push_messages")
    store("left over")
    store("to what was left over", "left over")
    for number in range(3):
        store(f"q{number}")
        thread = threading.Timer(0.1, store, (f"a{number}", f"q{number}"))
        thread.start()
        until_answered(push)(state)
        assert sent[-1] == f"a{number}"
        thread.join()
    assert sent == ["to what was left over", "a0", "a1", "a2"]
    store("q"), store("a", "q")
    push(state)
    assert not state.msg_store
