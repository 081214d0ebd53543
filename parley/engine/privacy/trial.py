"""Whether a method can be trained privately, found out before training: two rounds with one client and few samples."""

from __future__ import annotations

from dataclasses import replace

import torch

from parley.algorithms.base.protocol import Cohort, Question
from parley.channels.adaptive_clip import told
from parley.core.context import Context, Secrets
from parley.core.errors import InputError, ParleyError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData
from parley.engine.privacy.plan import PrivacyPlan
from parley.engine.privacy.round import PrivateRound
from parley.runtimes.protocol import Job

_ROUNDS = (1, 2)
_SAMPLES = 8


def check_private(job: Job, plan: PrivacyPlan, state: State) -> None:
    """Refuse, with the reason, a method that sends or reads what differential privacy does not cover."""
    algorithm, ids = job.algorithm, job.federation.ids
    where = f"{algorithm.title} cannot be trained with differential privacy"
    if algorithm.pooled:
        raise InputError(f"{where}: it trains on data in one place, where no client's part is protected.")
    if job.task.sent_buffers:
        raise InputError(
            f'{where}: statistics of BatchNorm would travel with the updates; set buffers = "local", or take a model '
            "without them."
        )
    plan = replace(plan, secret=bytes(16))
    cohort = Cohort((ids[0],), (1 / plan.size,), normalise=False, everyone=ids, expected=float(plan.size))
    try:
        with torch.random.fork_rng(devices=[]):
            for number in (*_ROUNDS, *algorithm.turning_points):
                state = _round(job, PrivateRound(plan, job, cohort, number), state, number)
    except (ParleyError, StopIteration) as error:
        raise UnsupportedError(f"{where}: {error}") from None


def _round(job: Job, private: PrivateRound, state: State, number: int) -> State:
    inner, cohort = private.open(state)
    course = job.algorithm.round(job.server, inner, cohort, number, Key())
    try:
        question, exchange = next(course), 0
        while True:
            asked = Question.of(question)
            sent = private.messages(asked.asked, asked.messages, cohort)
            answers: dict[str, Message] = {}
            for client in cohort.ids:
                context = Context(client, number, asked.asked, exchange, Key(), Secrets(bytes(16), (number,), client))
                answer = _answer(job, private, sent[client], context) if client in sent else None
                if answer is not None:
                    answers[client] = answer
            question, exchange = course.send(private.replies(answers)), exchange + 1
    except StopIteration as end:
        new = end.value[0] if isinstance(end.value, tuple) else end.value
        return private.close(new)


def _answer(job: Job, private: PrivateRound, message: Message, context: Context) -> Message | None:
    """The client's reply through both halves of the channels; None if it fails, as it may in earnest."""
    try:
        data = job.federation.client(context.id)
        few = ClientData(data.x[:_SAMPLES], data.y[:_SAMPLES])
        reply = job.algorithm.answers(context.asked)(job.server, message, Memory(), few, context)
    except Exception:
        return None
    if reply.message.scalars:
        raise UnsupportedError(f"it sends the scalar '{next(iter(reply.message.scalars))}', which cannot be clipped.")
    channels = told(job.channels, message)
    sent = channels.send(reply, Memory(), context)
    private.note(context.id, sent.message)
    form = job.algorithm.reply_form(job.server, context.asked, message)
    return channels.receive(sent.message, form, context).message if form else Message()
