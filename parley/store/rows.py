"""Rows of the run store: records as SQLite keeps them, each with its checksum, and back."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError
from parley.core.text import printable
from parley.store.database import checksum

if TYPE_CHECKING:
    from parley.store.records import Failure, RoundRecord

_NUMBERS = struct.Struct("<qqqdddd")
TOTALS = ("up/bytes", "down/bytes", "seconds")
"""Metrics of which a run's total says more than its last round's value."""
_LARGEST = 2**28
"""Bytes of the values of one metric's clients, unpacked; more is no federation of ours."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Rows that are not as they were written, as one sentence."""
    try:
        yield
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        OSError,
        zlib.error,
        struct.error,
    ) as error:
        raise InputError(f"the run store {path} is damaged ({printable(error)}); restore it from a copy.") from error


def verify(matches: bool, what: str) -> None:
    """Inside `reading`: this is not as it was written."""
    if not matches:
        raise ValueError(f"{what} is not as it was written")


def insert_record(db: sqlite3.Connection, number: int, record: RoundRecord, committed: float) -> None:
    """Write one round of run `number`, in place of an earlier record of the same round."""
    key = (number, record.number)
    if db.execute("DELETE FROM rounds WHERE run = ? AND round = ?", key).rowcount:
        for table in ("metrics", "failures"):
            db.execute(f"DELETE FROM {table} WHERE run = ? AND round = ?", key)
    names = json.dumps(sorted(record.metrics), separators=(",", ":"))
    lost = _failures_checksum(record.failures)
    row = (record.number, stored(committed), names, lost)
    db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", (number, *row, checksum(*row)))
    metrics = []
    for name, metric in record.metrics.items():
        clients = _pack(metric.clients)
        line = (name, record.number, stored(metric.value), *_summary(metric.clients), zlib.crc32(clients or b""))
        metrics.append((number, *line, metric_checksum(*line), clients))
    db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", metrics)
    db.executemany(
        "INSERT INTO failures VALUES (?, ?, ?, ?, ?)",
        [(*key, index, failure.client, failure.reason) for index, failure in enumerate(record.failures)],
    )


def read_records(db: sqlite3.Connection, number: int, last: int | None, count: int) -> list[RoundRecord]:
    """All records of run `number`, which has `count` of them up to round `last`; a ValueError if one is damaged."""
    # Imported here because listing runs must not wait for torch.
    from parley.store.records import Failure, Metric, RoundRecord

    rounds = _rounds(db, number)
    verify((max(rounds, default=None), len(rounds)) == (last, count), "the list of rounds")
    metrics: dict[int, dict[str, Metric]] = {round: {} for round in rounds}
    for row in db.execute(
        "SELECT metric, round, value, n, min, mean, max, packed, checksum, clients FROM metrics WHERE run = ?",
        (number,),
    ):
        name, round, value, n, _, _, _, sum_of_clients, total, packed = row
        clients = _unpack(packed)
        if metric_checksum(*row[:-2]) != total or zlib.crc32(packed or b"") != sum_of_clients or len(clients) != n:
            verify(False, f"a metric of round {round}")
        if name not in rounds[round][0] or name in metrics[round]:
            verify(False, f"the list of metrics of round {round}")
        metrics[round][name] = Metric(_number(value), clients)
    failures: dict[int, list[Failure]] = {round: [] for round in rounds}
    for round, client, reason in db.execute(
        "SELECT round, client, reason FROM failures WHERE run = ? ORDER BY round, position", (number,)
    ):
        failures[round].append(Failure(client, reason))
    for round, (names, lost) in rounds.items():
        verify(len(metrics[round]) == len(names), f"the list of metrics of round {round}")
        verify(_failures_checksum(failures[round]) == lost, f"the list of failures of round {round}")
    return [RoundRecord(round, metrics[round], tuple(failures[round])) for round in sorted(rounds)]


