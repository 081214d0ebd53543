"""What every runtime does for one recipient: run it, catch what it raises, and look at what it returns."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from parley.algorithms.exchange import Reply
from parley.core.errors import InputError, ParleyError, WireError, user_line
from parley.core.failure import Failure
from parley.core.message import Memory, Message, Payload, Row, Total
from parley.core.tree import Tree, aligned, detach, is_finite
from parley.core.wire import check_payload
from parley.data import ClientData
from parley.data.client import Unread
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score
from parley.training.devices import wide
from parley.training.losses import IGNORE
from parley.training.pooled import Counts

P = TypeVar("P", bound=Payload)


def attempt(job: Job, call: Call) -> Answer:
    """The recipient's reply, or why there is none. Only bugs of ours and interrupts get past this."""
    context = call.context
    try:
        if (answer := job.channels.answers(context.asked)) is not None:
            return finish(job, call, Reply(answer(call.message, context)), through=False)
        answering = job.exchange(context.asked).answer
        # Whatever a method or a layer draws from torch's own generator follows from the key.
        torch.default_generator.manual_seed(context.round_key.seed ^ context.exchange)
        message, memory = placed(job, job.channels.bare(call.message)), placed(job, call.memory)
        if call.party:
            return finish(job, call, answering(job.task, message, memory, context))
        data, before = Unread(partial(client_data, job, call.recipient)), _versions(message)
        try:
            reply = answering(job.task, message, memory, data, context)
        finally:
            if data.changed or _versions(message) != before:
                return _changed(job, call)  # noqa: B012 (whatever else happened, this must not go unnoticed)
    except (Exception, SystemExit) as error:  # a client may fail in any way; the round goes on without it
        return failed(call.recipient, error)
    return finish(job, call, reply)


def as_one(job: Job, calls: Sequence[Call]) -> list[Answer]:
    """The replies of clients that answer as one (`Exchange.joins`); none where each is to be asked by itself."""
    declared = job.exchanges.get(calls[0].context.asked) if len(calls) > 1 and not calls[0].party else None
    alike = declared is not None and declared.joins and all(call.message is calls[0].message for call in calls)
    if declared is None or not alike or job.channels.up or not job.on_cpu:
        return []

    def answered(memory: Memory) -> Reply:
        """It has no data and no context to look at."""
        return check_reply(declared.answer(job.task, message, memory, None, None))

    message, memories = job.channels.bare(calls[0].message), [call.memory for call in calls]
    try:
        joined, sizes = _joined(memories, declared.joins)
        reply = answered(joined)
        kept = memories if reply.memory is None else _parted(joined, reply.memory, memories, declared.joins, sizes)
    except Exception:  # one by one, whoever is the cause shows
        return []
    if reply.message.scalars or reply.observed or not finite(reply.message):
        return []
    total = Total(reply.message.tensors, len(calls), lambda row: answered(memories[row]).message.tensors)
    return [Reply(Row(total, row), memory) for row, memory in enumerate(kept)]


def _joined(memories: Sequence[Memory], axes: Mapping[str, int]) -> tuple[Memory, list[int]]:
    """One memory with the samples of all, and whatever else is the same in all; how many samples are each one's."""
    first, *others = memories
    if any(other.scalars != first.scalars or other.tensors.keys() != first.tensors.keys() for other in others):
        raise InputError("clients with memories of different kinds do not answer as one.")
    tensors = {}
    for name, value in first.tensors.items():
        if name in axes:
            tensors[name] = torch.cat([memory.tensors[name] for memory in memories], axes[name])
        elif all(torch.equal(other.tensors[name], value) for other in others):
            tensors[name] = value
    known = next(name for name in axes if name in tensors)
    return Memory(tensors, first.scalars), [memory.tensors[known].shape[axes[known]] for memory in memories]


def _parted(
    before: Memory, after: Memory, memories: Sequence[Memory], axes: Mapping[str, int], sizes: Sequence[int]
) -> list[Memory]:
    """Each client's memory, with its samples of what the answer changed in the joined one."""
    columns = {
        name: [piece.clone() for piece in value.split(sizes, axes[name])] if name in axes else [value] * len(sizes)
        for name, value in after.tensors.items()
        if before.tensors.get(name) is not value
    }
    gone = before.tensors.keys() - after.tensors.keys()
    return [
        Memory(
            {name: value for name, value in memory.tensors.items() if name not in gone}
            | {name: column[row] for name, column in columns.items()},
            after.scalars,
        )
        for row, memory in enumerate(memories)
    ]


def client_data(job: Job, client: str) -> ClientData:
    """The client's samples, where it trains, in memory that does not make matrix products round differently."""
    data = job.federation.client(client)
    if job.on_cpu:
        x, y = aligned(data.x), data.y
        if y.is_floating_point():  # class numbers do not round
            y = aligned(y)
    else:
        x, y = data.x.to(job.task.device), data.y.to(job.task.device)
    return data if x is data.x and y is data.y else ClientData(x, y)


