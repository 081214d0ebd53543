"""The run store: every run's configuration, metrics, failures and checkpoints in one SQLite file, artefacts beside it.

A row is one metric of one round. The clients' values are packed into it, with their number, minimum, mean and maximum
beside them, so that hundreds of long runs stay quick to read. Whatever `commit` was given is in the file completely or
not at all, also when the process is killed.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.core.errors import InputError, nearest
from parley.store import locks
from parley.store.schema import connect, explained, transaction
from parley.store.tables import write_csv, write_parquet

if TYPE_CHECKING:
    from parley.store.records import RoundRecord

STATUSES = ("running", "finished", "stopped", "failed", "interrupted")
_UNFINISHED = ("running", "stopped", "failed", "interrupted")
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
_COLUMNS = """number, id, name, status, created, fingerprint, config, summary,
    (SELECT max(round) FROM rounds WHERE run = number)"""


@dataclass(frozen=True)
class RunInfo:
    """What the store knows about a run besides its numbers."""

    id: str
    name: str
    status: str
    """running, finished, stopped (by its user or for lack of a quorum), failed, or interrupted (its process died)."""
    created: datetime
    rounds: int
    """The last round committed."""
    fingerprint: str
    config: dict[str, Any]
    summary: dict[str, Any]


def store_path(path: Path | str | None = None) -> Path:
    """Where runs are kept: `path`, else $PARLEY_STORE, else parley-runs/runs.db here; a folder means its runs.db."""
    chosen = Path(path or os.environ.get("PARLEY_STORE") or Path("parley-runs") / "runs.db")
    return chosen / "runs.db" if chosen.is_dir() else chosen


class RunStore:
    """One file of runs. Several processes may use it at once; within a process any thread may."""

    def __init__(self, path: Path | str | None = None, *, create: bool = True) -> None:
        """Open the store; without `create` it must exist already."""
        self.path = store_path(path)
        self._db = connect(self.path, create=create)
        self._lock = threading.RLock()
        self._claimed: set[str] = set()

    def create(self, name: str, config: Mapping[str, Any], fingerprint: str) -> str:
        """Enter a new run and return its id: the name and four letters that make it unique."""
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
        with self._writing():
            while True:
                run = f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
                if not self._db.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone():
                    break
            self._db.execute(
                "INSERT INTO runs (id, name, status, created, fingerprint, config) VALUES (?, ?, 'running', ?, ?, ?)",
                (run, name, time.time(), fingerprint, json.dumps(dict(config))),
            )
        return run

    def claim(self, run: str, config: Mapping[str, Any] | None = None) -> None:
        """Work on the run in this process until `release`, `close` or death; nobody else can meanwhile.

        `config` replaces the stored configuration, where the run goes on for more rounds than it was made for.
        """
        run = self.info(run).id
        if not locks.acquire(self._lock_file(run)):
            raise InputError(f"run '{run}' is being worked on by another process; wait for it or stop it first.")
        self._claimed.add(run)
        with self._writing():
            self._db.execute("UPDATE runs SET status = 'running' WHERE id = ? AND status != 'finished'", (run,))
            if config is not None:
                self._db.execute("UPDATE runs SET config = ? WHERE id = ?", (json.dumps(dict(config)), run))

    def release(self, run: str) -> None:
        """Let others work on the run."""
        if run in self._claimed:
            self._claimed.discard(run)
            locks.release(self._lock_file(run))

    def commit(
        self,
        run: str,
        records: Sequence[RoundRecord],
        *,
        checkpoint: Mapping[str, Any] | None = None,
        status: str | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """Write all of it in one transaction.

        A record replaces an earlier one of the same round. `checkpoint` is the manifest (plain JSON) of the newest
        round then in the store; the two newest are kept.
        """
        if status is not None and status not in STATUSES:
            raise InputError(f"unknown status '{status}' of a run: {nearest(status, STATUSES)}")
        with self._writing():
            number = self._number(run)
            for record in records:
                self._insert(number, record)
            if checkpoint is not None:
                newest = self._db.execute("SELECT max(round) FROM rounds WHERE run = ?", (number,)).fetchone()[0] or 0
                self._db.execute(
                    "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)",
                    (number, newest, json.dumps(dict(checkpoint))),
                )
                self._db.execute(
                    "DELETE FROM checkpoints WHERE run = ?1 AND round NOT IN "
                    "(SELECT round FROM checkpoints WHERE run = ?1 ORDER BY round DESC LIMIT 2)",
                    (number,),
                )
            if status is not None:
                self._db.execute("UPDATE runs SET status = ? WHERE number = ?", (status, number))
            if summary is not None:
                text = json.dumps(dict(summary))
                self._db.execute("UPDATE runs SET summary = ? WHERE number = ?", (text, number))

    def rewind(self, run: str, round: int) -> None:
        """Forget all rounds after `round`, which a resumed run is about to redo; -1 forgets all."""
        with self._writing():
            number = self._number(run)
            for table in ("rounds", "metrics", "failures", "checkpoints"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ? AND round > ?", (number, round))

    def checkpoint(self, run: str) -> tuple[int, dict[str, Any]] | None:
        """The newest checkpoint: its round and its manifest."""
        rows = self._read(
            "SELECT round, manifest FROM checkpoints WHERE run = ? ORDER BY round DESC LIMIT 1", self._number(run)
        )
        return (rows[0][0], json.loads(rows[0][1])) if rows else None

    def records(self, run: str) -> list[RoundRecord]:
        """Everything the run recorded, in the order of its rounds."""
        # Imported here because listing runs must not wait for torch.
        from parley.store.records import Failure, Metric, RoundRecord

        number = self._number(run)
        metrics: dict[int, dict[str, Metric]] = {}
        for (round,) in self._read("SELECT round FROM rounds WHERE run = ? ORDER BY round", number):
            metrics[round] = {}
        for round, name, value, packed in self._read(
            "SELECT round, metric, value, clients FROM metrics WHERE run = ?", number
        ):
            metrics.setdefault(round, {})[name] = Metric(_number(value), _unpack(packed))
        failures: dict[int, list[Failure]] = {}
        for round, client, reason in self._read(
            "SELECT round, client, reason FROM failures WHERE run = ? ORDER BY round, position", number
        ):
            failures.setdefault(round, []).append(Failure(client, reason))
        return [RoundRecord(round, metrics[round], tuple(failures.get(round, ()))) for round in sorted(metrics)]

    def series(self, run: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds in which the metric was measured and its values (NaN where it was not a number)."""
        rows = self._read(
            "SELECT round, value FROM metrics WHERE run = ? AND metric = ? ORDER BY round", self._number(run), metric
        )
        if not rows and (names := self.metric_names(run)):
            raise InputError(f"run '{run}' has no metric '{metric}': {nearest(metric, names)}")
        values = np.array([_number(value) for _, value in rows], dtype=np.float64)
        return np.array([round for round, _ in rows], dtype=np.int64), values

    def metric_names(self, run: str) -> list[str]:
        return [name for (name,) in self._read("SELECT DISTINCT metric FROM metrics WHERE run = ?", self._number(run))]

    def runs(self) -> list[RunInfo]:
        """All runs, the oldest first."""
        return [self._info(row) for row in self._read(f"SELECT {_COLUMNS} FROM runs ORDER BY number")]

    def info(self, run: str) -> RunInfo:
        """The run with this id, with an id that begins so, or the newest for 'last'."""
        if run == "last":
            rows = self._read(f"SELECT {_COLUMNS} FROM runs ORDER BY number DESC LIMIT 1")
            if not rows:
                raise InputError(f"the run store {self.path} holds no runs yet; 'parley run' makes one.")
            return self._info(rows[0])
        rows = self._read(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", run)
        if not rows and run:
            rows = self._read(f"SELECT {_COLUMNS} FROM runs WHERE substr(id, 1, ?) = ?", len(run), run)
        if len(rows) > 1:
            raise InputError(f"'{run}' could be any of {', '.join(row[1] for row in rows)}; write more of its id.")
        if not rows:
            ids = [name for (name,) in self._read("SELECT id FROM runs")]
            raise InputError(f"there is no run '{run}' in {self.path}: {nearest(run, ids)}")
        return self._info(rows[0])

    def unfinished(self, fingerprint: str, rounds: int = 0) -> str | None:
        """The newest run of this configuration that nobody works on and that did not reach its end, or `rounds`."""
        for run, status, done in self._read(
            "SELECT id, status, (SELECT max(round) FROM rounds WHERE run = number) FROM runs "
            "WHERE fingerprint = ? ORDER BY number DESC",
            fingerprint,
        ):
            ended = status not in _UNFINISHED and (done or 0) >= rounds
            if not ended and not locks.is_locked(self._lock_file(run)):
                return str(run)
        return None

    def folder(self, run: str) -> Path:
        """Where the run's artefacts are; it exists."""
        folder = self.path.parent / "artefacts" / self.info(run).id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def delete(self, run: str) -> None:
        """Remove a run and its artefacts; refused while another process works on it."""
        run = self.info(run).id
        mine = run in self._claimed
        if not mine:
            self.claim(run)
        try:
            with self._writing():
                self._db.execute("DELETE FROM runs WHERE id = ?", (run,))
            shutil.rmtree(self._lock_file(run).parent, ignore_errors=True)
        finally:
            self.release(run)

    def export_csv(self, run: str, path: Path | str) -> None:
        """Write the run as a table: round, metric, client (empty for the round's own value), value."""
        write_csv(self.records(self.info(run).id), Path(path))

    def export_parquet(self, run: str, path: Path | str) -> None:
        """The same table as Parquet; needs pyarrow."""
        write_parquet(self.records(self.info(run).id), Path(path))

    def close(self) -> None:
        """Release all claims and the file; closing twice does no harm."""
        for run in list(self._claimed):
            self.release(run)
        self._db.close()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insert(self, number: int, record: RoundRecord) -> None:
        key = (number, record.number)
        if self._db.execute("DELETE FROM rounds WHERE run = ? AND round = ?", key).rowcount:
            for table in ("metrics", "failures"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ? AND round = ?", key)
        self._db.execute("INSERT INTO rounds VALUES (?, ?, ?)", (*key, time.time()))
        self._db.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (number, name, record.number, float(metric.value), *_summary(metric.clients), _pack(metric.clients))
                for name, metric in record.metrics.items()
            ],
        )
        self._db.executemany(
            "INSERT INTO failures VALUES (?, ?, ?, ?, ?)",
            [(*key, place, failure.client, failure.reason) for place, failure in enumerate(record.failures)],
        )

    def _info(self, row: tuple[Any, ...]) -> RunInfo:
        _, run, name, status, created, fingerprint, config, summary, rounds = row
        if status == "running" and not locks.is_locked(self._lock_file(run)):
            status = "interrupted"
        when = datetime.fromtimestamp(created)
        return RunInfo(run, name, status, when, rounds or 0, fingerprint, json.loads(config), json.loads(summary))

    def _lock_file(self, run: str) -> Path:
        return self.path.parent / "artefacts" / run / "lock"

    def _number(self, run: str) -> int:
        rows = self._read("SELECT number FROM runs WHERE id = ?", run)
        if not rows:
            ids = [name for (name,) in self._read("SELECT id FROM runs")]
            raise InputError(f"there is no run '{run}' in {self.path}: {nearest(run, ids)}")
        return int(rows[0][0])

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, explained(self.path):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, explained(self.path), transaction(self._db):
            yield


def _summary(clients: Mapping[str, float]) -> tuple[int, float | None, float | None, float | None]:
    """n, min, mean, max; the last three over the values that are numbers."""
    values = [value for value in clients.values() if not math.isnan(value)]
    if not values:
        return len(clients), None, None, None
    return len(clients), min(values), math.fsum(values) / len(values), max(values)


def _pack(clients: Mapping[str, float]) -> bytes | None:
    # Python's JSON gives back the very same floats, NaN and infinities included.
    values = {client: float(value) for client, value in clients.items()}
    return zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 1) if clients else None


def _unpack(packed: bytes | None) -> dict[str, float]:
    return dict(json.loads(zlib.decompress(packed))) if packed else {}


def _number(value: float | None) -> float:
    """SQLite keeps NaN as NULL."""
    return math.nan if value is None else float(value)