def read_series(db: sqlite3.Connection, number: int, metric: str) -> list[tuple[int, float]]:
    """(round, value) of one metric; a ValueError if one is damaged or missing."""
    points = {}
    for row in db.execute(
        "SELECT metric, round, value, n, min, mean, max, packed, checksum FROM metrics WHERE run = ? AND metric = ? "
        "ORDER BY round",
        (number, metric),
    ):
        if metric_checksum(*row[:-1]) != row[-1]:
            verify(False, f"a metric of round {row[1]}")
        points[row[1]] = _number(row[2])
    # A value and the list of a round's metrics would have to be lost together to go unnoticed.
    rows = db.execute("SELECT round, metrics FROM rounds WHERE run = ?", (number,))
    verify({round for round, names in rows if metric in _names(names)} == points.keys(), f"the values of {metric}")
    return list(points.items())


Points = dict[str, tuple[list[int], list[float]]]
"""Metric -> the rounds in which it was measured, and its values."""


def read_curves(db: sqlite3.Connection, number: int, wanted: Collection[str] | None = None) -> Points:
    """The metrics of run `number` (these, else all) without the clients' values; a ValueError if one is damaged."""
    curves: Points = {}
    begun: dict[str, int] = {}
    crc, pack, nan = zlib.crc32, _NUMBERS.pack, math.nan  # a long run has many of these rows
    only = "" if wanted is None else f" AND metric IN ({', '.join('?' * len(wanted))})"
    for name, round, value, n, least, mean, most, packed, total in db.execute(
        f"SELECT metric, round, value, n, min, mean, max, packed, checksum FROM metrics WHERE run = ?{only} "
        "ORDER BY metric, round",
        (number, *(wanted or ())),
    ):
        if name not in curves:
            curves[name], begun[name] = ([], []), crc(name.encode())
        if value is None:
            value = nan
        if least is None:
            least = mean = most = nan
        if crc(pack(round, n, packed, value, least, mean, most), begun[name]) != total:
            verify(False, f"a metric of round {round}")
        rounds, values = curves[name]
        rounds.append(round)
        values.append(value)
    listed = Counter(
        name for names, _ in _rounds(db, number).values() for name in names if wanted is None or name in wanted
    )
    verify(listed == {name: len(rounds) for name, (rounds, _) in curves.items()}, "the list of metrics")
    return curves


# The names of a run's metrics are found one after the other, so that it does not matter how many rounds there are.
_LATEST = """WITH RECURSIVE names(metric) AS (
    SELECT min(metric) FROM metrics WHERE run = :run
    UNION ALL
    SELECT (SELECT min(metric) FROM metrics WHERE run = :run AND metric > names.metric) FROM names
    WHERE names.metric IS NOT NULL
)
SELECT m.metric, m.round, m.value, m.n, m.min, m.mean, m.max, m.packed, m.checksum
FROM names CROSS JOIN metrics AS m ON m.run = :run AND m.metric = names.metric
    AND m.round = (SELECT max(round) FROM metrics WHERE run = :run AND metric = names.metric)"""


def read_latest(db: sqlite3.Connection, number: int) -> dict[str, float]:
    """The last value of each metric of run `number`, of `TOTALS` the sum; a ValueError if a last value is damaged.

    SQLite adds up: verifying every row of every run that is listed would take a hundred times as long.
    """
    latest = {}
    for row in db.execute(_LATEST, {"run": number}):
        verify(metric_checksum(*row[:-1]) == row[-1], f"a metric of round {row[1]}")
        latest[row[0]] = _number(row[2])
    sums = db.execute(
        f"SELECT metric, total(value) FROM metrics WHERE run = ? AND metric IN ({', '.join('?' * len(TOTALS))}) "
        "GROUP BY metric",
        (number, *TOTALS),
    )
    return latest | dict(sums)