def finish(job: Job, call: Call, reply: object, through: bool = True) -> Answer:
    """The reply as it is sent, if it is one: checked, without autograd's history, `through` the client's half of the
    channels."""
    try:
        checked = check_reply(reply)
        if not job.on_cpu:
            checked = _on_cpu(checked)
        if through and not call.party and job.channels.up:
            checked = job.channels.configured(call.message).send(checked, call.memory, call.context)
            check_payload(checked.message)
    except (InputError, WireError) as error:
        return Failure(call.recipient, f"gave a reply that cannot be used: {error}")
    if not finite(checked.message):
        return Failure(call.recipient, "sent NaN or infinite numbers in its message.")
    if checked.memory is not None and not finite(checked.memory):
        return Failure(call.recipient, "made NaN or infinite numbers in its memory.")
    return checked


def check_reply(reply: object) -> Reply:
    """The reply if all its parts are what they should be; an InputError or a WireError says which is not."""
    if not isinstance(reply, Reply):
        raise InputError(f"{type(reply).__name__} where a Reply was expected.")
    observed = reply.observed
    if not isinstance(reply.message, Message):
        raise InputError(f"{type(reply.message).__name__} where a Message was expected.")
    check_payload(reply.message)
    if reply.memory is not None:
        if not isinstance(reply.memory, Memory):
            raise InputError(f"{type(reply.memory).__name__} where a Memory was expected.")
        check_payload(reply.memory)
    if not isinstance(observed, dict):
        raise InputError("what may be observed must be tensors by name.")
    if not observed and reply.memory is None and not reply.message.tensors:
        return reply
    if not all(isinstance(value, Tensor) for value in observed.values()):
        raise InputError("what may be observed must be tensors by name.")
    if "loss" in observed and observed["loss"].numel() != 1:
        raise InputError(f"the observed loss has {observed['loss'].numel()} values.")
    parts = [reply.message.tensors, reply.memory.tensors if reply.memory is not None else {}, observed]
    if not any(value.requires_grad for part in parts for value in part.values()):
        return reply
    # Tensors that remember how they were computed would keep the computations of all rounds alive.
    message, memory, seen = (detach(part) for part in parts)
    kept = None if reply.memory is None else Memory(memory, reply.memory.scalars)
    return Reply(Message(message, reply.message.scalars), kept, seen)


def finite(payload: Payload) -> bool:
    """Whether all numbers are; scalars have been checked with the payload's form."""
    return not payload.tensors or is_finite(payload.tensors)


def failed(recipient: str, error: BaseException) -> Failure:
    """What an exception says of a recipient."""
    what_failed, user_code = f"raised {type(error).__name__}: {_text(error)}".rstrip("."), user_line(error)
    if isinstance(error, ParleyError):
        return Failure(recipient, f"{what_failed}{user_code}." if user_code else _text(error))
    where = traceback.extract_tb(error.__traceback__)
    where_raised = f" ({Path(where[-1].filename).name}, line {where[-1].lineno})" if where else ""
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # an exception whose own text cannot be made
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(recipient, f"{what_failed}{user_code or where_raised}.", trace)


def describe(error: BaseException) -> str:
    """An exception as the end of a sentence about a client."""
    return _text(error) if isinstance(error, ParleyError) else f"raised {type(error).__name__}: {_text(error)}"


def _text(error: BaseException) -> str:
    """The first line of an exception's text, in characters that can be stored."""
    try:
        text = str(error)
    except Exception:
        return "(its text cannot be shown)"
    return (text.strip().split("\n") or [""])[0].encode("utf-8", "replace").decode()


def _changed(job: Job, call: Call) -> Failure:
    return Failure(
        call.recipient,
        f"changed the message or its data in place, which others share; {job.algorithm.title} must make new tensors "
        "(clone them first).",
        fatal=True,
    )


def _versions(message: Message) -> int:
    """A number that grows with every change in place."""
    return sum([value._version for value in message.tensors.values()])


def placed(job: Job, payload: P) -> P:
    """Where clients train."""
    if job.on_cpu:
        return payload
    return payload.holding(_moved(payload.tensors, job.task.device), payload.scalars)


def _moved(tensors: Tree, device: torch.device) -> Tree:
    return {name: value.to(device) for name, value in tensors.items()}


def _on_cpu(reply: Reply) -> Reply:
    cpu = torch.device("cpu")
    memory = None if reply.memory is None else Memory(_moved(reply.memory.tensors, cpu), reply.memory.scalars)
    message = Message(_moved(reply.message.tensors, cpu), reply.message.scalars)
    return Reply(message, memory, _moved(reply.observed, cpu))


def evaluate(job: Job, call: EvaluationCall) -> Score | Failure:
    """The score, or why there is none."""
    try:
        return score(job, call)
    except (Exception, SystemExit) as error:
        return failed(call.client or "the central test set", error)


