"""Each client's own best model, cross-fitted: the models of many clients and folds train at once.

For a client with G folds one model is trained without every pair of folds, and one without every half of a fold. The
rate and the number of rounds with which a sample is predicted are those with the least loss among models that were
trained without the sample's fold, on the other folds they had not seen either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from parley.advise.gain.folds import Array, Deal, Setup, Tell, rows
from parley.advise.gain.measures import Measure, score
from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import Contexts
from parley.core.context import Context
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.runtimes import Call, Job, Stamp, open_runtime
from parley.theory.gain.interval import Groups
from parley.training.stack import Data
from parley.training.task import Task

AT_ONCE = 512
"""Models trained at once, about."""


@dataclass(frozen=True, eq=False)
class OwnLosses:
    """One client's own models' losses, as `HeldOut` wants them."""

    local: Array
    groups: Groups
    without: Array
    chosen: int
    """The best candidate on all folds: rates one after the other, each with all stages."""


@dataclass(frozen=True)
class OwnModel(LocalOnly):
    """Local-only training, several rounds in one call."""

    @exchange(like=LocalOnly.client)
    def client(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        times = int(message.scalars["rounds"])
        steps, epochs = (None if count is None else count * times for count in (self.steps, self.epochs))
        return LocalOnly(self.lr, steps, epochs, self.batch).client(task, message, memory, data, context)

    def broadcast(self, task: Task, state: State, number: int) -> Message:
        return Message.of(rounds=1)


@dataclass(frozen=True, eq=False)
class _Part:
    """A model to train: on which samples, and on which it is judged."""

    data: ClientData
    train: npt.NDArray[np.bool_]
    judged: npt.NDArray[np.bool_]

    @property
    def training(self) -> ClientData:
        return rows(self.data, self.train)

    @property
    def test(self) -> ClientData:
        return rows(self.data, self.judged)


def local_losses(
    setup: Setup,
    deal: Deal,
    judged: Sequence[int],
    measure: Measure,
    methods: Sequence[OwnModel],
    rounds: int,
    tell: Tell,
    done: int,
    total: int,
) -> dict[int, OwnLosses]:
    """The own models' losses of the clients `judged`; `methods` differ in their rate, `rounds` is the most to train."""
    losses_by_client: dict[int, OwnLosses] = {}
    for some in _batches(judged, deal):
        parts = {i: list(_parts(setup.federation.source.load(i), deal.groups(i))) for i in some}
        flat = [part for client_parts in parts.values() for part in client_parts]
        candidates = []
        for method in methods:
            candidates.append(_train(setup, flat, measure, method, rounds))
            tell("own models", done + len(losses_by_client) * len(methods) + len(candidates) * len(some), total)
        losses = iter([np.concatenate(client_parts, axis=1) for client_parts in zip(*candidates, strict=True)])
        for i, client_parts in parts.items():
            losses_by_client[i] = _gather(deal.groups(i), client_parts, [next(losses) for _ in client_parts])
    return losses_by_client


