"""A key server and a shuffler as nodes of their own: with their own keys and folders, and without anybody's data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from parley.cli.node import init
from parley.core.errors import InputError
from parley.core.message import Message
from parley.core.wire import decode, encode
from parley.deploy.answering import answer, work
from parley.deploy.check import check_node
from parley.deploy.node_data import info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.serverapp import carry_out
from parley.deploy.submissions import submitted_study
from parley.runtimes.frame import unpack
from parley.runtimes.node import Envelope, call_frame
from parley.store.checkpoints import Checkpoints
from parley.store.runs import RunStore

from .conftest import ALL, table
from .test_runs import Place, identity  # noqa: F401 (a fixture)
from .test_runs import place as hospitals  # noqa: F401 (a fixture)

PARTIES = {"keys": "key server", "mix": "shuffler"}


def study(rounds: int = 2, **settings: object) -> dict[str, object]:
    named = {"name": "cp-ntk-fl", "projection": 0, "density": 0.05, "share": 1.0} | settings
    return table("cp-ntk-fl", rounds, algorithm=named)


@pytest.fixture
def place(hospitals: Place, tmp_path: Path) -> Place:  # noqa: F811
    """Three hospitals, and the parties."""
    for name, party in PARTIES.items():
        hospitals.add_party(party, NodeFolder.create(tmp_path / name, name, party=party))
    return hospitals


def approve(place: Place, written: dict[str, object]) -> None:
    proposal = Proposal.of(submitted_study({"table": written, "base": "."}), place.folder.nodes())
    for node in (*place.nodes.values(), *place.parties.values()):
        node.keep(proposal)
        node.decide(proposal.hash, "approved", disclose=True)


def model_of(place: Place, run: str) -> dict[str, torch.Tensor]:
    with RunStore(place.folder.store) as store:
        found = store.checkpoint(run)
        assert found is not None
        return Checkpoints(store.folder(run)).load(found[1])["last"]["model"]


def test_the_parties_answer_for_themselves(place: Place):
    written = study()
    approve(place, written)
    seen: dict[int, list[bytes]] = {}
    place.grid.tamper = lambda number, data: seen.setdefault(number, []).append(data) or data
    one = place.run(written)
    assert one.status == "finished", place.said(one)
    assert "keys enrolled as the key server" in place.said(one)
    expected = place.inline(written).state["model"]  # the shuffler's order is another, and nothing else
    for name, value in model_of(place, str(one.run)).items():
        assert torch.allclose(value, expected[name], atol=1e-4)
    asked = {
        name: {line.get("asked") for line in node.logged() if "asked" in line} for name, node in place.parties.items()
    }
    assert asked == {"key server": {"deal"}, "shuffler": {"begin", "shuffle"}}
    for node in place.parties.values():
        (folder,) = (node.path / "runs").iterdir()
        assert not (folder / "data.safetensors").exists()
    clients = [n for n, node in place.grid.nodes.items() if node.settings.party is None]
    sent = [decode(parts[0]) for n in clients for head, parts in map(unpack, seen[n]) if head["kind"] == "reply"]
    assert any("box" in message.tensors for message in sent)
    assert not any("samples" in message or "entries" in message for message in sent)  # rows leave clients sealed


def test_a_restarted_server_finds_the_same_keys(place: Place):
    """Lasting keys and the projection are the run's; a second start of it is no stranger to anybody."""
    written = study(3, projection=20)
    approve(place, written)
    calls = [0]

    def dies(number: int, data: bytes) -> bytes:
        calls[0] += 1
        if calls[0] == 30:
            raise ConnectionError("Flower is gone")
        return data

    place.grid.tamper = dies
    one = place.run(written)
    assert one.status == "queued", place.said(one)
    place.submissions.update(one.id, attempts=2)
    carry_out(place.folder, one.id, place.grid)
    done = place.submissions[one.id]
    assert done.status == "finished", place.said(done)
    assert "refused" not in place.said(done)
    assert "went on without" not in place.said(done)


def test_a_study_without_its_parties_says_who_is_missing(hospitals: Place, tmp_path: Path):  # noqa: F811
    place = hospitals
    place.add_party("shuffler", NodeFolder.create(tmp_path / "mix", "mix", party="shuffler"))
    written = study()
    approve(place, written)
    one = place.run(written)
    assert one.status == "failed"
    assert "no node enrolled as the key server, whom this study needs" in one.reason


def test_two_nodes_cannot_be_one_party(place: Place, tmp_path: Path):
    place.add_party("shuffler 2", NodeFolder.create(tmp_path / "mix2", "mix2", party="shuffler"))
    written = study()
    approve(place, written)
    one = place.run(written)
    assert one.status == "failed"
    assert "mix and mix2 both enrolled as the shuffler" in one.reason


def test_a_party_has_no_part_in_other_studies(place: Place):
    for node in place.parties.values():
        (node.path / "policy.toml").write_text(ALL)
    one = place.run(table("fedavg", 1))
    assert one.status == "finished", place.said(one)
    assert "is the party 'shuffler', which this study has no use for" in place.said(one)


def test_a_party_is_asked_as_a_party_and_a_client_as_a_client(place: Place):
    """The server can make neither a hospital play the key server nor the shuffler a hospital."""
    written = study()
    approve(place, written)
    assert place.run(written).status == "finished"
    proposal = Proposal.of(submitted_study({"table": written, "base": "."}), place.folder.nodes())
    for node, asked, party, sentence in (
        (place.nodes["a"], "deal", True, "it has data and is no party"),
        (place.parties["shuffler"], "client", False, "it is the party 'shuffler', no client"),
    ):
        letter = Envelope("x", 9, 1, 0, asked, None, 0, "0" * 32, node.settings.name, party)
        run = place.submissions["last"].run_name
        common = json.dumps(info_to_json(load_data(place.nodes["a"].settings, place.nodes["a"].path).info)).encode()
        frame = work(node.settings.name, run, proposal.hash, 3, common, call_frame(letter, encode(Message())))
        assert unpack(answer(node, frame))[0]["kind"] == "failure"
        assert sentence in list(node.logged())[-1]["why"]


def test_the_preflight_of_a_party(place: Place):
    found = {one.what: one for one in check_node(place.parties["shuffler"])}
    assert found["data"].fine
    assert found["data"].text == "none: this node is the party 'shuffler'"


def test_party_and_data_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="a party has no data"):
        init("mix", Path("mix"), data="x.csv", party="shuffler")
    init("mix", Path("mix"), party="shuffler")
    assert NodeFolder.open(Path("mix")).settings.party == "shuffler"