@torch.no_grad()
def score(job: Job, call: EvaluationCall) -> Score:
    """Evaluate a model (with a client's memory, the client's own) on some samples, a batch at a time."""
    federation, task, device = job.federation, job.task, job.task.device
    data = federation.test if call.client is None else federation.client_test(call.client)
    if data is None:
        raise InputError("has no held-out samples to evaluate on.")
    stop = len(data) if call.stop is None else call.stop
    model, memory = placed(job, call.model), None if call.memory is None else placed(job, call.memory)
    # What does not add up is computed where all of an owner's samples are; otherwise the outputs are asked for.
    everything = job.judges_all and not call.keep and (call.start, stop) == (0, len(data))
    learned = job.algorithm.learned(task)
    loss, correct, positions, outputs = [], [], 0, []
    for start in range(call.start, stop, call.batch):
        rows = slice(start, min(start + call.batch, stop))
        x, y = data.x[rows], data.y[rows].to(device)
        x = aligned(x) if job.on_cpu else x.to(device)
        before = None if call.before is None else call.before[start - call.start :][: len(x)].to(device)
        out = learned.outputs(model, memory, x, before)
        loss.append(float(task.loss(out, y).sum(dtype=wide(device))))
        if task.info.kind != "regression":
            counted = y != IGNORE
            # The largest of numbers that are none says nothing.
            right = (out.argmax(1) == y) & counted & torch.isfinite(out).all(1)
            correct.append(float(right.sum()))
            positions += int(counted.sum())
        if call.keep or everything:
            outputs.append(out.cpu())
    kept = torch.cat(outputs) if outputs else None
    values: dict[str, float] = {}
    if everything and kept is not None:
        values = {name: scorer(kept, data.y) for name, scorer in job.scorers.items()}
    counts = Counts.of(kept, data.y) if everything and kept is not None and job.pooled else None
    regression = task.info.kind == "regression"
    return Score(
        math.fsum(loss),
        math.nan if regression else math.fsum(correct),
        stop - call.start,
        stop - call.start if regression else positions,
        values,
        kept if call.keep else None,
        counts,
    )


def evaluate_together(job: Job, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
    """The scores of all calls. Clients that have one model in common go through it together, a batch of rows at a time.

    Up to rounding it is what `evaluate` says of each; it is asked where that is enough.
    """
    scores: dict[int, Score | Failure] = {}
    common = not job.algorithm.learned(job.task).personal
    block: list[tuple[int, ClientData]] = []
    rows = 0
    for position, call in enumerate(calls):
        data = None
        whole = (call.start, call.stop, call.before, call.keep) == (0, None, None, False)
        if common and whole and call.client is not None:
            with suppress(Exception):  # which `evaluate` meets too, and tells
                data = job.federation.client_test(call.client)
        if data is None or len(data) > call.batch:
            scores[position] = evaluate(job, call)
            continue
        rows += len(data)
        if block and (rows > call.batch or call.model is not calls[block[0][0]].model):
            scores |= _scored(job, calls, block)
            block, rows = [], len(data)
        block.append((position, data))
    scores |= _scored(job, calls, block)
    return [scores[position] for position in range(len(calls))]


def _scored(
    job: Job, calls: Sequence[EvaluationCall], block: list[tuple[int, ClientData]]
) -> dict[int, Score | Failure]:
    try:
        scores = _score_block(job, calls[block[0][0]].model, [data for _, data in block]) if len(block) > 1 else []
    except Exception:  # alone, each shows whether it is the one
        scores = []
    if not scores:
        return {position: evaluate(job, calls[position]) for position, _ in block}
    return {position: score for (position, _), score in zip(block, scores, strict=True)}


@torch.no_grad()
def _score_block(job: Job, model: Message, clients: list[ClientData]) -> list[Score]:
    """Each client's score from one pass of all their samples."""
    task, device = job.task, job.task.device
    x, y = (torch.cat([getattr(data, name) for data in clients]) for name in ("x", "y"))
    sizes = [len(data) for data in clients]
    x, targets = (aligned(x) if job.on_cpu else x.to(device)), y.to(device)
    out = job.algorithm.learned(task).outputs(placed(job, model), None, x, None)
    owners = torch.repeat_interleave(torch.tensor(sizes)).to(device)

    def sums(each: Tensor) -> list[float]:
        """Over the samples of each client."""
        rows = each.to(wide(device)).flatten(1).sum(1) if each.ndim > 1 else each.to(wide(device))
        totals: list[float] = rows.new_zeros(len(sizes)).index_add_(0, owners, rows).tolist()
        return totals

    loss = sums(task.loss(out, targets))
    correct, positions = [math.nan] * len(sizes), [float(size) for size in sizes]
    if task.info.kind != "regression":
        counted = targets != IGNORE
        correct, positions = sums((out.argmax(1) == targets) & counted & torch.isfinite(out).all(1)), sums(counted)
    outputs = out.cpu().split(sizes) if job.judges_all else [out] * len(sizes)
    parts = zip(loss, correct, sizes, positions, outputs, clients, strict=True)
    return [
        Score(
            lost,
            right,
            size,
            int(counted),
            {name: scorer(predicted, data.y) for name, scorer in job.scorers.items()},
            counts=Counts.of(predicted, data.y) if job.pooled else None,
        )
        for lost, right, size, counted, predicted, data in parts
    ]
