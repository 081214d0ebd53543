"""Stores of earlier formats brought up to date."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from parley.core.errors import InputError
from parley.core.failure import Failure
from parley.store.database import checksum
from parley.store.records import Metric, RoundRecord
from parley.store.rows import insert_record, reading, stored

_OLD = ("runs", "rounds", "metrics", "failures", "checkpoints")


def from_version_1(db: sqlite3.Connection, tables: Sequence[str], path: Path) -> None:
    """Format 1 had no checksums: what it says is taken as it is, inside the caller's transaction.

    Its checkpoints do not say which memories of clients belong to them, so such a run can be read but not resumed
    (`Checkpointer.restore` refuses it).
    """
    found = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    names, plain = sorted(name for name, _ in found), all(sql.startswith("CREATE TABLE ") for _, sql in found)
    if names != sorted(_OLD) or not plain:
        raise InputError(f"{path} has other tables than Parley made; restore it from a copy or move it away.")
    for table in _OLD:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in tables:
        db.execute(statement)
    with reading(path):
        for number, id, name, status, created, *texts in db.execute(
            "SELECT number, id, name, status, created, fingerprint, config, summary FROM old_runs"
        ).fetchall():
            records, times = _records(db, number)
            (saved,) = db.execute("SELECT max(round) FROM old_checkpoints WHERE run = ?", (number,)).fetchone()
            row = (id, name, status, stored(created), *texts, max(records, default=None), len(records), saved)
            db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (number, *row, checksum(*row)))
            for round, record in records.items():
                insert_record(db, number, record, times[round])
        for run, round, manifest in db.execute("SELECT run, round, manifest FROM old_checkpoints").fetchall():
            row = (round, manifest)
            db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", (run, *row, checksum(*row)))
    for table in reversed(_OLD):
        db.execute(f"DROP TABLE old_{table}")


def _records(db: sqlite3.Connection, run: int) -> tuple[dict[int, RoundRecord], dict[int, float]]:
    """The records of a run by round, and when each was committed."""
    times = dict(db.execute("SELECT round, committed FROM old_rounds WHERE run = ? ORDER BY round", (run,)).fetchall())
    metrics: defaultdict[int, dict[str, Metric]] = defaultdict(dict)
    for name, round, value, packed in db.execute(
        "SELECT metric, round, value, clients FROM old_metrics WHERE run = ?", (run,)
    ):
        clients = dict(json.loads(zlib.decompress(packed))) if packed else {}
        metrics[round][name] = Metric(float("nan") if value is None else value, clients)
    failures: defaultdict[int, list[Failure]] = defaultdict(list)
    for round, client, reason in db.execute(
        "SELECT round, client, reason FROM old_failures WHERE run = ? ORDER BY round, position", (run,)
    ):
        failures[round].append(Failure(client, reason))
    return {round: RoundRecord(round, metrics[round], tuple(failures[round])) for round in times}, times
