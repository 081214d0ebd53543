"""`parley deploy` and `parley node` without processes: decisions of owners, and mistakes as sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.submissions import submitted_study

TABLE = {"rounds": 2, "model": {"name": "linear"}, "algorithm": {"name": "fedavg", "lr": 0.1}}


def proposed(node: NodeFolder, **changes: object) -> Proposal:
    """A study that waits for the owner."""
    proposal = Proposal.of(submitted_study({"table": TABLE | changes, "base": "."}))
    node.keep(proposal)
    return proposal


@pytest.fixture
def node(parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFolder:
    monkeypatch.chdir(tmp_path)
    assert parley("node", "init", "north", "--node", "north")[0] == 0
    return NodeFolder.open("north")


def test_an_owner_looks_approves_and_rejects(parley, node: NodeFolder):
    proposal = proposed(node)
    code, out, _ = parley("node", "pending", "--node", "north")
    assert (code, "waits for you" in out) == (0, True)
    code, out, _ = parley("node", "show", proposal.hash[:8], "--node", "north")
    assert proposal.hash in out
    assert "algorithm.lr" in out
    assert parley("node", "approve", proposal.hash[:8], "--node", "north", "--note", "board")[1] == (
        f"approved {proposal.hash[:12]}\n"
    )
    assert "approved by its owner" in parley("node", "pending", "--node", "north")[1]
    assert parley("node", "reject", proposal.hash[:8], "--node", "north")[0] == 0
    assert "rejected" in parley("node", "pending", "--node", "north")[1]
    code, out, _ = parley("node", "log", "--node", "north")
    assert "board" in out
    (node.path / "audit.jsonl").write_text((node.path / "audit.jsonl").read_text().replace("board", "bored"))
    code, _, err = parley("node", "log", "--node", "north")
    assert (code, "it was changed" in err) == (2, True)


def test_samples_are_handed_out_by_so_many_words_only(parley, node: NodeFolder):
    proposal = proposed(node, algorithm={"name": "datashare"})
    code, _, err = parley("node", "approve", proposal.hash, "--node", "north")
    assert (code, "--disclose" in err) == (2, True)
    assert parley("node", "approve", proposal.hash, "--node", "north", "--disclose")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("node", "approve", "zz", "--node", "north"), "no study begins with 'zz'"),
        (("node", "init", "north", "--node", "north"), "there is a node at north already"),
        (("node", "init", "../x", "--node", "other"), "is not a node's name"),
        (("node", "pending", "--node", "nowhere"), "there is no node at nowhere"),
        (("deploy", "client", "--node", "nowhere"), "there is no node at nowhere"),
        (("deploy", "client", "--node", "north"), "does not know its server"),
        (("deploy", "client", "--node", "north", "--server", "x"), "does not know the authority's certificate"),
        (("deploy", "server", "-f", "nowhere"), "there is no deployment at nowhere"),
        (("deploy", "run", "nothing.toml", "-f", "server"), "there is no study file nothing.toml"),
        (("deploy", "register", "north/node.key", "-f", "server"), "is a private key, which must stay at its node"),
        (("deploy", "register", "none.pub", "-f", "server"), "there is no key 'none.pub'"),
        (("deploy", "stop", "x", "-f", "server"), "no run 'x' was submitted"),
        (("deploy", "logs", "-f", "server"), "no run 'last' was submitted"),
        (("deploy", "revoke", "south", "-f", "server"), "no node 'south' is registered"),
        (("deploy", "init", "server"), "there is a deployment at server already"),
    ],
)
def test_mistakes_are_one_sentence(parley, node: NodeFolder, words: tuple[str, ...], said: str):
    assert parley("deploy", "init", "server", "--host", "localhost")[0] == 0
    code, _, err = parley(*words)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_submitted_study_waits_for_the_server(parley, node: NodeFolder, tmp_path: Path):
    parley("deploy", "init", "server", "--host", "localhost")
    (tmp_path / "study.toml").write_text('rounds = 2\n[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\n')
    code, out, _ = parley("deploy", "run", "study.toml", "-f", "server", "--detach")
    assert (code, "submitted" in out) == (0, True)
    code, out, _ = parley("deploy", "run", "study.toml", "-f", "server", "--detach")
    assert (code, "queued" in out) == (0, True)
    assert "the server does not run" in parley("deploy", "status", "-f", "server")[1]
    assert parley("deploy", "stop", "last", "-f", "server")[0] == 0
