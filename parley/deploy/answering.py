"""What a node does with a message: check version, consent and limits, log it, and let `runtimes.node` answer.

Two kinds of messages arrive, both frames:

    invitation   the proposal of a study; the answer says what the node has, or that its owner has to decide
    work         a call or an evaluation of a study that was approved, and what the federation agreed on

A run takes part by its invitation alone, which spends the approval of its study (`consent.engage`); work of any other
run is refused. Every message is written to the log before anything is done with it, every answer before it leaves;
where the log cannot be written nothing is answered.

A refusal tells the server what owner or policy decided about the study, in words made of the study and the policy, and
where it asks something else than before.
Of anything else that went wrong (data that cannot be read, a message that does not fit, an exception) the server learns
an id; the log has what happened under it, because such sentences quote paths, cells and lines of the owner's code.
"""

from __future__ import annotations

import json
import secrets
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from parley import __version__
from parley.algorithms.exchange import parties
from parley.core.errors import InputError, ParleyError, WireError
from parley.core.failure import Failure
from parley.core.files import write_atomically
from parley.core.key import Key
from parley.core.message import Message, Payload
from parley.core.wire import decode
from parley.data import ClientData, DataInfo, Federation
from parley.data.checks import SampleForm
from parley.data.sources import Elsewhere, InMemory
from parley.deploy import keys
from parley.deploy.consent import (
    BY_POLICY,
    ended,
    engage,
    enrolled,
    floor,
    known_nodes,
    shows,
    takes_part,
    used,
    verdict,
    version_problem,
)
from parley.deploy.disclosed import Grid, few_apart, keep_grid, keep_rows, other_study
from parley.deploy.node_data import OwnData, described, fitted, info_from_json, info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.roster import check_signed, problem, signed_reply
from parley.engine.settings import Evaluation
from parley.runtimes.frame import pack, unpack
from parley.runtimes.ledger import TOLD
from parley.runtimes.node import Node, create, failure, handle
from parley.secure.channel import GROUP
from parley.study.train import client_job

PROTOCOL = 2
"""Of frames and of what nodes keep; server and nodes have the same."""
_INFO, _FEDERATION = "info.json", "federation"
_LONGEST = 500
"""Characters of a text of the server's that is logged."""
_LONGEST_WHY = 4000
"""Characters of what went wrong, and of where in the code."""


_OTHER_CELLS = "has counted some of the same samples in other cells, so its owner has to decide."
_TWO_GRIDS = (
    "some of its samples were counted in other cells in another run: both counts, subtracted, tell of the few between "
    "their edges."
)


class _Refused(ParleyError):
    """A decision about the study, in words that the server may read."""

    def __init__(self, reason: str, pending: bool = False) -> None:
        super().__init__(reason)
        self.pending = pending
        """Nobody has decided yet."""


def answer(folder: NodeFolder, data: bytes) -> bytes:
    """The answer to a message; it is a frame, whatever the bytes were and whatever went wrong."""
    name, invited = "node", False
    facts: dict[str, Any] = {"bytes_in": len(data), "frame": blake2b(data, digest_size=8).hexdigest()}
    try:
        head, parts = _opened(data)
        invited = head.get("kind") == "invitation"
        facts |= _facts(head)
        folder.log("received", **facts, what=_what(head, parts))
    except Exception as error:  # whatever it is: without its line in the log no message is answered
        return _unlogged(name, invited, facts | {"why": _why(error)})
    try:
        name = folder.settings.name
        head, parts = unpack(data)
        reply = _discreet(name, _answered(folder, name, head, parts, facts), facts)
    except _Refused as refused:
        facts["answered"] = str(refused)[:_LONGEST]
        reply = _refusal(name, str(refused), refused.pending)
    except (Exception, SystemExit) as error:  # of the owner's own code too
        facts |= {"why": _why(error)[:_LONGEST_WHY], "trace": _trace(error)}
        # An invitation that fails because the disk is full is repeated: its owner may make room.
        reply = _refusal(name, _sealed(facts), invited and _is_disk(error))
    try:
        folder.log("message", **facts, bytes_out=len(reply))
    except Exception as error:
        return _unlogged(name, invited, facts | {"error": str(error)})
    return reply


