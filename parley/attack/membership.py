"""Membership by loss (Yeom et al., 2018): samples that a model was trained on have a smaller loss than others.

The attacker holds samples and asks which of them were in a client's data: it sorts them by the model's loss. The AUC of
that order is the chance that a member comes before a non-member: 0.5 is chance.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata

from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.training.task import Predictor, Task

_SAMPLES = 500
"""Members and others compared at a time."""


def membership(
    task: Task, predict: Predictor, federation: Federation, clients: int, key: Key
) -> tuple[list[float], list[str]]:
    """The AUC against the members of each of so many clients, and their names; none without a test set."""
    if federation.test is None:
        return [], []
    draw = key.numpy()
    ids = [federation.ids[int(i)] for i in draw.choice(len(federation), min(clients, len(federation)), replace=False)]
    outside = _losses(task, predict, _some(federation.test, draw))
    return [auc(_losses(task, predict, _some(federation.client(client), draw)), outside) for client in ids], ids


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The chance that a member's loss is below another sample's, ties counting half."""
    ranks = rankdata(np.concatenate([members, others]))
    below = ranks[len(members) :].sum() - len(others) * (len(others) + 1) / 2
    return float(below / (len(members) * len(others)))


@torch.no_grad()
def _losses(task: Task, predict: Predictor, data: ClientData) -> np.ndarray:
    return np.asarray(task.loss(predict(data.x), data.y).double().numpy())


def _some(data: ClientData, draw: np.random.Generator) -> ClientData:
    if len(data) <= _SAMPLES:
        return data
    rows = np.sort(draw.choice(len(data), _SAMPLES, replace=False))
    return ClientData(data.x[rows], data.y[rows])
