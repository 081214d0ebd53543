"""Quantile sketches of columns (t-digests of Apache DataSketches), for bins without counts.

A sketch is small, but some values of the data stand in it as they are, the smallest and the largest among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError, WireError
from parley.learn.binning import LARGEST, Floats

_SIZE = 200
"""Compression: centroids are about twice as many at most."""
_MOST = 2**20
"""Bytes of one column's sketch."""


def check_installed() -> Any:
    """The package, or a sentence that says how to get it."""
    try:
        import datasketches
    except ImportError:
        raise InputError("quantile sketches need the package datasketches: pip install 'parley-fl[trees]'.") from None
    return datasketches


def sketch(x: Floats) -> NDArray[np.uint8]:
    """The sketches of all columns as bytes: their lengths, then one after the other."""
    kind = check_installed().tdigest_double
    packed = []
    for column in x.T:
        digest = kind(_SIZE)
        digest.update(np.sort(column[~np.isnan(column)]))
        packed.append(digest.serialize())
    lengths = np.array([len(own) for own in packed], np.int64)
    return np.frombuffer(lengths.tobytes() + b"".join(packed), np.uint8).copy()


def edges_of(packed: Sequence[NDArray[np.uint8]], bins: int, columns: int) -> Floats:
    """Upper edges of each column's bins from all clients' sketches, [columns, bins], padded with the largest number."""
    kind = check_installed().tdigest_double
    merged = [kind(_SIZE) for _ in range(columns)]
    for one in packed:
        for total, own in zip(merged, _unpacked(one, columns), strict=True):
            total.merge(kind.deserialize(own))
    edges = np.full((columns, bins), LARGEST)
    for row, digest in zip(edges, merged, strict=True):
        if not digest.is_empty():
            cuts = np.unique([digest.get_quantile(k / bins) for k in range(1, bins)])
            cuts = cuts[cuts < digest.get_max_value()]
            row[: len(cuts)] = cuts
    return edges


def _unpacked(packed: NDArray[np.uint8], columns: int) -> list[bytes]:
    """Each column's bytes; a WireError where they are not what `sketch` makes."""
    whole = packed.tobytes()
    lengths = np.frombuffer(whole[: 8 * columns], np.int64)
    if len(lengths) < columns or (lengths < 0).any() or (lengths > _MOST).any():
        raise WireError("quantile sketches are cut short.")
    ends = 8 * columns + np.cumsum(lengths)
    if ends[-1] != len(whole):
        raise WireError("quantile sketches are cut short.")
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
