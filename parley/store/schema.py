"""The run store's file: its tables, opening it, and SQLite's errors as sentences."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parley.core.errors import InputError

APPLICATION = 0x5041524C  # "PARL", tells our file from another program's
VERSION = 1

_TABLES = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    created REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    config TEXT NOT NULL,
    summary TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE rounds (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    committed REAL NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
-- The clients' values come last: reading a series never touches them.
CREATE TABLE metrics (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    metric TEXT NOT NULL,
    round INTEGER NOT NULL,
    value REAL,
    n INTEGER NOT NULL,
    min REAL,
    mean REAL,
    max REAL,
    clients BLOB,
    PRIMARY KEY (run, metric, round)
) WITHOUT ROWID;
CREATE TABLE failures (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    position INTEGER NOT NULL,
    client TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (run, round, position)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
"""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the store at `path`, making it if `create`; an InputError says why it cannot be used."""
    if not create and not path.is_file():
        raise InputError(f"there is no run store at {path}; 'parley run' makes one, --store names another.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {path.parent} for the run store cannot be made: {error.strerror}.") from None
    with explained(path):
        db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    # Two processes that make the file at the same moment: SQLite does not wait by itself when the journal mode changes.
    deadline = time.monotonic() + 30.0
    while True:
        try:
            _check_owner(db, path)
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise InputError(f"the run store {path} lies on a file system without write-ahead logging; move it.")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    with transaction(db):
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _TABLES.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")


def _check_owner(db: sqlite3.Connection, path: Path) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != APPLICATION and (application or version or tables):
        raise InputError(f"{path} is a database of another program, not a run store; name another file.")
    if version > VERSION:
        raise InputError(f"the run store {path} was made by a newer Parley (format {version}); update Parley.")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; other writers wait."""
    if db.in_transaction:  # left open by an interrupt between two statements
        db.execute("ROLLBACK")
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as one sentence about the store."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        what = {
            sqlite3.SQLITE_NOTADB: "is not a run store; name another file",
            sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a copy or move it away",
            sqlite3.SQLITE_READONLY: "cannot be written; make it writable or name another with --store",
            sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the path is a file you may write",
            sqlite3.SQLITE_BUSY: "is held by another process; try again when it is done",
            sqlite3.SQLITE_FULL: "cannot grow because the disk is full",
        }.get(code)
        if what is None and isinstance(error, sqlite3.ProgrammingError):
            raise
        raise InputError(f"the run store {path} {what or f'failed: {error}'}.") from error