def _unlogged(name: str, invited: bool, facts: Mapping[str, Any]) -> bytes:
    with suppress(OSError):  # the disk may be full for supernode.log too
        print("\n".join(str(facts[key]) for key in ("error", "why", "trace") if key in facts), file=sys.stderr)
    return _refusal(name, "cannot answer: its log cannot be written.", invited)


def _refusal(name: str, reason: str, pending: bool = False, lost: bool = False) -> bytes:
    return pack({"kind": "pending", "reason": reason}) if pending else failure(Failure(name, reason, lost=lost))


def _sealed(facts: dict[str, Any]) -> str:
    """All that the server is told of what went wrong; the log has the same id."""
    facts["id"] = secrets.token_hex(4)
    facts["answered"] = f"refused ({facts['id']})."
    return f"refused; its owner finds why in the node's log under {facts['id']}."


def _discreet(name: str, reply: bytes, facts: dict[str, Any]) -> bytes:
    """A reply of `runtimes.node` as it may leave."""
    head, _ = unpack(reply)
    if "reason" not in head:
        facts["answered"] = str(head["kind"])
        return reply
    known = next((text for text in TOLD if str(head["reason"]).endswith(text)), None)
    if known is not None:
        raise _Refused(f"refused: {known}")
    facts |= {"why": str(head["reason"])[:_LONGEST_WHY], "trace": str(head.get("trace", ""))[-_LONGEST_WHY:]}
    return _refusal(str(head.get("client", name)), _sealed(facts), lost=head.get("lost") is True)


def _why(error: BaseException) -> str:
    """An exception, whole: the log is its owner's."""
    try:
        text = str(error).encode("utf-8", "replace").decode()
    except Exception:
        text = "(its text cannot be shown)"
    return text if isinstance(error, ParleyError) else f"{type(error).__name__}: {text}"


def _trace(error: BaseException) -> str:
    """Where it was raised, if not by Parley on purpose."""
    if isinstance(error, ParleyError) and error.__cause__ is None:
        return ""
    lines = "".join(traceback.format_exception(error, chain=True))
    return lines.encode("utf-8", "replace").decode()[-_LONGEST_WHY:]


def _is_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError)


def invitation(recipient: str, run: str, proposal: Proposal) -> bytes:
    """An invitation on its way to a node."""
    head = {"kind": "invitation", "parley": __version__, "protocol": PROTOCOL, "recipient": recipient, "run": run}
    return pack(head, proposal.bytes())


def work(
    recipient: str,
    run: str,
    study: str,
    population: int,
    common: bytes,
    frame: bytes,
    signed: Mapping[str, Any] | None = None,
) -> bytes:
    """A call or an evaluation on its way to a node; `common` is what the federation agreed on, as JSON, `signed` what
    other nodes have signed (see `roster`)."""
    head = {
        "kind": "work",
        "parley": __version__,
        "protocol": PROTOCOL,
        "recipient": recipient,
        "run": run,
        "study": study,
        "population": population,
    }
    return pack(head, common, frame, json.dumps(dict(signed or {})).encode())


