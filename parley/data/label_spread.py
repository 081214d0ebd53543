"""How a federation's data are spread over its clients, in a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.data.federation import Federation
from parley.data.sources import Pooled

MOST = 2000
"""Larger federations whose clients must be loaded one by one are measured on this many evenly spaced ones."""


def describe(federation: Federation) -> dict[str, Any]:
    """Numbers about the spread: sizes, label entropy (bits) and distance between clients' and pooled labels.

    `total_variation` is the mean over clients of half the L1 distance between the client's label shares and the pooled
    ones: 0 is iid, near 1 means that no client looks like the whole. Regression targets count by decile.
    """
    numbers, counts = label_counts(federation)
    sizes = federation.source.sizes(numbers.tolist())
    shares = counts / counts.sum(axis=1, keepdims=True)
    pooled = counts.sum(axis=0) / counts.sum()
    measured = len(numbers)
    return {
        "name": federation.info.name,
        "kind": federation.info.kind,
        "shape": federation.info.shape,
        "outputs": federation.info.outputs,
        "clients": len(federation),
        "clients_measured": measured,
        "samples": int(sizes.sum()) if measured == len(federation) else round(sizes.mean() * len(federation)),
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "max": int(sizes.max()),
        "test_samples": 0 if federation.test is None else len(federation.test),
        "pooled_label_entropy": float(_entropy(pooled)),
        "mean_label_entropy": float(_entropy(shares).mean()),
        "total_variation": float(np.abs(shares - pooled).sum(axis=1).mean() / 2),
    }


def label_counts(federation: Federation, most: int = MOST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(client numbers [m], counts [m, labels]); m is at most `most` where clients have to be loaded one by one."""
    clients, source = len(federation), federation.source
    numbers = np.arange(clients)
    if isinstance(source, Pooled):
        flat, sizes = source.y[source.index], source.sizes(range(clients))
    else:
        if clients > most:
            numbers = np.linspace(0, clients - 1, most).astype(np.int64)
        parts = [source.load(int(i)).y for i in numbers]
        flat, sizes = torch.cat(parts), np.array([len(y) for y in parts])
    labels = flat.reshape(len(flat), -1)[:, 0].numpy()
    if federation.info.kind == "regression":
        bins = 10
        labels = np.searchsorted(np.quantile(labels, np.arange(0.1, 0.95, 0.1)), labels)
    else:
        bins = max(federation.info.outputs, int(labels.max()) + 1)
    owner = np.repeat(np.arange(len(numbers)), sizes)
    counts = np.bincount(owner * bins + labels, minlength=len(numbers) * bins)
    return numbers, counts.reshape(len(numbers), bins)


def _entropy(shares: NDArray[np.float64]) -> Any:
    """Entropy in bits along the last axis."""
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=-1)
