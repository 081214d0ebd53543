"""The run store: every run's configuration, metrics, failures and checkpoints in one SQLite file, artefacts beside it.

A row is one metric of one round. The clients' values are packed into it, with their number, minimum, mean and maximum
beside them, so that hundreds of long runs stay quick to read. Whatever `commit` was given is in the file completely or
not at all, also when the process is killed or the power fails. What is read is what was written, or an InputError.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.core.errors import InputError, nearest
from parley.core.files import file_errors, write_atomically
from parley.core.text import printable
from parley.store import locks, packed, tables
from parley.store.artefacts import Artefacts
from parley.store.database import checksum, explained, snapshot, transaction
from parley.store.records import RunInfo
from parley.store.rows import (
    insert_record,
    plain,
    read_clients,
    read_latest,
    read_records,
    read_series,
    reading,
    stored,
    verify,
)
from parley.store.schema import connect

if TYPE_CHECKING:
    from pandas import DataFrame

    from parley.store.records import RoundRecord

__all__ = ["RunInfo", "RunStore", "store_path"]

STATUSES = ("running", "finished", "stopped", "failed", "interrupted")
_UNFINISHED = ("running", "stopped", "failed", "interrupted")
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
_COLUMNS = "number, id, name, status, created, fingerprint, config, summary, last, count, saved, checksum"


def store_path(path: Path | str | None = None) -> Path:
    """Where runs are kept: `path`, else $PARLEY_STORE, else parley-runs/runs.db here; a folder means its runs.db."""
    chosen = Path(path or os.environ.get("PARLEY_STORE") or Path("parley-runs") / "runs.db")
    return chosen / "runs.db" if chosen.is_dir() else chosen


class RunStore:
    """One file of runs. Several processes may use it at once; within a process any thread may.

    A store that its user may not write can be read: listed, shown, compared and exported.
    """

    def __init__(self, path: Path | str | None = None, *, create: bool = True) -> None:
        """Open the store; without `create` it must exist already."""
        with file_errors("the run store cannot be reached"):
            self.path = store_path(path)
            self._db = connect(self.path, create=create)
        self._lock = threading.RLock()
        self._claimed: dict[str, str] = {}
        """Runs this process works on -> their status until it says another."""
        self._artefacts = Artefacts(self.path)

    def create(
        self, name: str, config: Mapping[str, Any], fingerprint: str, summary: Mapping[str, Any] | None = None
    ) -> str:
        """Enter a new run and return its id: the name and four letters that make it unique."""
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
        with self._writing():
            while True:
                run = f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
                if not self._db.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone():
                    break
            texts = (fingerprint, json.dumps(dict(config)), json.dumps(dict(summary or {})))
            row = (run, name, "running", stored(time.time()), *texts, None, 0, None)
            self._db.execute("INSERT INTO runs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, checksum(*row)))
        return run

    def claim(self, run: str, config: Mapping[str, Any] | None = None) -> None:
        """Work on the run in this process until `release`, `close` or death; nobody else can meanwhile.

        `config` replaces the stored configuration, where the run goes on for more rounds than it was made for.
        """
        run = self.info(run).id
        changes = {} if config is None else {"config": json.dumps(dict(config))}
        if not locks.acquire(self._artefacts.lock(run)):
            raise InputError(f"run '{run}' is being worked on by another process; wait for it or stop it first.")
        self._claimed[run] = "running"
        try:
            with self._writing():  # the run may have been deleted, or may have ended, before it was ours
                before = self._row(run)["status"]
                if before != "finished":
                    changes["status"] = "running"
                self._change(run, **changes)
            self._claimed[run] = before
        except BaseException:
            self.release(run)
            raise

    def describe(self, run: str, config: Mapping[str, Any]) -> None:
        """Replace the stored configuration of a claimed run, which goes on for more rounds than it was made for."""
        with self._writing():
            self._change(run, config=json.dumps(dict(config)))

    def release(self, run: str) -> None:
        """Let others work on the run; if nothing was committed, it is as it was when it was claimed."""
        if run in self._claimed:
            with suppress(InputError), self._writing():
                if self._row(run)["status"] == "running":
                    self._change(run, status=self._claimed[run])
            del self._claimed[run]
            locks.release(self._artefacts.lock(run))

    def commit(
        self,
        run: str,
        records: Sequence[RoundRecord],
        *,
        checkpoint: Mapping[str, Any] | None = None,
        status: str | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """Write all of it in one transaction, which is on disk when this returns.

        A record replaces an earlier one of the same round. `checkpoint` is the manifest (plain JSON) of the newest
        round then in the store; the two newest are kept. `summary` holds numbers and texts by name.
        """
        if status is not None and status not in STATUSES:
            raise InputError(f"unknown status '{status}' of a run: {nearest(status, STATUSES)}")
        changes = {} if status is None else {"status": status}
        if summary is not None:
            changes["summary"] = json.dumps(dict(summary))
        with self._writing():
            number = self._number(run)
            for record in records:
                insert_record(self._db, number, record, time.time())
            if records:
                packed.drop(self._db, number)
            if status not in (None, "running"):
                with reading(self.path):
                    packed.keep(self._db, number)
            newest = self._count(number)["last"] or 0
            if checkpoint is not None:
                row = (newest, json.dumps(dict(checkpoint)))
                values = (number, *row, checksum(*row))
                self._db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", values)
                self._db.execute(
                    "DELETE FROM checkpoints WHERE run = :run AND round NOT IN "
                    "(SELECT round FROM checkpoints WHERE run = :run ORDER BY round DESC LIMIT 2)",
                    {"run": number},
                )
            self._change(run, **self._count(number), **changes)
        if run in self._claimed:
            self._claimed[run] = status or "running"

    def rewind(self, run: str, round: int) -> None:
        """Forget all rounds after `round`, which a resumed run is about to redo; -1 forgets all."""
        with self._writing():
            number = self._number(run)
            for table in ("rounds", "metrics", "failures", "checkpoints"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ? AND round > ?", (number, round))
            packed.drop(self._db, number)
            self._change(run, **self._count(number))

    def checkpoint(self, run: str) -> tuple[int, dict[str, Any]] | None:
        """The newest checkpoint: its round and its manifest."""
        with self._reading():
            info = self._row(run)
            row = self._db.execute(
                "SELECT round, manifest, checksum FROM checkpoints WHERE run = ? ORDER BY round DESC LIMIT 1",
                (info["number"],),
            ).fetchone()
            verify((row[0] if row else None) == info["saved"], "the list of checkpoints")
            if row is None:
                return None
            verify(checksum(*row[:2]) == row[2], "a checkpoint")
            return row[0], plain(row[1])

    def records(self, run: str) -> list[RoundRecord]:
        """Everything the run recorded, in the order of its rounds."""
        with self._reading():
            row = self._row(run)
            return read_records(self._db, row["number"], row["last"], row["count"])

    def series(self, run: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds in which the metric was measured and its values (NaN where it was not a number)."""
        with self._reading():
            points = read_series(self._db, self._number(run), metric)
        if not points and (names := self.metric_names(run)):
            raise InputError(
                f"run '{run}' has no metric '{printable(metric)}': {nearest(metric, map(printable, names))}"
            )
        values = np.array([value for _, value in points], dtype=np.float64)
        return np.array([round for round, _ in points], dtype=np.int64), values

    def curves(self, run: str, metrics: Iterable[str] | None = None) -> packed.Curves:
        """Every metric's rounds and values, as `series` gives them, at once; `metrics`: of these, those measured."""
        with self._reading():
            return packed.curves(self._db, self._number(run), None if metrics is None else set(metrics))

    def latest(self, run: str) -> dict[str, float]:
        """What the rounds so far say: of each metric the last value, of bytes and seconds the sum."""
        with self._reading():
            return read_latest(self._db, self._number(run))

    def last_clients(self, run: str, metric: str) -> tuple[int, dict[str, float]] | None:
        """The last round in which the metric was measured client by client, and the values; None if it never was."""
        with self._reading():
            return read_clients(self._db, self._number(run), metric)

    def metric_names(self, run: str) -> list[str]:
        with self._reading():
            return packed.names(self._db, self._number(run))

    def failures(self, run: str) -> list[tables.Absence]:
        """Who did not contribute, in which round and why, in the order of the rounds."""
        run = self.info(run).id
        with self._reading():
            rows = packed.failures(self._db, self._number(run))
        return [tables.Absence(client, round, reason) for round, client, reason in rows]

    def runs(self) -> list[RunInfo]:
        """All runs, the oldest first."""
        with self._reading():
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY number").fetchall()
            return [self._info(row) for row in rows]

    def info(self, run: str) -> RunInfo:
        """The run with this id, with an id that begins so, or the newest for 'last'."""
        with self._reading():
            if run == "last":
                rows = self._db.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY number DESC LIMIT 1").fetchall()
                if not rows:
                    raise InputError(f"the run store {self.path} holds no runs yet; 'parley run' makes one.")
                return self._info(rows[0])
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (run,)).fetchall()
            if not rows and run:
                rows = self._db.execute(
                    f"SELECT {_COLUMNS} FROM runs WHERE substr(id, 1, ?) = ?", (len(run), run)
                ).fetchall()
            infos = [self._info(row) for row in rows]
        if len(infos) > 1:
            raise InputError(
                f"'{printable(run)}' could be any of {', '.join(info.id for info in infos)}; write more of its id."
            )
        if not infos:
            raise self._unknown(run)
        return infos[0]

    def finished(self, fingerprint: str, fits: Callable[[RunInfo], bool]) -> str | None:
        """The newest run of this configuration that finished and fits; it may have had more or fewer rounds."""
        known = self._newest_first(fingerprint)
        return next((info.id for info in known if info.status == "finished" and fits(info)), None)

    def unfinished(
        self, fingerprint: str, rounds: int = 0, fits: Callable[[RunInfo], bool] = lambda info: True
    ) -> str | None:
        """The newest run of this configuration that nobody works on and that did not reach its end, or `rounds`."""
        for info in self._newest_first(fingerprint):
            ended = info.status not in _UNFINISHED and info.rounds >= rounds
            if not ended and not locks.is_locked(self._artefacts.lock(info.id)) and fits(info):
                return info.id
        return None

    def _newest_first(self, fingerprint: str) -> list[RunInfo]:
        with self._reading():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM runs WHERE fingerprint = ? ORDER BY number DESC", (fingerprint,)
            )
            return [self._info(row) for row in rows.fetchall()]

    def folder(self, run: str) -> Path:
        """Where the run's artefacts are; it exists."""
        return self._artefacts.make(self.info(run).id)

    def attach(self, run: str, name: str, facts: Mapping[str, Any]) -> None:
        """Keep facts about the run among its artefacts, in place of those that have this name."""
        write_atomically(self.folder(run) / f"{name}.json", json.dumps(dict(facts)).encode(), private=True)

    def attached(self, run: str, name: str) -> dict[str, Any] | None:
        """What was attached under this name; None if nothing was, or it cannot be read."""
        try:
            facts = json.loads((self._artefacts.folder(self.info(run).id) / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None

    def delete(self, run: str) -> None:
        """Remove a run and its artefacts; refused while another process works on it."""
        run = self.info(run).id
        mine = run in self._claimed
        if not mine:
            self.claim(run)
        try:
            with self._writing():
                self._db.execute("DELETE FROM runs WHERE id = ?", (run,))
            self._artefacts.remove(run)
        finally:
            self.release(run)

    def export_csv(self, run: str, path: Path | str) -> None:
        """Write the run as a table: round, metric, client (empty for the round's own value), value."""
        tables.METRICS.write_csv(self.records(self.info(run).id), Path(path))

    def export_parquet(self, run: str, path: Path | str) -> None:
        """The same table as Parquet; needs pyarrow."""
        tables.METRICS.write_parquet(self.records(self.info(run).id), Path(path))

    def export_failures(self, run: str, path: Path | str) -> None:
        """Write who did not contribute as a table, Parquet if the file's name says so: client, round, reason."""
        tables.FAILURES.write(self.records(self.info(run).id), Path(path))

    def frame(self, run: str) -> DataFrame:
        """The run as a pandas DataFrame: round, metric, client (empty for the round's own value), value."""
        return tables.METRICS.frame(self.records(self.info(run).id))

    def close(self) -> None:
        """Release all claims and the file; closing twice does no harm."""
        for run in list(self._claimed):
            self.release(run)
        self._db.close()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self, values: tuple[Any, ...]) -> RunInfo:
        row = self._checked(values)
        status = row["status"]
        verify(status in STATUSES, "a run's status")
        if status == "running" and not locks.is_locked(self._artefacts.lock(row["id"])):
            status = "interrupted"
        when = datetime.fromtimestamp(row["created"])
        config, summary = plain(row["config"]), plain(row["summary"])
        verify(all(isinstance(value, bool | int | float | str | None) for value in summary.values()), "a summary")
        return RunInfo(row["id"], row["name"], status, when, row["last"] or 0, row["fingerprint"], config, summary)

    def _checked(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """A row of the table of runs by column, its checksum verified and its id one that may become a path."""
        row = dict(zip(_COLUMNS.split(", "), values, strict=True))
        self._artefacts.folder(row["id"])
        with reading(self.path):
            verify(checksum(*values[1:-1]) == row["checksum"], f"run '{row['id']}'")
        return row

    def _row(self, run: str) -> dict[str, Any]:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise self._unknown(run)
        with reading(self.path):
            return self._checked(row)

    def _number(self, run: str) -> int:
        return int(self._row(run)["number"])

    def _count(self, number: int) -> dict[str, int | None]:
        last, count = self._db.execute("SELECT max(round), count(*) FROM rounds WHERE run = ?", (number,)).fetchone()
        (saved,) = self._db.execute("SELECT max(round) FROM checkpoints WHERE run = ?", (number,)).fetchone()
        return {"last": last, "count": count, "saved": saved}

    def _change(self, run: str, **changes: Any) -> None:
        """Inside a transaction: other values of a run, and the checksum that goes with them."""
        row = self._row(run) | changes
        row["checksum"] = checksum(*list(row.values())[1:-1])
        columns = ", ".join(f"{name} = :{name}" for name in row)
        self._db.execute(f"UPDATE runs SET {columns} WHERE number = :number", row)

    def _unknown(self, run: str) -> InputError:
        ids = [printable(name) for (name,) in self._db.execute("SELECT id FROM runs")]
        return InputError(f"there is no run '{printable(run)}' in {self.path}: {nearest(run, ids)}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, explained(self.path), reading(self.path), snapshot(self._db):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, explained(self.path), transaction(self._db):
            yield