def _opened(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Head and parts, for the log; nothing of what is no frame."""
    try:
        return unpack(data)
    except (WireError, ValueError, RecursionError):
        return {}, []


def _what(head: Mapping[str, Any], parts: list[bytes]) -> str:
    """In one line what is asked, as the message has it."""
    inner = _opened(parts[1])[0] if head.get("kind") == "work" and len(parts) in (2, 3) else {}
    words = [f"{name} {inner[name]}"[:60] for name in ("round", "exchange", "asked") if name in inner]
    return ", ".join([str(inner.get("kind", head.get("kind")))[:60], *words])


def _facts(head: Mapping[str, Any]) -> dict[str, Any]:
    """What the log says about a message."""
    return {name: str(head[name])[:_LONGEST] for name in ("kind", "run", "study", "parley") if name in head}


def _answered(
    folder: NodeFolder, name: str, head: Mapping[str, Any], parts: list[bytes], facts: dict[str, Any]
) -> bytes:
    wrong = version_problem(str(head.get("parley")))
    if wrong is not None:
        raise _Refused(wrong)
    if head.get("protocol") != PROTOCOL:
        raise _Refused("speaks another protocol than the server; bring both to the same Parley at once.")
    if head.get("recipient") != name:
        raise WireError(f"the server calls this node '{str(head.get('recipient'))[:60]}', its owner '{name}'.")
    run = head.get("run")
    if not isinstance(run, str) or not 0 < len(run) <= 200:
        raise WireError("it names no run.")
    if head.get("kind") == "invitation" and len(parts) == 1:
        return _invited(folder, name, run, Proposal.read(parts[0]), facts)
    if head.get("kind") == "work" and len(parts) in (2, 3):
        return _worked(folder, name, run, head, parts, facts)
    raise WireError("a node answers invitations and work.")


def _invited(folder: NodeFolder, name: str, run: str, proposal: Proposal, facts: dict[str, Any]) -> bytes:
    facts |= {"study": proposal.hash, "title": proposal.title[:100]}
    decided = verdict(folder, proposal)
    folder.keep(proposal, pending=decided.pending)
    facts["verdict"] = decided.why[:_LONGEST]
    if not decided.yes:
        raise _Refused(decided.why, decided.pending)
    if proposal.roster or _sums(proposal) or folder.policy.minimum_nodes or folder.policy.peers:
        wrong = problem(proposal.roster, name, keys.text_of(keys.private_key(_key(folder)).public_key()))
        if wrong is not None:
            raise _Refused(wrong)
    study = proposal.rebuilt(folder.modules)  # says now what would otherwise be found out in the first round
    party = folder.settings.party
    if party is not None and party not in parties(study.algorithm.exchanges()):
        raise _Refused(f"is the party '{party}', which this study has no use for.")
    refused = engage(folder, proposal, run, decided)
    if refused is not None:
        raise _Refused(refused, pending=True)
    if party is not None:
        create(folder.run(run), party_id(party), secrets.token_bytes(16))
        enrolled(folder, proposal.hash, run)
        return pack({"kind": "enrolled", "party": party})
    data = _samples(folder, run)
    low = floor(folder.policy, len(data.train), known_nodes(folder, proposal))
    if low is not None:
        raise InputError(low)
    rows = used(proposal, folder.modules, data)
    near = few_apart(folder, run, rows, folder.policy.minimum_floor)
    if near is not None:
        facts["warning"] = (
            f"the samples it uses differ by {near} from those of another run: what both tell, subtracted, tells of "
            "these few."
        )
        if decided.why == BY_POLICY:
            raise _Refused("would use samples that differ by few from another run's, so its owner has to decide.", True)
    if other_study(folder, run, proposal, rows):
        facts["warning"] = f"{facts.get('warning', '')} {_TWO_GRIDS}".lstrip()
        if decided.why == BY_POLICY:
            raise _Refused(_OTHER_CELLS, True)
    if (few := shows(proposal, folder.modules, data)) != "":
        facts["warning"] = f"{facts.get('warning', '')} {few}: this study tells of these few.".lstrip()
        decision = folder.decision(proposal.hash)
        if decision is None or not decision.get("disclose"):
            raise _Refused(
                "has samples that stand out, and this study tells of them, so its owner has to decide (--disclose).",
                True,
            )
    _enrol(folder, name, run, data)
    keep_rows(folder, run, rows)
    enrolled(folder, proposal.hash, run, str(facts.get("warning", "")))
    decision = described(replace(data, test=_held_out(folder, data)), keys.secret(_key(folder), "fingerprint"))
    return pack({"kind": "enrolled", "data": decision})


def _worked(
    folder: NodeFolder, name: str, run: str, head: Mapping[str, Any], parts: list[bytes], facts: dict[str, Any]
) -> bytes:
    proposal = folder.proposal(str(head.get("study")))
    population = head.get("population")
    if type(population) is not int or population < 1:
        raise WireError("it does not say how large the federation is.")
    decided = verdict(folder, proposal)
    facts["verdict"] = decided.why[:_LONGEST]
    if not decided.yes:
        raise _Refused(decided.why)
    if not takes_part(folder, proposal.hash, run):
        raise _Refused("does not take part in this run of the study; another run needs a new approval of its owner.")
    if (over := ended(folder, proposal.hash, run)) is not None:
        raise _Refused(over)
    inner = unpack(parts[1])[0]
    facts |= {part: str(inner[part])[:60] for part in ("round", "exchange", "asked") if part in inner}
    if inner.get("kind") == "evaluation":
        facts["asked"] = "evaluation"
        if not proposal.evaluates:
            raise _Refused("evaluates nothing in the study it approved.")
    if not (type(inner.get("round")) is int and inner["round"] <= proposal.rounds):
        asked = str(inner.get("round"))[:20]
        raise _Refused(f"round {asked} is beyond the {proposal.rounds} rounds of the study it approved.")
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
        stored = _stored(folder, run)
        low = floor(folder.policy, len(stored.train), min(population, known_nodes(folder, proposal)))
        if low is not None:
            raise InputError(low)
        train = fitted(stored.train, stored.info, info)
        test = _held_out(folder, stored)
        held_out = None if test is None else InMemory((fitted(test, stored.info, info),))
        if inner.get("kind") == "evaluation":
            if test is None:
                raise _Refused("has too few held-out samples to evaluate on.")
            facts |= {"rows": len(test), "model": blake2b(b"".join(unpack(parts[1])[1]), digest_size=16).hexdigest()}
        info = replace(info, categories=stored.info.categories, levels=stored.info.levels)  # known here alone
        federation = Federation(info, (name,), InMemory((train,)), held_out=held_out)
    about = (proposal.hash, run)
    if _sums(proposal):
        wrong = check_signed(parts[1], _json(parts[2]) if len(parts) == 3 else {}, proposal.roster, about)
        if wrong is not None:
            raise _Refused(wrong)
    _check_federation(folder, run, population, parts[0])
    node = _node(folder, name, run, proposal, federation, population)
    reply = handle(node, parts[1])
    if unpack(reply)[0].get("kind") == "reply":  # what was refused was counted in no cells
        _check_grid(folder, run, proposal, node, parts[1], decided.why == BY_POLICY, facts)
    if _sums(proposal):
        key = keys.private_key(_key(folder))
        reply = signed_reply(reply, inner, about, folder.settings.name, key)
    return reply


def _check_federation(folder: NodeFolder, run: str, population: int, common: bytes) -> None:
    """Hold the server to what it said first in this run: how large the federation is, its classes, its columns."""
    path, digest = folder.run(run) / _FEDERATION, blake2b(b"%d " % population + common, digest_size=32).digest()
    if not path.exists():
        with folder.alone():  # of two messages at once one is the first
            if not path.exists() and path.parent.exists():
                write_atomically(path, digest)
    if path.exists() and path.read_bytes() != digest:
        raise _Refused("received a different federation than at the start of this run.")


def _check_grid(
    folder: NodeFolder, run: str, proposal: Proposal, node: Node, frame: bytes, by_policy: bool, facts: dict[str, Any]
) -> None:
    """Before an answer leaves: keep in which cells it counted samples; ask the owner where other runs counted the same
    ones in other cells."""
    inner, messages = unpack(frame)
    declared = node.job.exchanges.get(str(inner.get("asked")))
    if inner.get("kind") != "call" or declared is None or not declared.grid or len(messages) != 1:
        return
    edges = decode(messages[0], Message).tensors
    edges = {name: tensor for name, tensor in edges.items() if name.partition("/")[0] in declared.grid}
    if keep_grid(folder, run, Grid.of(declared.name, edges), by_policy):
        if by_policy:
            raise _Refused(_OTHER_CELLS)
        facts["warning"] = _TWO_GRIDS
        enrolled(folder, proposal.hash, run, _TWO_GRIDS)


def _key(folder: NodeFolder) -> Path:
    return folder.path / folder.settings.key


def _sums(proposal: Proposal) -> bool:
    """Whether nodes tell each other keys."""
    return GROUP in proposal.channels


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("what other nodes have signed cannot be read.") from None


def party_id(party: str) -> str:
    """What a party is called among recipients, which no client's id can be."""
    return f"party:{party}"


def _nobody(info: DataInfo) -> Federation:
    """What a party knows of the federation: the schema, no samples."""
    kind = torch.float32 if info.kind == "regression" else torch.int64
    form = SampleForm(torch.Size(info.shape), torch.float32, torch.Size(()), kind)
    return Federation(info, ("nobody",), Elsewhere((0,), form))


def _node(folder: NodeFolder, name: str, run: str, proposal: Proposal, federation: Federation, population: int) -> Node:
    """The node with the job of the study, its samples as the federation agreed on them, and secrets of its own."""
    run_folder = folder.run(run)
    if not (run_folder / "secret").exists():
        raise _Refused("keeps nothing of this run any more; another run needs a new approval of its owner.")
    root = (run_folder / "secret").read_bytes()
    study = replace(proposal.rebuilt(folder.modules), device="cpu")
    every = (study.evaluation or Evaluation()).every
    job = client_job(study, federation, population, root)
    return Node(
        run_folder,
        name,
        job,
        observed=False,
        rounds=proposal.rounds,
        evaluations=proposal.rounds // every + 2,
        key=Key(study.seed),
    )


def _samples(folder: NodeFolder, run: str) -> OwnData:
    """The samples as they are now, or as they were when the node enrolled for the run."""
    kept = (folder.run(run) / "node.json").exists() and (folder.run(run) / _INFO).exists()
    return _stored(folder, run) if kept else load_data(folder.settings, folder.path)


def _held_out(folder: NodeFolder, data: OwnData) -> ClientData | None:
    """What models are evaluated on: nothing where that would tell of few samples."""
    return None if data.test is None or len(data.test) < folder.policy.minimum_held_out else data.test


def _enrol(folder: NodeFolder, name: str, run: str, data: OwnData) -> None:
    """Keep the samples as they are for the whole run."""
    run_folder = folder.run(run)
    if not (run_folder / _INFO).exists():
        if data.skipped:
            folder.list_skipped(data.skipped)
            folder.log(
                "skipped", run=run, rows=len(data.skipped), answered=f"{len(data.skipped)} rows, see skipped.txt"
            )
        create(run_folder, name, secrets.token_bytes(16), data.train, data.test)
        write_atomically(run_folder / _INFO, json.dumps(info_to_json(data.info)).encode())


def _stored(folder: NodeFolder, run: str) -> OwnData:
    """The samples with which the node enrolled for a run."""
    run_folder = folder.run(run)
    if not (run_folder / "node.json").exists() or not (run_folder / _INFO).exists():
        raise _Refused("keeps nothing of this run any more; another run needs a new approval of its owner.")
    stored = (run_folder / "data.safetensors").read_bytes()
    data, info = (
        decode(stored, Payload, limit=len(stored)),
        info_from_json(json.loads((run_folder / _INFO).read_bytes())),
    )
    test = data.get("test")
    return OwnData(ClientData(**data["train"]), ClientData(**test) if test else None, info)
