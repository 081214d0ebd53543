"""What trees that a client fitted say of its samples: thresholds between neighbouring values, leaves with one target.

A threshold is put halfway between two values of a column that are neighbours among the samples of a node: it brackets
both. A leaf's value is the mean of what was fitted over the samples in it; with one sample in it, that sample's own
residual, hence in the first round, where the model is known to be zero, its target. Both are compared with a decoy:
samples that were not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from parley.attack.intercept import SeenExchange
from parley.data import ClientData
from parley.training.losses import Loss

_SAME = 1e-5
"""Relative: trees are fitted in single precision."""
_VALUES = 500
"""Values of a column whose pairs are looked at."""


def tree_evidence(
    exchanges: Iterable[SeenExchange], victim: ClientData, decoy: ClientData, loss: Loss, outputs: int
) -> list[str]:
    """Sentences about the trees in replies; none where there are none."""
    sentences = []
    for answer in exchanges:
        for tree_name, features, thresholds, values in _tensors_of_trees(answer):
            where = f"'{tree_name}' of the reply '{answer.asked}'"
            halves, other = (halfway(features, thresholds, data.x) for data in (victim, decoy))
            if halves > 2 * other:
                sentences.append(
                    f"{halves:.0%} of the thresholds in {where} lie halfway between two values of the victim's "
                    f"({other:.0%} between a decoy's): they bracket its samples."
                )
            alone, other = (alone_in_leaf(values, residuals(data.y, loss, outputs)) for data in (victim, decoy))
            if alone > 2 * other:
                sentences.append(
                    f"{alone:.0%} of the victim's targets stand in a leaf of {where} as they are ({other:.0%} of a "
                    "decoy's): larger leaves hide them."
                )
    return sentences


def halfway(features: Tensor, thresholds: Tensor, x: Tensor) -> float:
    """The share of thresholds halfway between two values of their column; 0 where there are none."""
    columns = x.double().flatten(1)
    middles = {f: _middles(columns[:, f]) for f in features.unique().tolist()}
    shares = [
        bool(len(middles[f]) and float((middles[f] - t).abs().min()) <= _SAME * max(abs(t), 1e-3))
        for f, t in zip(features.flatten().tolist(), thresholds.double().flatten().tolist(), strict=True)
        if abs(t) < 1e30
    ]
    return sum(shares) / len(shares) if shares else 0.0


def alone_in_leaf(values: Tensor, residual: Tensor) -> float:
    """The share of residuals [n, outputs] that are the value of a leaf [leaves, outputs]."""
    apart = torch.cdist(residual.double(), values.double(), compute_mode="donot_use_mm_for_euclid_dist").min(1).values
    return float((apart <= _SAME * residual.double().norm(dim=1).clamp(min=1e-3)).double().mean())


def residuals(y: Tensor, loss: Loss, outputs: int) -> Tensor:
    """The gradient of each sample's loss where the model is zero, [n, outputs]: what the first tree is fitted to."""
    f = torch.zeros(len(y), outputs, dtype=torch.float64, requires_grad=True)
    total = loss(f, y.double() if y.is_floating_point() else y).sum()
    slope: Tensor = torch.autograd.grad(total, f)[0]
    return slope


def _tensors_of_trees(answer: SeenExchange) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Where trees are in a reply, their features and thresholds [nodes], and their leaves' values [leaves, outputs]."""
    tensors = answer.received.tensors
    for name, features in tensors.items():
        prefix, _, last = name.rpartition("features")
        others = [tensors.get(f"{prefix}{part}") for part in ("thresholds", "values")]
        if last == "" and name.endswith("features") and all(value is not None for value in others):
            thresholds, values = (value for value in others if value is not None)
            yield f"{prefix}thresholds", features.flatten(), thresholds.flatten(), values.reshape(-1, values.shape[-1])


def _middles(column: Tensor) -> Tensor:
    known = column.unique()[:_VALUES]
    middles: Tensor = ((known[:, None] + known) / 2)[torch.ones(len(known), len(known)).triu(1).bool()]
    return middles
