"""What the server of a study really receives: one round with one victim, through the study's channels.

The method's own functions answer, in the runtime `inline`, and every exchange is written down as the server sees it:
what it asked, and the reply after its half of the channels. Nothing else reaches an attack but the task (model, loss,
sizes), which the server has anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parley.algorithms.protocol import Algorithm, Cohort, as_algorithm
from parley.channels import Channel, Channels
from parley.core.context import Context
from parley.core.errors import InputError, ParleyError
from parley.core.key import Key
from parley.core.message import Message, State
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.engine.exchange import Round
from parley.engine.listeners import Listener
from parley.engine.reading import Reading
from parley.engine.settings import Faults
from parley.privacy import privacy_plan
from parley.runtimes import runtimes
from parley.runtimes.protocol import Job, Stamp
from parley.store.memories import Memories
from parley.study.channel_names import stages
from parley.study.study import Study
from parley.study.task import make_task
from parley.training.task import Task


@dataclass(frozen=True)
class SeenExchange:
    """One exchange with one recipient, as the server has it."""

    asked: str
    recipient: Any
    sent: Message
    received: Message


@dataclass(frozen=True)
class Intercepted:
    """All that a round told the server about its victim."""

    exchanges: tuple[SeenExchange, ...]
    channels: Channels
    context: Context
    """The victim's, without its secrets: what the server needs to undo channels."""

    def reply(self, asked: str = "client") -> SeenExchange | None:
        """The first exchange that this function answered; None if there was none."""
        return next((each for each in self.exchanges if each.asked == asked), None)


@dataclass
class _Recorder(Listener):
    recorded: list[SeenExchange] = field(default_factory=list)

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, Message], replies: Mapping[Any, Message]
    ) -> None:
        self.recorded += [
            SeenExchange(asked, recipient, sent[recipient], reply) for recipient, reply in replies.items()
        ]


@dataclass(frozen=True)
class Prepared:
    """A study made ready to be watched: its method, its task and its server's state."""

    study: Study
    algorithm: Algorithm
    task: Task
    federation: Federation
    state: State

    @classmethod
    def of(cls, study: Study) -> Prepared:
        """Before the first round."""
        algorithm = as_algorithm(study.algorithm)
        if algorithm.needs.pooled:
            raise InputError(f"{algorithm.title} trains on data in one place: whoever trains it has them already.")
        federation = study.federation()
        if federation.info.kind == "text":
            raise InputError("attacks rebuild inputs that are numbers; the inputs of this study are token ids.")
        task = make_task(federation, study.model, study.seed, study.loss, study.buffers)
        return cls(study, algorithm, task, federation, algorithm.init(task, Key(study.seed).fold("init")))

    def channels(self, further: Sequence[Channel] = ()) -> Channels:
        """The study's own, with these after them; under differential privacy, with its clipping and local noise."""
        up = (*stages(self.study.channels), *further)
        if (private := self.study.privacy) is not None:
            if private.quantile is not None:
                raise InputError("attacks clip to a fixed norm; leave out privacy.quantile.")
            plan = privacy_plan(private, self.study.sampling, len(self.federation), self.study.rounds)
            up = (*up, *plan.stages)
        return Channels.of(self.algorithm, up)


def intercept(prepared: Prepared, victim: ClientData, key: Key, further: Sequence[Channel] = ()) -> Intercepted:
    """One round in which the server asks one client that has these samples; `further` channels after the study's."""
    name = "victim"
    alone = Federation(
        prepared.federation.info,
        (name,),
        InMemory((victim,)),
        test=prepared.federation.test,
        public=prepared.federation.public,
    )
    channels = prepared.channels(further)
    job = Job(prepared.algorithm, prepared.task, alone, channels, key.fold("secrets").digest)
    recorder, runtime = _Recorder(), runtimes["inline"](job, 1)
    cohort = Cohort((name,), (1.0,), everyone=(name,), since={name: None})
    current = Round(
        job,
        runtime,
        Memories(),
        Faults(quorum=0),
        key.fold("round"),
        Reading(job, cohort, 1),
        lambda _: None,
        Stamp("", 1, 0, 0),
        [recorder],
    )
    try:
        current.play(prepared.state)
    except ParleyError:
        if not recorder.recorded:
            raise
    finally:
        runtime.close()
    if name in current.failures:
        raise InputError(f"{prepared.algorithm.title}: the victim {current.failures[name].reason}")
    context = Context(name, 1, "client", 0, current.key.fold("recipient", name), Context.alone(key).secrets)
    return Intercepted(tuple(recorder.recorded), channels, context)


def drawn(federation: Federation, samples: int, key: Key) -> ClientData:
    """A random client's random samples, so many of them."""
    draw = key.numpy()
    sizes = federation.sizes() if len(federation) <= _LOOKED_AT else federation.sizes(federation.ids[:_LOOKED_AT])
    able = [number for number, size in enumerate(sizes) if size >= samples]
    if not able:
        raise InputError(f"no client has {samples} samples; attack smaller batches.")
    data = federation.client(federation.ids[int(draw.choice(able))])
    rows = sorted(draw.choice(len(data), samples, replace=False).tolist())
    return ClientData(data.x[rows].clone(), data.y[rows].clone())


_LOOKED_AT = 10_000
"""Clients among which victims are drawn."""
