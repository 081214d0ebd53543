"""Survival with censoring: Cox's partial likelihood and the concordance index.

A target is one number: the time of the event, or minus the time at which the patient was last seen without it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n]: of each event log(sum of exp(score) over those still at risk) - score, 0 of the others (Cox, 1975).

    At risk are the samples of this batch whose time is not shorter; of equal times those that come first.
    """
    order = torch.argsort(targets.flatten().abs(), descending=True, stable=True)
    scores = outputs.flatten()[order]
    each = torch.logcumsumexp(scores, 0) - scores
    return torch.zeros_like(each).index_put((order,), torch.where(targets.flatten()[order] > 0, each, 0.0))


def concordance(targets: Tensor, outputs: Tensor) -> float:
    """The share of comparable pairs in which the one with the higher score has the event first (Harrell, 1982).

    Comparable: the shorter time ends in the event, or the times are equal and one of them does. Equal scores count half
    a pair.
    """
    y, score = targets.flatten().double().numpy(), outputs.flatten().double().numpy()
    time, event = np.abs(y), y > 0
    earlier = time[:, None] < time[None, :]
    same = (time[:, None] == time[None, :]) & ~event[None, :]
    comparable = event[:, None] & (earlier | same)
    right = (score[:, None] > score[None, :]) + 0.5 * (score[:, None] == score[None, :])
    return float(right[comparable].mean()) if comparable.any() else float("nan")
