"""A run's curves in one piece: what reports and comparisons of hundreds of long runs read instead of every row.

They follow from the rows, are made when a run ends and dropped as soon as a round changes. A run that has none, because
it is going on or an earlier Parley kept it, is read row by row.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from parley.store.rows import Points, read_curves, read_failures, read_names, verify

Curves = dict[str, tuple[np.ndarray, np.ndarray]]
"""Metric -> the rounds in which it was measured (int64) and its values (float64, NaN where it was not a number)."""
_HEAD = struct.Struct("<I")


@dataclass(frozen=True)
class Packed:
    """All curves of a run, and how many replies were missing."""

    curves: Curves
    failures: int


def curves(db: sqlite3.Connection, number: int, wanted: set[str] | None) -> Curves:
    """The curves of run `number`, of the metrics wanted or all; a ValueError if they are damaged."""
    kept = _read(db, number)
    arrays = _as_arrays(read_curves(db, number, wanted)) if kept is None else kept.curves
    return {name: curve for name, curve in arrays.items() if wanted is None or name in wanted}


def names(db: sqlite3.Connection, number: int) -> list[str]:
    """The metrics of run `number`, in alphabetical order."""
    kept = _read(db, number)
    return read_names(db, number) if kept is None else sorted(kept.curves)


def failures(db: sqlite3.Connection, number: int) -> list[tuple[int, str, str]]:
    """(round, client, reason) of everybody who was missing."""
    kept = _read(db, number)
    return [] if kept is not None and kept.failures == 0 else read_failures(db, number)


def _as_arrays(points: Points) -> Curves:
    return {
        name: (np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64))
        for name, (rounds, values) in points.items()
    }


def keep(db: sqlite3.Connection, number: int) -> None:
    """Inside a transaction: make the curves of run `number` from its rows."""
    (lost,) = db.execute("SELECT count(*) FROM failures WHERE run = ?", (number,)).fetchone()
    blob = _pack(Packed(_as_arrays(read_curves(db, number)), lost))
    db.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?)", (number, zlib.crc32(blob), blob))


def drop(db: sqlite3.Connection, number: int) -> None:
    """Inside a transaction: the rows of run `number` change."""
    db.execute("DELETE FROM curves WHERE run = ?", (number,))


def _read(db: sqlite3.Connection, number: int) -> Packed | None:
    """The curves of run `number`, None if they are not kept; a ValueError if they are damaged."""
    row = db.execute("SELECT checksum, packed FROM curves WHERE run = ?", (number,)).fetchone()
    if row is None:
        return None
    verify(zlib.crc32(row[1]) == row[0], "a run's curves")
    return _unpack(row[1])


def _pack(packed: Packed) -> bytes:
    """The names as JSON, then the rounds, each list of them once, then the values."""
    lists: dict[bytes, int] = {}
    metrics = []
    for name, (rounds, _) in packed.curves.items():
        index = lists.setdefault(rounds.astype("<i8").tobytes(), len(lists))
        metrics.append([name, index])
    head = {
        "rounds": [len(rounds_bytes) // 8 for rounds_bytes in lists],
        "metrics": metrics,
        "failures": packed.failures,
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    values = [values.astype("<f8").tobytes() for _, values in packed.curves.values()]
    return b"".join([_HEAD.pack(len(text)), text, *lists, *values])


def _unpack(blob: bytes) -> Packed:
    (size,) = _HEAD.unpack_from(blob)
    start = _HEAD.size + size
    head = json.loads(blob[_HEAD.size : start])
    lists = []
    for count in head["rounds"]:
        lists.append(np.frombuffer(blob, "<i8", count, start))
        start += 8 * count
    curves = {}
    for name, which in head["metrics"]:
        rounds = lists[which]
        curves[name] = (rounds, np.frombuffer(blob, "<f8", len(rounds), start))
        start += 8 * len(rounds)
    return Packed(curves, head["failures"])
