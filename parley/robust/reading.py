"""Robust folding as a reading: where a method reads the mean of the replies, it gets what the rule makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch

from parley.algorithms.exchange import Exchange, Question
from parley.algorithms.protocol import Algorithm, Cohort, Replies
from parley.algorithms.summed import SingleReplyError, SummedReplies
from parley.channels.base import Channels
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.form import Form
from parley.core.message import Message, State
from parley.core.tree import Tree
from parley.engine.reading import Collected, Reading, Readings, Stages
from parley.robust import rules
from parley.robust.settings import Robust
from parley.runtimes.protocol import Job
from parley.store.records import Metric

_GROUP = "robust"
"""Where the server's state keeps the last round's result, for centred-clip."""


def obstacle(algorithm: Algorithm) -> str | None:
    """Why a method's replies cannot be folded robustly, as it declares itself; None if they can."""
    if algorithm.needs.pooled:
        return "it trains on data in one place."
    reads = {each.reads: each.name for each in algorithm.exchanges()}
    for what, which in (("each", "single replies"), ("sum", "sums of replies")):
        if what in reads:
            return f"it reads {which} ('{reads[what]}'), and a rule gives one centre in place of their mean."
    return None if "mean" in reads else "it reads no mean of replies."


def check_robust(settings: Robust, algorithm: Algorithm, channels: Channels, central: bool, size: int) -> None:
    """Refuse, before training, what cannot be folded robustly; `size`: clients of a cohort."""
    reason = obstacle(algorithm)
    if channels.closing is not None:
        reason = "of a secure sum no single reply is known; leave out [robust] or secure-sum."
    elif central:
        reason = 'central noise is made for a mean, and a rule has another sensitivity; set privacy.noise = "local".'
    if reason is not None:
        raise UnsupportedError(f"{algorithm.title} cannot be folded robustly: {reason}")
    if (few := settings.obstacle(size)) is not None:
        raise InputError(f"[robust] {few}; change robust.f or cohort.size.")


class RobustReplies(SummedReplies):
    """Replies of which only the rule's centre can be read, as their mean and as their mean change."""

    def __init__(self, centre: Tree, clients: Sequence[str], expected: float | None) -> None:
        super().__init__(centre, Form.like(centre), 1.0, dict.fromkeys(clients, 1 / max(len(clients), 1)), expected)

    def mean(self, group: str, *, optional: bool = False) -> Tree:
        return self.mean_change(group, optional=optional)

    def _refuse(self, what: str = "it reads single replies") -> NoReturn:
        raise SingleReplyError(f"{what.removesuffix(' (summed)')}, but a rule gives one centre in place of the mean.")


class RobustReading(Reading):
    """One round: the replies of the reading below, folded by a rule."""

    about = "robust folding"

    def __init__(self, settings: Robust, below: Reading) -> None:
        super().__init__(below.job, below.cohort, below.number)
        self.settings, self.below, self.needs_someone = settings, below, below.needs_someone
        self._asked, self._centre = "", dict[str, torch.Tensor]()

    def open(self, state: State) -> tuple[State, Cohort]:
        self._centre = state.get(_GROUP)
        return self.below.open(state.replace(**{_GROUP: {}}) if self._centre else state)

    def close(self, state: State) -> State:
        state = self.below.close(state)
        return state.replace(**{_GROUP: self._centre}) if self._centre else state

    def stages(self, question: Question, declared: Exchange, position: int) -> Stages:
        self._asked = question.asked
        return self.below.stages(question, declared, position)

    def replies(self, collected: Collected) -> Replies:
        read = self.below.replies(collected)
        messages, weights = [read.messages[client] for client in read.weights], list(read.weights.values())
        if not messages or not messages[0].tensors:
            return read
        # Who sent what no honest client sends is one of the f, and out already.
        f = max(self.settings.f - sum(failure.malformed for failure in self.failures.values()), 0)
        if (few := self.settings.obstacle(len(messages), f)) is not None:
            raise QuorumError(f"round {self.number}: {few}; the run stopped at its last checkpoint.")
        return RobustReplies(self._folded(messages, weights, f), list(read.weights), read.expected)

    def _folded(self, messages: Sequence[Message], weights: Sequence[float], f: int) -> Tree:
        first = messages[0].tensors
        if any(Form.like(message.tensors) != Form.like(first) for message in messages):
            raise SingleReplyError("its replies differ in their form from client to client.")
        real = {name: value for name, value in first.items() if value.is_floating_point()}
        rows = [[message.tensors[name].double().reshape(-1).numpy() for name in real] for message in messages]
        x = np.stack([np.concatenate([*row, np.empty(0)]) for row in rows])
        pieces = torch.from_numpy(self._rule(x, weights, f, real)).split([value.numel() for value in real.values()])
        centre = {name: piece.reshape(first[name].shape) for name, piece in zip(real, pieces, strict=True)}
        if self.settings.rule == "centred-clip":
            self._centre = self._centre | {f"{self._asked}:{name}": value for name, value in centre.items()}
        whole = {n: torch.stack([message.tensors[n] for message in messages]) for n in first.keys() - real.keys()}
        folded = {n: centre[n].to(v.dtype) for n, v in real.items()} | {n: v.median(0).values for n, v in whole.items()}
        return {name: folded[name] for name in first}

    def _rule(self, x: rules.Matrix, weights: Sequence[float], f: int, real: Tree) -> rules.Matrix:
        chosen, w = self.settings, capped(weights, self.settings.cap)
        x = rules.tamed(x)
        if chosen.bound is not None:
            x = rules.bounded(x, chosen.bound)
        if chosen.mixing:
            x = rules.mixed(x, f)
        match chosen.rule:
            case "mean":
                return rules.mean(x, w)
            case "median":
                return rules.median(x, w)
            case "trimmed-mean":
                return rules.trimmed_mean(x, w, f)
            case "geometric-median":
                return rules.geometric_median(x, w)
            case "krum":
                return rules.krum(x, f)
            case "multi-krum":
                return rules.multi_krum(x, w, f, chosen.m or len(x) - f - 2)
            case "centred-clip":
                last = [self._centre.get(f"{self._asked}:{n}", torch.zeros_like(v)) for n, v in real.items()]
                centre = torch.cat([value.double().reshape(-1) for value in last]).numpy()
                return rules.centred_clip(x, w, centre, chosen.radius, chosen.iterations)


def capped(weights: Sequence[float], cap: float | None) -> rules.Matrix:
    """Weights none of which is more than `cap` times another: a client that claims less only makes all more alike."""
    w = np.array(weights, np.float64)
    if cap is None or not w.max() > 0:
        return np.full(len(w), 1 / len(w))
    least = w[w > 0].min()
    w = w.clip(least, cap * least)
    return np.asarray(w / w.sum())


@dataclass(frozen=True)
class RobustReadings(Readings):
    """Each round folded by the rule."""

    settings: Robust
    below: Readings

    @property
    def shows_clients(self) -> bool:  # type: ignore[override]
        return self.below.shows_clients

    def of(self, job: Job, cohort: Cohort, number: int) -> Reading:
        return RobustReading(self.settings, self.below.of(job, cohort, number))

    def exhausted(self, number: int) -> str | None:
        return self.below.exhausted(number)

    def charged(self, number: int) -> dict[str, Metric]:
        return self.below.charged(number)
