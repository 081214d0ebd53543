"""A node: what a recipient does with one message, over a folder of its own. Whoever receives the bytes calls `handle`.

    node.json             whose folder it is; written last, so a folder with it is whole
    secret                the root of its secrets, for its owner's eyes; never part of a message
    data.safetensors      its samples; a party has none
    memory-R-E            what it keeps since its answer in round R, exchange E, and on which version that was built; it
                          counts only once a message names it
    ledger.db             what it was asked at which place of the run, and what it answered (see `ledger`)

It answers what the method declares, as often as that, one question at a place, in rounds that only go forward. A
version is never changed, so a node can be killed and started again at any instant, and what it did for a server that
has since gone back to a checkpoint disturbs nobody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from parley.algorithms.exchange import Party, Reply
from parley.core.context import Context, Position, Secrets
from parley.core.errors import InputError, WireError
from parley.core.failure import Failure
from parley.core.files import make_folder, write_atomically
from parley.core.key import Key
from parley.core.message import Memory, Message, Payload
from parley.core.tree import Tree
from parley.core.wire import decode, encode
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.runtimes.execute import attempt, evaluate
from parley.runtimes.frame import pack, unpack
from parley.runtimes.ledger import EVALUATION, Asked, Ledger
from parley.runtimes.protocol import Call, EvaluationCall, Job

_OWNER, _SECRET, _DATA = "node.json", "secret", "data.safetensors"
_VERSION = re.compile(r"(\d{1,18})-(\d{1,18})")
_LONGEST = 50_000
"""Characters of what an exception says."""
_KEPT = 3
"""Rounds of which a node keeps replies and memories for a server that never says it is durable: a deployment's is
after every round."""
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a message says besides its contents; not counted as traffic."""

    run: str
    incarnation: int
    """Which start of the server asks; only the newest is answered."""
    round: int
    exchange: int
    asked: str
    """The function of the algorithm that is to answer."""
    version: str | None
    """The memory it builds on, `R-E`, of an earlier round or of an earlier exchange of this one; None for none."""
    durable: int
    """The round up to which the server never goes back."""
    round_key: str
    """The recipient's key of this round, in hexadecimal digits."""
    recipient: str
    party: bool

    @property
    def label(self) -> str:
        """The version of memory that the answer leads to."""
        return f"{self.round}-{self.exchange}"

    def question(self, message: bytes) -> Asked:
        """What the ledger knows it by: all but which start of the server asks and how far that is durable."""
        frame = call_frame(replace(self, incarnation=0, durable=0), message)
        return Asked(self.round, self.exchange, self.asked, _digest(frame), self.incarnation)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> Envelope:
        """From a head that anybody may have written; a WireError says what is wrong with it."""
        kinds = {
            "run": str,
            "incarnation": int,
            "round": int,
            "exchange": int,
            "asked": str,
            "version": str | None,
            "durable": int,
            "round_key": str,
            "recipient": str,
            "party": bool,
        }
        envelope = cls(**_checked(head, kinds))
        if _KEY.fullmatch(envelope.round_key) is None:
            raise WireError("the envelope's key is not 16 bytes in hexadecimal digits.")
        if not -1 <= envelope.durable < envelope.round:
            raise WireError("the rounds that the envelope names do not follow each other.")
        _check_version(envelope.version)
        _check_version(envelope.label)
        _check_start(envelope.incarnation)
        return envelope


@dataclass(frozen=True, slots=True)
class EvaluationEnvelope:
    """What a model to evaluate comes with."""

    incarnation: int
    round: int
    """After which it is evaluated; 0: before the first."""
    version: str | None
    durable: int
    recipient: str

    def question(self, model: bytes) -> Asked:
        frame = evaluation_frame(replace(self, incarnation=0, durable=0), model)
        return Asked(self.round, EVALUATION, "evaluation", _digest(frame), self.incarnation)

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> EvaluationEnvelope:
        kinds = {"incarnation": int, "round": int, "version": str | None, "durable": int, "recipient": str}
        envelope = cls(**_checked(head, kinds))
        _check_version(envelope.version)
        _check_version(f"{envelope.round}-0")
        _check_start(envelope.incarnation)
        return envelope


@dataclass(frozen=True, slots=True)
class Node:
    """A recipient at home: its folder, and the job with nobody's data and secrets but its own."""

    folder: Path
    recipient: str
    job: Job
    observed: bool = True
    """Whether the server is told what listeners observe, such as the training loss; a simulation is."""
    rounds: int | None = None
    """How many the study has that its owner approved; a simulation's server is believed."""
    evaluations: int | None = None
    """How many the study has in all."""
    key: Key | None = None
    """The run's, which follows from the study that its owner approved and leads to every random choice (which samples
    are in a batch); a simulation's server is believed."""

    @classmethod
    def open(cls, folder: Path, job: Job) -> Node:
        """From its folder; of the job only what everybody may know is taken."""
        recipient = json.loads((folder / _OWNER).read_text())["recipient"]
        federation = _federation(folder, recipient, job.task.info)
        return cls(folder, recipient, replace(job, federation=federation, secrets=(folder / _SECRET).read_bytes()))