def read_clients(db: sqlite3.Connection, number: int, metric: str) -> tuple[int, dict[str, float]] | None:
    """The last round in which the metric was measured client by client, and the clients' values."""
    row = db.execute(
        "SELECT round, n, packed, clients FROM metrics WHERE run = ? AND metric = ? AND n > 0 "
        "ORDER BY round DESC LIMIT 1",
        (number, metric),
    ).fetchone()
    if row is None:
        return None
    round, n, total, packed = row
    clients = _unpack(packed)
    verify(zlib.crc32(packed or b"") == total and len(clients) == n, f"a metric of round {round}")
    return round, clients


def read_failures(db: sqlite3.Connection, number: int) -> list[tuple[int, str, str]]:
    """(round, client, reason) of everybody who was missing."""
    rows = db.execute(
        "SELECT round, client, reason FROM failures WHERE run = ? ORDER BY round, position", (number,)
    ).fetchall()
    lost: dict[int, list[tuple[str, str]]] = {}
    for round, client, reason in rows:
        lost.setdefault(round, []).append((client, reason))
    for round, (_, total) in _rounds(db, number).items():
        verify(checksum(*lost.get(round, [])) == total, f"the list of failures of round {round}")
    return rows


def read_names(db: sqlite3.Connection, number: int) -> list[str]:
    """The metrics of run `number`, in alphabetical order; a ValueError if a round is damaged."""
    return sorted(set().union(*(names for names, _ in _rounds(db, number).values())))


def metric_checksum(
    name: str,
    round: int,
    value: float | None,
    n: int,
    min: float | None,
    mean: float | None,
    max: float | None,
    packed: int,
) -> int:
    """As `checksum`, several times as fast: a series has many of these rows."""
    numbers = [math.nan if number is None else number for number in (value, min, mean, max)]
    return zlib.crc32(_NUMBERS.pack(round, n, packed, *numbers), zlib.crc32(name.encode()))


def stored(value: float | None) -> float | None:
    """A number as SQLite gives it back: it keeps NaN as NULL and drops the sign of -0.0."""
    return None if value is None or math.isnan(value) else float(value) + 0.0


def _rounds(db: sqlite3.Connection, number: int) -> dict[int, tuple[frozenset[str], int]]:
    """Round -> the names of its metrics and the checksum of its failures."""
    rounds = {}
    for row in db.execute(
        "SELECT round, committed, metrics, failures, checksum FROM rounds WHERE run = ? ORDER BY round", (number,)
    ):
        if checksum(*row[:-1]) != row[-1] or row[0] in rounds:
            verify(False, f"round {row[0]}")
        rounds[row[0]] = (_names(row[2]), row[3])
    return rounds


@lru_cache(maxsize=256)
def _names(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def _failures_checksum(failures: Sequence[Failure]) -> int:
    return checksum(*[(failure.client, failure.reason) for failure in failures])


def _summary(clients: Mapping[str, float]) -> tuple[int, float | None, float | None, float | None]:
    """n, min, mean, max; the last three over the values that are numbers."""
    values = [value for value in clients.values() if not math.isnan(value)]
    if not values:
        return len(clients), None, None, None
    try:
        mean = math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # beyond the largest float, or infinities of both signs
        mean = sum(value / len(values) for value in values)
    return len(clients), stored(min(values)), stored(mean), stored(max(values))


def _pack(clients: Mapping[str, float]) -> bytes | None:
    # Python's JSON gives back the very same floats, NaN and infinities included.
    values = {client: float(value) for client, value in clients.items()}
    return zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 1) if clients else None


def _unpack(packed: bytes | None) -> dict[str, float]:
    if not packed:
        return {}
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _LARGEST)
    verify(unpacking.eof, "a list of clients")
    values: Any = json.loads(text)
    verify(isinstance(values, dict), "a list of clients")
    verify(all(type(value) is float for value in values.values()), "a client's value")
    return dict(values)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def plain(text: str) -> dict[str, Any]:
    """A JSON object; a ValueError if it is none."""
    value = json.loads(text)
    verify(isinstance(value, dict), "a description")
    return dict(value)
