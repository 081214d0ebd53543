"""What a node does with a message: check version, consent and limits, log it, and let `runtimes.node` answer.

Two kinds of messages arrive, both frames:

    invitation   the proposal of a study; the answer says what the node has, or that its owner has to decide
    work         a call or an evaluation of a study that was approved, and what the federation agreed on

Every answer is written to the log before it leaves; where the log cannot be written nothing is answered.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from parley import __version__
from parley.algorithms.base.exchange import parties
from parley.core.errors import InputError, ParleyError, WireError
from parley.core.failure import Failure
from parley.core.files import write_atomically
from parley.core.message import Payload
from parley.core.wire import decode
from parley.data import ClientData, DataInfo, Federation
from parley.data.checks import SampleForm
from parley.data.sources import Elsewhere, InMemory
from parley.deploy.consent import floor, verdict, version_problem
from parley.deploy.node_data import OwnData, described, fitted, info_from_json, info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.runtimes.execute import describe
from parley.runtimes.frame import pack, unpack
from parley.runtimes.node import Node, create, failure, handle
from parley.study.train import client_job

_INFO = "info.json"
_LONGEST = 500
"""Characters of a text of the server's that is logged."""


def answer(folder: NodeFolder, data: bytes) -> bytes:
    """The answer to a message; it is a frame, whatever the bytes were."""
    name, invited, facts = "node", False, {"bytes_in": len(data)}
    try:
        name = folder.settings.name
        head, parts = unpack(data)
        invited = head.get("kind") == "invitation"
        facts |= _facts(head)
        reply = _answered(folder, name, head, parts, facts)
    except (ParleyError, OSError) as error:
        reply = _unanswered(name, error, invited)
    reply, said = _discreet(folder, reply)
    try:
        folder.log("message", **facts, answered=said[:_LONGEST], bytes_out=len(reply))
    except InputError as error:
        return _discreet(folder, _unanswered(name, error, invited))[0]
    return reply


def _unanswered(name: str, error: ParleyError | OSError, invited: bool) -> bytes:
    """Why there is no answer. An invitation that fails for want of a disk is made again: its owner may make room."""
    if isinstance(error, WireError):
        return failure(Failure(name, f"refused what it was sent: {error}"))
    reason = f"cannot answer: {describe(error)}"
    if invited and (isinstance(error, OSError) or isinstance(error.__cause__, OSError)):
        return pack({"kind": "pending", "reason": reason})
    return failure(Failure(name, reason))


def _discreet(folder: NodeFolder, reply: bytes) -> tuple[bytes, str]:
    """A reply as it may leave, and what the log says of it: where the node's files lie, and where in whose code
    something failed, is nobody's business but its owner's, who finds it in supernode.log."""
    head, parts = unpack(reply)
    if "reason" not in head:
        return reply, str(head["kind"])
    if trace := head.pop("trace", ""):
        print(trace, file=sys.stderr)
    reason = str(head["reason"]).replace(f"{folder.path}/", "")
    return pack(head | {"reason": reason}, *parts), reason


def invitation(recipient: str, run: str, proposal: Proposal) -> bytes:
    """An invitation on its way to a node."""
    head = {"kind": "invitation", "parley": __version__, "recipient": recipient, "run": run}
    return pack(head, proposal.bytes())


def work(recipient: str, run: str, study: str, population: int, incarnation: int, common: bytes, frame: bytes) -> bytes:
    """A call or an evaluation on its way to a node; `common` is what the federation agreed on, as JSON."""
    head = {
        "kind": "work", "parley": __version__, "recipient": recipient, "run": run, "study": study,
        "population": population, "incarnation": incarnation,
    }  # fmt: skip
    return pack(head, common, frame)


def _facts(head: Mapping[str, Any]) -> dict[str, Any]:
    """What the log says about a message."""
    return {name: str(head[name])[:_LONGEST] for name in ("kind", "run", "study", "parley") if name in head}


def _answered(
    folder: NodeFolder, name: str, head: Mapping[str, Any], parts: list[bytes], facts: dict[str, Any]
) -> bytes:
    wrong = version_problem(str(head.get("parley")))
    if wrong is not None:
        return failure(Failure(name, wrong))
    if head.get("recipient") != name:
        raise WireError(f"the server calls this node '{str(head.get('recipient'))[:60]}', its owner '{name}'.")
    run = head.get("run")
    if not isinstance(run, str) or not 0 < len(run) <= 200:
        raise WireError("it names no run.")
    if head.get("kind") == "invitation" and len(parts) == 1:
        return _invited(folder, name, run, Proposal.read(parts[0]), facts)
    if head.get("kind") == "work" and len(parts) == 2:
        return _worked(folder, name, run, head, parts, facts)
    raise WireError("a node answers invitations and work.")