def stages(rounds: int) -> list[int]:
    """The rounds at which own models are judged: 0 (untrained), then in steps of at most a third, to the last."""
    rounds_tried = [0]
    while rounds_tried[-1] < rounds:
        rounds_tried.append(min(rounds, rounds_tried[-1] + max(1, rounds_tried[-1] // 3)))
    return rounds_tried


def _batches(judged: Sequence[int], deal: Deal) -> Iterator[list[int]]:
    some: list[int] = []
    models = 0
    for i in judged:
        count = len(np.unique(deal.groups(i)))
        models += count * (count + 3) // 2
        some.append(i)
        if models >= AT_ONCE:
            yield some
            some, models = [], 0
    if some:
        yield some


def _parts(data: ClientData, groups: Groups) -> Iterator[_Part]:
    """First every pair of folds, then every half of a fold (a whole one where it has one sample)."""
    names = np.unique(groups)
    for g, h in combinations(names.tolist(), 2):
        out = (groups == g) | (groups == h)
        yield _Part(data, ~out, out)
    for g in names.tolist():
        members = np.flatnonzero(groups == g)
        for half in (members[::2], members[1::2]):
            if len(half):
                out = np.isin(np.arange(len(groups)), half)
                yield _Part(data, ~out, out)


def _train(setup: Setup, parts: Sequence[_Part], measure: Measure, method: OwnModel, rounds: int) -> list[Array]:
    """[k, stages, judged samples] for each part."""
    training = tuple(part.training for part in parts)
    ids = tuple(map(str, range(len(parts))))
    task = replace(setup.task, population=len(parts))
    job = Job(method, task, Federation(task.info, ids, InMemory(training)))
    seen = rounds * sum(len(client) for client in training)
    runtime, _ = open_runtime(setup.runtime, job, setup.workers, None, seen)
    look = _Look(task, method, [part.test for part in parts], measure, stacked=runtime.name == "stacked")
    key, memories = Key(setup.seed).fold("own models"), [Memory()] * len(parts)
    alive, losses = list(range(len(parts))), [look(memories, list(range(len(parts))))]
    try:
        for before, t in pairwise(stages(rounds)):
            message = Message({}, {"rounds": t - before})
            contexts = [Context.alone(key.fold("round", t, ids[k]), ids[k], t) for k in alive]
            calls = [Call(ids[k], message, memories[k], context) for k, context in zip(alive, contexts, strict=True)]
            for k, outcome in zip(list(alive), runtime.run(calls, Stamp("", t, 0, t)), strict=True):
                if isinstance(outcome, Reply) and outcome.memory is not None:
                    memories[k] = outcome.memory
                else:
                    alive.remove(k)  # it diverged; its later rounds count as infinitely bad
            losses.append(look(memories, alive))
    finally:
        runtime.close()
    return [np.stack([at[k] for at in losses], axis=1) for k in range(len(parts))]


@dataclass(frozen=True, eq=False)
class _Look:
    """Judges all models of a batch as they stand."""

    task: Task
    method: LocalOnly
    tests: Sequence[ClientData]
    measure: Measure
    stacked: bool

    @torch.no_grad()
    def __call__(self, memories: Sequence[Memory], alive: Sequence[int]) -> list[Array]:
        """[k, judged samples] per model; infinite where a model is no longer alive."""
        many = self.stacked and bool(memories[alive[0]].tensors) if alive else False
        fine = self._together(memories, alive) if many else [self._alone(memories[k], self.tests[k]) for k in alive]
        by_model = dict(zip(alive, fine, strict=True))
        lines = len(fine[0]) if fine else 1
        return [by_model.get(k, np.full((lines, len(test)), np.inf)) for k, test in enumerate(self.tests)]

    def _alone(self, memory: Memory, test: ClientData) -> Array:
        return self.measure(self.method.learned(self.task).outputs(Message(), memory, test.x), test.y).numpy()

    def _together(self, memories: Sequence[Memory], alive: Sequence[int]) -> list[Array]:
        names = list(memories[alive[0]]["model"])
        sizes = [len(self.tests[k]) for k in alive]
        weights = {n: torch.stack([memories[k]["model"][n] for k in alive]) for n in names}
        x, y = (torch.nn.utils.rnn.pad_sequence([getattr(self.tests[k], side) for k in alive], True) for side in "xy")
        module = self.task.network.eval()
        outputs: Tensor = vmap(lambda parameters, points: functional_call(module, parameters, (points,)))(weights, x)
        each = self.measure(outputs.flatten(0, 1), y.flatten(0, 1)).reshape(-1, len(alive), x.shape[1])
        return [each[:, row, :size].numpy() for row, size in enumerate(sizes)]


def _gather(groups: Groups, parts: Sequence[_Part], losses: Sequence[Array]) -> OwnLosses:
    """Choose rate and round for each fold, and take the losses there; [k, candidates, judged samples] of each part."""
    names, labels = np.unique(groups, return_inverse=True)
    G, pairs = len(names), list(combinations(range(len(names)), 2))
    local, without = np.full(len(groups), np.nan), np.full((G, len(groups)), np.nan)
    by_pair = dict(zip(pairs, range(len(pairs)), strict=True))

    def on(g: int, h: int) -> Array:
        """Losses on fold h of the models trained without g and h."""
        index = by_pair[min(g, h), max(g, h)]
        return losses[index][:, :, labels[parts[index].judged] == h]

    # Training that diverges shows by itself, so nobody would choose it: this looks at no held-out sample's loss.
    sound = np.all([np.isfinite(pair_losses[0]).all(axis=-1) for pair_losses in losses[len(pairs) :]], axis=0)
    scores = {(g, h): np.where(sound, score(on(g, h)), np.inf) for g in range(G) for h in range(G) if h != g}
    overall = int(np.argmin(sum(scores.values())))
    for g in range(G):
        chosen = int(np.argmin(sum(scores[g, h] for h in range(G) if h != g)))
        for index in range(len(pairs), len(parts)):
            judged = parts[index].judged
            if labels[judged][0] == g:
                local[judged] = losses[index][0, chosen]
        for h in range(G):
            if h != g:
                # One choice for all: these losses show how the model depends on its samples, not how choices jump.
                without[g, labels == h] = on(g, h)[0, overall]
    return OwnLosses(local, np.asarray(labels, dtype=np.intp), without, overall)