def create(
    folder: Path, recipient: str, root: bytes, train: ClientData | None = None, test: ClientData | None = None
) -> None:
    """Give a node its folder at its start, with the root of its secrets and its samples; one that is whole stays."""
    if (folder / _OWNER).exists():
        return
    make_folder(folder, private=True)
    if train is not None:
        parts: dict[str, Tree] = {"train": {"x": train.x, "y": train.y}}
        if test is not None:
            parts["test"] = {"x": test.x, "y": test.y}
        write_atomically(folder / _DATA, encode(Payload.of(**parts)))
    write_atomically(folder / _SECRET, root, private=True)
    Ledger(folder).create()
    write_atomically(folder / _OWNER, json.dumps({"recipient": recipient}).encode())


def handle(node: Node, data: bytes) -> bytes:
    """The answer to a message, both in frames; bytes that are no message are answered with what is wrong with them."""
    try:
        head, parts = unpack(data)
        kind = head.pop("kind", None)
        if head.get("recipient") != node.recipient or len(parts) != 1:
            raise WireError(f"it is not a message to '{node.recipient}'.")
        if kind == "evaluation":
            return _evaluated(node, _bounded(node, EvaluationEnvelope.read(head)), parts[0])
        if kind != "call":
            raise WireError(f"a node answers calls and evaluations, not {kind!r}.")
        return _answered(node, _bounded(node, Envelope.read(head)), parts[0])
    except WireError as error:
        return failure(Failure(node.recipient, f"refused what it was sent: {error}"))
    except InputError as error:  # its disk
        return failure(Failure(node.recipient, f"cannot answer: {error}"))


E = TypeVar("E", Envelope, EvaluationEnvelope)


def _bounded(node: Node, envelope: E) -> E:
    """With the round that a server is durable at where it says less or more than an honest one would."""
    least = -1 if node.rounds is None else envelope.round - _KEPT
    return replace(envelope, durable=min(max(envelope.durable, least), envelope.round))


def call_frame(envelope: Envelope, message: bytes) -> bytes:
    """A call on its way to a node."""
    return pack({"kind": "call", **asdict(envelope)}, message)


def evaluation_frame(envelope: EvaluationEnvelope, model: bytes) -> bytes:
    """A model on its way to a node that is to evaluate it on all its held-out samples."""
    return pack({"kind": "evaluation", **asdict(envelope)}, model)


def failure(failed: Failure) -> bytes:
    """A failure on its way to the server."""
    shortened = replace(failed, reason=failed.reason[:_LONGEST], trace=failed.trace[-_LONGEST:])
    return pack({"kind": "failure"} | asdict(shortened))


def _answered(node: Node, envelope: Envelope, message: bytes) -> bytes:
    ledger, question = Ledger(node.folder), envelope.question(message)
    before = ledger.answered(question)
    if before is not None:
        return before
    number, asked, exchange = envelope.round, envelope.asked, envelope.exchange
    key = Key(digest=bytes.fromhex(envelope.round_key))
    secrets = Secrets(node.job.secrets, (number, asked, exchange))
    context = Context(node.recipient, number, asked, exchange, key, secrets)
    received = decode(message, Message)
    _check_round(node, number)
    _check_key(node, number, key)
    most = _check_asked(node.job, envelope, received)
    memory = _memory(node, envelope.version)
    if memory is None:
        return _lost(node, envelope.version)
    ledger.reserve(question, most, fixed=_fixed(node.job, asked, received))
    answer = attempt(node.job, Call(node.recipient, received, memory, context, party=envelope.party))
    if isinstance(answer, Failure):
        return failure(answer)
    data = _reply(envelope, answer, answer.observed if node.observed else {})
    if answer.memory is not None:
        kept = pack({"base": envelope.version}, encode(answer.memory))
        write_atomically(node.folder / f"memory-{envelope.label}", kept)
    data = ledger.keep(question, data, envelope.durable)
    _tidy(node.folder, envelope)
    return data


def round_key(key: Key, number: int, recipient: str) -> Key:
    """A recipient's key of a round, as the engine derives it from the run's."""
    return Position(number, "", 0, key.fold("round", number), b"").round_key(recipient)


def _check_round(node: Node, number: int) -> None:
    if node.rounds is not None and number > node.rounds:
        raise WireError(f"round {number} is beyond the {node.rounds} rounds of the study.")


def _check_key(node: Node, number: int, key: Key) -> None:
    """A server that chose it would choose batches: two that differ in one sample tell that one."""
    if node.key is not None and key != round_key(node.key, number, node.recipient):
        raise WireError("the envelope's key is not that of the study's seed.")


def _check_asked(job: Job, envelope: Envelope, message: Message) -> int:
    """Refuse what the method, with the settings that this node knows, does not declare to ask; how often it may."""
    asked, number = envelope.asked, envelope.round
    if job.channels.answers(asked) is not None:  # a stage of a sum, of which each exchange may be one
        return sum(each.times for each in job.exchanges.values())
    declared = job.exchanges.get(asked)
    if declared is None or isinstance(declared.asks, Party) != envelope.party:
        raise WireError(f"{job.algorithm.title} declares no exchange '{asked}' with these settings.")
    first, last = declared.rounds
    if number < first or (last is not None and number > last):
        raise WireError(f"{job.algorithm.title} asks '{asked}' in rounds from {first} to {last}, not in {number}.")
    declared.check(job.server, job.channels.bare(message))
    return declared.times