def _invited(folder: NodeFolder, name: str, run: str, proposal: Proposal, facts: dict[str, Any]) -> bytes:
    facts |= {"study": proposal.hash, "title": proposal.title[:100]}
    folder.keep(proposal)
    decided = verdict(folder, proposal)
    facts["verdict"] = decided.why
    if decided.pending:
        return pack({"kind": "pending", "reason": decided.why})
    if not decided.yes:
        return failure(Failure(name, decided.why))
    study = proposal.rebuilt(folder.modules)  # says now what would otherwise be found out in the first round
    if (party := folder.settings.party) is not None:
        if party not in parties(study.algorithm.exchanges()):
            return failure(Failure(name, f"is the party '{party}', which this study has no use for."))
        create(folder.run(run), party_id(party), secrets.token_bytes(16))
        return pack({"kind": "enrolled", "party": party})
    own = _own_data(folder, name, run)
    low = floor(folder.policy, len(own.train), None)
    if low is not None:
        return failure(Failure(name, low))
    return pack({"kind": "enrolled", "data": described(own)})


def _worked(
    folder: NodeFolder, name: str, run: str, head: Mapping[str, Any], parts: list[bytes], facts: dict[str, Any]
) -> bytes:
    proposal = folder.proposal(str(head.get("study")))
    population, incarnation = head.get("population"), head.get("incarnation")
    if type(population) is not int or type(incarnation) is not int or population < 1:
        raise WireError("it says neither how large the federation is nor which start of the run this is.")
    decided = verdict(folder, proposal)
    facts["verdict"] = decided.why
    if not decided.yes:
        return failure(Failure(name, decided.why))
    inner = unpack(parts[1])[0]
    facts |= {place: str(inner[place])[:60] for place in ("round", "exchange", "asked") if place in inner}
    if inner.get("kind") == "call" and not (type(inner.get("round")) is int and inner["round"] <= proposal.rounds):
        reason = (
            f"round {str(inner.get('round'))[:20]} is beyond the {proposal.rounds} rounds of the study it approved."
        )
        return failure(Failure(name, reason))
    if inner.get("kind") == "evaluation":
        facts["asked"] = "evaluation"
        if not proposal.evaluates:
            return failure(Failure(name, "evaluates nothing in the study it approved."))
    try:
        info = info_from_json(json.loads(parts[0]))
    except (ValueError, RecursionError, TypeError):
        raise WireError("what the federation agreed on cannot be read.") from None
    party = folder.settings.party
    if inner.get("kind") == "call" and inner.get("party") != (party is not None):
        raise WireError("it has data and is no party." if party is None else f"it is the party '{party}', no client.")
    if party is not None:
        name, federation = party_id(party), _nobody(info)
    else:
        own = _own_data(folder, name, run)
        low = floor(folder.policy, len(own.train), population)
        if low is not None:
            return failure(Failure(name, low))
        train = fitted(own.train, own.info, info)
        held_out = None if own.test is None else InMemory((fitted(own.test, own.info, info),))
        federation = Federation(info, (name,), InMemory((train,)), held_out=held_out)
    return handle(_node(folder, name, run, proposal, federation, population, incarnation), parts[1])


def party_id(party: str) -> str:
    """What a party is called among recipients, which no client's id can be."""
    return f"party:{party}"


def _nobody(info: DataInfo) -> Federation:
    """What a party knows of the federation: the schema, no samples."""
    kind = torch.float32 if info.kind == "regression" else torch.int64
    form = SampleForm(torch.Size(info.shape), torch.float32, torch.Size(()), kind)
    return Federation(info, ("nobody",), Elsewhere((0,), form))


def _node(
    folder: NodeFolder, name: str, run: str, proposal: Proposal, federation: Federation, population: int,
    incarnation: int,
) -> Node:  # fmt: skip
    """The node with the job of the study, its samples as the federation agreed on them, and secrets of its own."""
    place = folder.run(run)
    if not (place / "secret").exists():
        raise InputError("it has not enrolled for this run.")
    root = (place / "secret").read_bytes()
    job = client_job(replace(proposal.rebuilt(folder.modules), device="cpu"), federation, population, root)
    return Node(place, name, job, observed=False, start=f"incarnation {incarnation}")


def _own_data(folder: NodeFolder, name: str, run: str) -> OwnData:
    """The samples as they were when the node enrolled for the run; it enrols with them now if it has not."""
    place = folder.run(run)
    if not (place / "node.json").exists() or not (place / _INFO).exists():
        own = load_data(folder.settings, folder.path)
        create(place, name, secrets.token_bytes(16), own.train, own.test)
        write_atomically(place / _INFO, json.dumps(info_to_json(own.info)).encode())
        return own
    stored = (place / "data.safetensors").read_bytes()
    data, info = decode(stored, Payload, limit=len(stored)), info_from_json(json.loads((place / _INFO).read_bytes()))
    test = data.get("test")
    return OwnData(ClientData(**data["train"]), ClientData(**test) if test else None, info)
