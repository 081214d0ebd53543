"""Attackers in a simulation: clients that train on, or send, something else than they should.

    sign-flip   - s x, x being the client's own honest reply
    scaled      s x
    noise       Gaussian noise s times as large as x
    a-little    mean - s deviations of the honest replies, entry by entry (Baruch et al., NeurIPS 2019)
    label-flip  honest training on the class C - 1 - y in place of y

They act at the server's side of the wire, after the channels, so that every runtime gives the same bits; they know what
all honest clients of the round sent. Who attacks follows from the seed and stays the same in all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Exchange, Question
from parley.algorithms.protocol import Cohort, Replies
from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.core.message import Message, State
from parley.data import Federation
from parley.data.sources import Relabelled
from parley.engine.reading import Collected, Reading, Readings, Stages
from parley.engine.settings import Faults
from parley.runtimes.protocol import Job
from parley.store.records import Metric

STRENGTH = {"sign-flip": 1.0, "noise": 10.0, "scaled": 10.0, "a-little": 1.5}
_NAMED = 5


@dataclass(frozen=True)
class Attackers:
    """Who attacks in a run, and how."""

    ids: tuple[str, ...]
    attack: str
    strength: float
    key: Key

    @classmethod
    def of(cls, faults: Faults, federation: Federation, key: Key) -> Attackers:
        """Those that the settings name or draw."""
        if not federation.here:
            raise InputError("faults.attackers are simulated, but the clients of a deployment are real; leave it out.")
        ids, given = federation.ids, faults.attackers
        if isinstance(given, tuple):
            if (unknown := next((name for name in given if name not in ids), None)) is not None:
                raise InputError(f"faults.attackers names '{unknown}', which is no client: {nearest(unknown, ids)}")
            who = tuple(dict.fromkeys(given))
        else:
            count = round(given * len(ids))
            if not count:
                raise InputError(f"faults.attackers = {given:g} of {len(ids)} clients selects no client; raise it.")
            drawn = key.fold("who").numpy().choice(len(ids), count, replace=False)
            who = tuple(ids[i] for i in sorted(drawn.tolist()))
        strength = faults.attack_strength
        return cls(who, faults.attack, STRENGTH.get(faults.attack, 1.0) if strength is None else strength, key)

    def sentence(self, clients: int) -> str:
        """What a run is told at its start."""
        names = ", ".join(f"'{name}'" for name in self.ids[:_NAMED])
        more = f" and {len(self.ids) - _NAMED} more" if len(self.ids) > _NAMED else ""
        how = self.attack if self.attack == "label-flip" else f"{self.attack}, strength {self.strength:g}"
        return f"{len(self.ids)} of {clients} clients attack (simulated; {how}): {names}{more}."

    def flipped(self, federation: Federation) -> Federation:
        """The federation as attackers that flip labels train on it."""
        if self.attack != "label-flip":
            return federation
        if federation.info.kind != "classification":
            raise InputError('faults.attack = "label-flip" needs classes; choose another attack.')
        numbers = torch.arange(federation.info.outputs).flip(0)
        source = Relabelled(federation.source, numbers, frozenset(federation.ids.index(name) for name in self.ids))
        return Federation(
            federation.info,
            federation.ids,
            source,
            held_out=federation.held_out,
            test=federation.test,
            public=federation.public,
        )

    def tampered(self, replies: Mapping[Any, Message], key: Key) -> dict[Any, Message]:
        """What the server has in place of these replies."""
        liars = [client for client in self.ids if client in replies]
        honest = [message.tensors for client, message in replies.items() if client not in set(liars)]
        return dict(replies) | {client: self._lie(replies[client], honest, key.fold(client)) for client in liars}

    def _lie(self, message: Message, honest: list[dict[str, Tensor]], key: Key) -> Message:
        random = key.torch()
        false = {n: self._false(n, v, honest, random) for n, v in message.tensors.items() if v.is_floating_point()}
        return Message(message.tensors | false, message.scalars)

    def _false(self, name: str, value: Tensor, honest: list[dict[str, Tensor]], random: torch.Generator) -> Tensor:
        s = self.strength
        if self.attack == "noise":
            size = float(np.sqrt(np.square(value.double().numpy()).mean())) if value.numel() else 0.0
            return (s * size * torch.randn(value.shape, generator=random, dtype=torch.float64)).to(value.dtype)
        if self.attack == "a-little":
            known = [tree[name].double() for tree in honest if name in tree and tree[name].shape == value.shape]
            if not known:
                return value
            each = torch.stack(known)
            return (each.mean(0) - s * each.std(0, correction=0)).to(value.dtype)
        return -s * value if self.attack == "sign-flip" else s * value


class AttackedReading(Reading):
    """The replies of the reading below, attackers' ones being what they make of them."""

    def __init__(self, attackers: Attackers, below: Reading) -> None:
        super().__init__(below.job, below.cohort, below.number)
        self.attackers, self.below, self.needs_someone = attackers, below, below.needs_someone

    def open(self, state: State) -> tuple[State, Cohort]:
        return self.below.open(state)

    def close(self, state: State) -> State:
        return self.below.close(state)

    def stages(self, question: Question, declared: Exchange, position: int) -> Stages:
        collected = yield from self.below.stages(question, declared, position)
        return Collected(self.attackers.tampered(collected.replies, self.attackers.key.fold(self.number, position)))

    def replies(self, collected: Collected) -> Replies:
        return self.below.replies(collected)


@dataclass(frozen=True)
class AttackedReadings(Readings):
    """Each round with attackers among those who answer."""

    attackers: Attackers
    below: Readings
    _met: dict[int, dict[str, float]] = field(default_factory=dict)

    def of(self, job: Job, cohort: Cohort, number: int) -> Reading:
        members, below = set(cohort.ids), self.below.of(job, cohort, number)
        self._met.clear()
        self._met[number] = {client: 1.0 for client in self.attackers.ids if client in members}
        return below if self.attackers.attack == "label-flip" else AttackedReading(self.attackers, below)

    def charged(self, number: int) -> dict[str, Metric]:
        met = self._met.get(number, {})
        return {"attackers": Metric(float(len(met)), met)}
