"""A server that lies: names of files and hubs in a proposal run nothing, and what goes wrong at a node stays there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parley import __version__
from parley.cli.main import main
from parley.core.errors import InputError, WireError
from parley.core.plugins import digest_of
from parley.deploy.answering import answer, invitation
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.runtimes.frame import pack, unpack

from .conftest import ALL, SAME, proposed
from .test_consent import asked, why

Put = Callable[[dict[str, Any], str], None]


def put(*path: str, wrap: Callable[[str], Any] = str) -> Put:
    """Puts a name at a place of a study."""

    def do(study: dict[str, Any], name: str) -> None:
        for key in path[:-1]:
            study = study.setdefault(key, {})
        study[path[-1]] = wrap(name)

    return do


FIELDS: dict[str, Put] = {
    "algorithm": put("algorithm", "name"),
    "server": put("algorithm", "server", wrap=lambda name: {"name": name}),
    "schedule": put("algorithm", "schedule", wrap=lambda name: {"name": name}),
    "nested": put("algorithm", wrap=lambda name: {"name": "ema", "of": {"name": name}}),
    "kernel": put("algorithm", wrap=lambda name: {"name": "kernel-ridge", "kernel": {"name": name}}),
    "model": put("model", "name"),
    "weights": put("model", wrap=lambda name: {"name": "hf-causal", "weights": name}),
    "loss": put("loss"),
    "channels": put("channels", "up", wrap=lambda name: [name]),
    "channels with a value": put("channels", "up", wrap=lambda name: [f' {name} ("a:b")']),
    "metrics": put("evaluate", "metrics", wrap=lambda name: [name]),
    "listeners": put("listeners", wrap=lambda name: [name]),
    "plugins": put("plugins", wrap=lambda name: [name.rpartition(":")[0]]),
    "partition": put("data", wrap=lambda name: {"name": "iris", "partition": {"name": name}}),
    "init_from": put("init_from", wrap=lambda name: {"algorithm": {"name": name}}),
    "a file to begin from": put("init_from"),
    "a key": put("algorithm", "options", wrap=lambda name: {name: 1}),
}


def hostile(field: str, name: str, modules: dict[str, str] | None = None) -> bytes:
    study = json.loads(json.dumps(dict(proposed().study)))
    FIELDS[field](study, name)
    whole = json.dumps({"parley": __version__, "study": study, "modules": modules or {}}).encode()
    return pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, whole)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch) -> Path:
    """Where trap.py, in the working directory, leaves a trace if anybody runs it."""
    trace = tmp_path / "trace"
    (tmp_path / "trap.py").write_text(f"from pathlib import Path\n\nPath({str(trace)!r}).touch()\nThing = print\n")
    monkeypatch.chdir(tmp_path)
    return trace


@pytest.mark.parametrize("field", FIELDS)
def test_no_file_of_the_nodes_disk_runs_by_its_name(make_node, tmp_path: Path, mark: Path, field: str):
    node = make_node("a", ALL)
    for place in ("trap.py", "./trap.py", str(tmp_path / "trap.py"), f"~/../{tmp_path}/trap.py"):
        for modules in ({}, {"other.py": "0"}):
            reply = unpack(answer(node, hostile(field, f"{place}:Thing", modules)))[0]
            assert reply["kind"] == "failure"
            assert why(node, reply)
            assert not mark.exists()
    assert node.studies() == []  # nothing for its owner to approve by mistake
    assert not list((node.path / "runs").iterdir())


@pytest.mark.parametrize("name", ["facebook/opt-125m", "gpt2", "/srv/weights", "~/weights", "..", "a\\b"])
def test_no_weights_of_a_hub_or_a_folder_are_named(make_node, name: str):
    node = make_node("a", ALL)
    assert "names a file or something on a hub" in why(node, unpack(answer(node, hostile("weights", name)))[0])
    with pytest.raises(InputError, match=r"model\.weights"):
        proposed(model={"name": "hf-causal", "weights": name})


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_map": {"AutoConfig": "x.Y"}},
        {"trust_remote_code": True},
        {"_attn_implementation": "eager"},
        {"_attn_implementation_internal": "eager"},
        {"attn_implementation": "evil-kernels"},
        {"text_config": {"attn_implementation": {"": "evil:kernel"}}},
        {"layers": [{"auto_map": {}}]},
    ],
)
def test_settings_that_load_code_are_refused_in_proposals(settings: dict[str, Any]):
    study = dict(proposed().study) | {"model": {"name": "hf-causal", "config": settings}}
    with pytest.raises(WireError, match="can load code from elsewhere"):
        Proposal.read(json.dumps({"parley": __version__, "study": study, "modules": {}}).encode())


def test_columns_and_titles_may_look_like_paths():
    ready = {"columns": ["mg/dl", "a.py:b"], "center": [0.0, 0.0], "scale": [1.0, 1.0]}
    proposal = proposed(preprocessing=ready, name="fedavg")
    assert Proposal.read(proposal.bytes()).study["preprocessing"]["columns"] == ["mg/dl", "a.py:b"]
    titled = json.loads(proposal.bytes()) | {"study": dict(proposal.study) | {"name": "north/south"}}
    assert Proposal.read(json.dumps(titled).encode()).title == "north/south"


def test_a_nested_name_means_the_module_that_was_approved(make_node, tmp_path: Path, mark: Path):
    """Not a file of the same name in the directory in which the node was started."""
    node = make_node("a", ALL)
    (node.modules / "trap.py").write_text(
        "from dataclasses import dataclass\n\nfrom parley.algorithms.averaging.local_update import FedAvg\n\n\n"
        "@dataclass(frozen=True)\nclass Thing(FedAvg):\n    pass\n"
    )
    modules = {"trap.py": digest_of(node.modules / "trap.py")}
    frame = hostile("nested", "trap.py:Thing", modules)
    proposal = Proposal.read(unpack(frame)[1][0])
    assert type(proposal.rebuilt(node.modules).algorithm.of).__name__ == "Thing"
    assert not mark.exists()


def test_rounds_of_another_method_are_not_for_nodes(tmp_path: Path):
    with pytest.raises(InputError, match=r"init_from\.algorithm is for simulations"):
        proposed(init_from={"algorithm": {"name": "fedavg"}})
    assert "init_from" not in proposed(init_from="last").study


def refused(node: NodeFolder, secrets: list[str]) -> dict[str, Any]:
    """Invites; nothing of these may leave, all of it is in the log under the id."""
    proposal = proposed()
    frame = pack({"kind": "invitation", **SAME, "recipient": "a", "run": "r"}, proposal.bytes())
    reply = answer(node, frame)
    text = reply.decode("latin-1")
    logged = why(node, unpack(reply)[0])
    for secret in secrets:
        assert secret not in text
        assert secret in logged
    return list(node.logged())[-1]


def test_cells_of_a_table_stay_at_the_node(make_node, tmp_path: Path):
    node = make_node("a", ALL)
    rows = "\n".join(f"{i},{i % 2}" for i in range(20))
    (tmp_path / "patients.csv").write_text(f'age,sick\n{rows}\n"Jane Doe, born 1950",1\n')
    node.point(data=str(tmp_path / "patients.csv"), target="sick")
    refused(node, ["Jane Doe, born 1950", "patients.csv"])


def test_paths_stay_at_the_node(make_node, tmp_path: Path):
    node = make_node("a", ALL)
    node.point(data=str(tmp_path / "ward-seven" / "patients.csv"), target="sick")
    refused(node, ["ward-seven", "patients.csv"])


@pytest.mark.parametrize("raised", ["ValueError", "SystemExit", "KeyError", "InputError"])
def test_exceptions_of_the_owners_function_stay_at_the_node(make_node, tmp_path: Path, raised: str):
    node = make_node("a", ALL)
    (tmp_path / "loading.py").write_text(
        "from parley.core.errors import InputError\n\n\ndef patients():\n"
        f"    raise {raised}('Jane Doe, born 1950\\nsecond line')\n"
    )
    node.point(data=f"{tmp_path / 'loading.py'}:patients")
    line = refused(node, ["Jane Doe, born 1950", "second line"])
    assert raised == "InputError" or "loading.py" in line["trace"]


def test_settings_that_cannot_be_read_stay_at_the_node(make_node):
    """As Flower calls it: whatever is wrong with the folder, what leaves is a frame that says nothing of it."""
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    from parley.deploy.carrier import bytes_of, record_of
    from parley.deploy.clientapp import client_app

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    node = make_node("a", ALL)
    (node.path / "node.toml").write_text("secret_name = [")
    app = client_app(str(node.path))
    for wrong in ("settings", "folder"):
        reply = bytes_of(app(Message(record_of(b"x"), 1, "query"), None).content)
        head = unpack(reply)[0]
        assert head["kind"] == "failure"
        assert str(node.path).encode() not in reply
        if wrong == "settings":
            assert "is not valid TOML" in why(node, head)
            shutil.rmtree(node.path)
        else:
            assert head["reason"] == "cannot answer: its log cannot be written."


def test_every_message_is_in_the_log_before_anything_is_done_with_it(make_node, monkeypatch):
    """A node that is killed while it computes has the question in its log."""
    node, proposal = make_node("a", ALL), proposed()
    frame = asked(node, proposal)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("parley.deploy.answering._answered", killed)
    with pytest.raises(KeyboardInterrupt):
        answer(node, frame)
    line = list(node.logged())[-1]
    assert (line["event"], line["what"]) == ("received", "call, round 1, exchange 0, asked client")
    assert (line["study"], line["bytes_in"]) == (proposal.hash, len(frame))


@pytest.mark.timeout(60)
def test_a_name_of_spaces_does_not_keep_the_node_busy(make_node):
    """An expression tried all ways to share them out: for a name of 100 KB, years."""
    node = make_node("a", ALL)
    study = dict(proposed().study) | {"channels": {"up": [f"a{' ' * 100_000}("]}}
    head, _ = unpack(answer(node, invitation("a", "r", Proposal(__version__, study, {}))))
    assert head["kind"] == "pending"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": None},
        {"rounds": "x"},
        {"rounds": 10**400},
        {"algorithm": "fedavg"},
        {"algorithm": {}},
        {"model": [3]},
        {"evaluate": [1]},
        {"channels": {"up": [1]}},
        {"channels": {"up": None}},
        {"name": {"a": 1}},
        {"name": "x" * 300_000},
    ],
)
def test_no_proposal_hides_the_others_from_the_owner(make_node, capfd, wrong: dict[str, Any]):
    """One without rounds ended `parley node pending`, whatever else waited."""
    node = make_node("a")
    assert unpack(answer(node, invitation("a", "r", proposed())))[0]["kind"] == "pending"
    bad = Proposal(__version__, dict(proposed().study) | wrong, {})
    for _ in range(2):
        assert unpack(answer(node, invitation("a", "q", bad)))[0]["kind"] == "failure"
    with pytest.raises(SystemExit) as ended:
        main(["node", "pending", "--node", str(node.path)])
    assert ended.value.code == 0
    assert proposed().hash[:12] in capfd.readouterr().out
