"""The federated model, cross-fitted: trained by the study's own algorithm, judged on folds it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from parley.advise.gain.folds import Array, Deal, Setup, Tell, looked_at, rows
from parley.advise.gain.measures import Measure, score
from parley.core.errors import InputError, QuorumError
from parley.data import ClientData
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.store.records import RoundRecord
from parley.study.train import train

_BATCH = 1000


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """What one dealing of the samples gives."""

    losses: dict[int, Array]
    """[n] by client number: each sample's loss, by the model whose training left it out."""
    curves: Array
    """[folds, rounds looked at]: mean held-out loss of each fold's model, round by round."""


def federated_losses(
    setup: Setup, deal: Deal, judged: Sequence[int], measure: Measure, tell: Tell, done: int, total: int
) -> CrossFitted:
    """Train without each fold and judge on it; the number of rounds is chosen without looking at that fold.

    For fold g a first run leaves out g and the next fold, whose samples choose the round; a second run leaves out g
    alone and is judged on g at that round.
    """
    source = setup.federation.source
    held = [np.concatenate([deal.groups(i) for i in judged]) == g for g in range(deal.folds)]
    pool = [source.load(i) for i in judged]
    data = ClientData(torch.cat([client.x for client in pool]), torch.cat([client.y for client in pool]))
    chosen_losses, curves = np.zeros(len(data)), []
    filled = [g for g in range(deal.folds) if held[g].any()]
    for position, g in enumerate(filled):
        inner = filled[(position + 1) % len(filled)]
        choice = int(np.argmin(score(_judge(setup, deal, (g, inner), rows(data, held[inner]), measure))))
        tell("federated models", done + 2 * position + 1, total)
        losses = _judge(setup, deal, (g,), rows(data, held[g]), measure)
        tell("federated models", done + 2 * position + 2, total)
        chosen_losses[held[g]] = losses[0, choice]
        curves.append(losses[0].mean(axis=-1))
    ends = np.cumsum([len(client) for client in pool])[:-1]
    return CrossFitted(dict(zip(judged, np.split(chosen_losses, ends), strict=True)), np.stack(curves))


def _judge(setup: Setup, deal: Deal, out: tuple[int, ...], data: ClientData, measure: Measure) -> Array:
    """[k, rounds looked at, samples] of a run without the folds `out`."""
    judge = _Judge(data, looked_at(setup.rounds), measure)
    task = setup.task
    try:
        train(
            setup.algorithm,
            deal.federation(setup.federation, out),
            model=task.network,
            rounds=setup.rounds,
            cohort=setup.sampling,
            seed=setup.seed,
            loss=task.loss,
            buffers=task.buffers,
            faults=setup.faults,
            evaluation=Evaluation(central=False),
            runtime=setup.runtime,
            workers=setup.workers,
            listeners=[judge],
        )
    except QuorumError as error:
        reason = str(error).partition("; the run stopped")[0]
        raise InputError(f"the federated model could not be trained without fold {out[0]}: {reason}.") from None
    return np.stack([judge.losses[t] for t in judge.rounds], axis=1)


class _Judge(Listener):
    """Measures the server's model at some rounds."""

    def __init__(self, data: ClientData, rounds: Sequence[int], measure: Measure) -> None:
        self.data, self.rounds, self.measure = data, rounds, measure
        self.losses: dict[int, Array] = {}
        self._run: Run | None = None

    def start(self, run: Run, rounds: int) -> None:
        self._run = run
        self._look(0)

    def round(self, record: RoundRecord) -> None:
        if record.number in self.rounds:
            self._look(record.number)

    @torch.no_grad()
    def _look(self, number: int) -> None:
        assert self._run is not None
        predict = self._run.predictor()
        parts = zip(self.data.x.split(_BATCH), self.data.y.split(_BATCH), strict=True)
        self.losses[number] = torch.cat([self.measure(predict(x), y) for x, y in parts], dim=1).numpy()