def _fixed(job: Job, asked: str, message: Message) -> dict[str, bytes]:
    """Digests of what a message has of trees that are the same in a whole run."""
    names = job.exchanges[asked].fixed if asked in job.exchanges else ()
    return {name: _digest(encode(Message(message.get(name)))) for name in names if name in message}


def _reply(envelope: Envelope, reply: Reply, observed: Tree) -> bytes:
    version = None if reply.memory is None else envelope.label
    return pack({"kind": "reply", "version": version}, encode(reply.message), encode(Message(observed)))


def _evaluated(node: Node, envelope: EvaluationEnvelope, model: bytes) -> bytes:
    ledger, question = Ledger(node.folder), envelope.question(model)
    before = ledger.answered(question)
    if before is not None:
        return before
    _check_round(node, envelope.round)
    memory = _memory(node, envelope.version)
    if memory is None:
        return _lost(node, envelope.version)
    call = EvaluationCall(decode(model, Message), memory, node.recipient, batch=node.job.batch)
    _check_model(node.job, call.model, memory)
    most = envelope.round + 1 if node.evaluations is None else node.evaluations
    ledger.reserve(question, most, everywhere=True)
    score = evaluate(node.job, call)
    if isinstance(score, Failure):
        return failure(score)
    score = score.rounded(node.job.digits)
    numbers = {"loss": score.loss, "correct": score.correct, "samples": score.samples, "positions": score.positions}
    counts = {} if score.counts is None else {"counts": score.counts.plain()}
    return ledger.keep(
        question, pack({"kind": "score", **numbers, "values": dict(score.values)} | counts), envelope.durable
    )


def _check_model(job: Job, model: Message, memory: Memory) -> None:
    try:
        job.algorithm.learned(job.server).check(model, memory)
    except (InputError, WireError) as error:  # or a tensor that has to be there is not
        raise WireError(str(error)) from None
    except Exception as error:  # of another type or shape than was looked at
        raise WireError(f"the model cannot be read ({type(error).__name__}).") from None


def _memory(node: Node, version: str | None) -> Memory | None:
    """The version asked for; None if it is not here, or not whole."""
    if version is None:
        return Memory()
    try:
        stored = (node.folder / f"memory-{version}").read_bytes()
        return decode(unpack(stored)[1][0], Memory, limit=len(stored))
    except (OSError, WireError, IndexError):
        return None


def _lost(node: Node, version: str | None) -> bytes:
    reason = f"no longer has its memory of round {str(version).split('-')[0]}."
    return failure(Failure(node.recipient, reason, lost=True))


def _tidy(folder: Path, envelope: Envelope) -> None:
    """Remove what no server will ask for again: memories not later than what is durable but for the one that the
    version named goes back to."""
    kept, version = set(), envelope.version
    while version is not None:
        kept.add(version)
        version = _base(folder, version) if _round(version) > envelope.durable else None
    for path in folder.glob("memory-*"):
        label = path.name.removeprefix("memory-")
        if label not in kept and _round(label) <= envelope.durable:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.part"):  # of a process that was killed while it wrote
        path.unlink(missing_ok=True)


def _base(folder: Path, version: str) -> str | None:
    """The version that this one was built on."""
    try:
        base: str | None = unpack((folder / f"memory-{version}").read_bytes())[0]["base"]
        return base
    except (OSError, WireError, KeyError):
        return None


def _round(version: str) -> int:
    return int(version.split("-")[0])


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def _check_start(incarnation: int) -> None:
    if not 0 < incarnation < 2**62:
        raise WireError("the envelope does not say which start of the server asks.")


def _check_version(version: str | None) -> None:
    if version is not None and _VERSION.fullmatch(version) is None:
        raise WireError(f"{version[:40]!r} is not a version of a memory.")


def _checked(head: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The head if it has just these fields, of these types."""
    for name in kinds.keys() ^ head.keys():
        raise WireError(f"the envelope {'lacks' if name in kinds else 'has an unknown'} '{name[:40]}'.")
    for name, kind in kinds.items():
        value = head[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise WireError(f"'{name}' in the envelope is a {type(value).__name__}.")
    return dict(head)


def _federation(folder: Path, recipient: str, info: DataInfo) -> Federation:
    """Of this recipient alone."""
    path = folder / _DATA
    if not path.exists():
        return Federation(info, (recipient,), InMemory(()))
    stored = path.read_bytes()
    try:
        data = decode(stored, Payload, limit=len(stored))
        train, test = data["train"], data.get("test")
    except WireError as error:
        raise InputError(f"the samples of '{recipient}' in {folder} cannot be read: {error}") from None
    held_out = InMemory((ClientData(test["x"], test["y"]),)) if test else None
    return Federation(info, (recipient,), InMemory((ClientData(train["x"], train["y"]),)), held_out=held_out)
