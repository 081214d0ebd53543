"""The run store's file: its tables, and opening it. Every row carries a checksum of what it says.

SQLite notices when its structure is damaged, not when a number is. `runs` says how many rounds there are,
which is the last and which the last saved, a round which metrics and failures it has, and each row's checksum covers
the rest, so nothing goes missing or changes unnoticed.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from parley.core.errors import InputError
from parley.core.files import file_errors, make_folder
from parley.store.database import can_write, check_tables, explained, open_to_read, open_to_write, transaction

APPLICATION = 0x5041524C  # "PARL", tells our file from another program's
VERSION = 3

TABLES = (
    """CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    created REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    config TEXT NOT NULL,
    summary TEXT NOT NULL,
    last INTEGER,
    count INTEGER NOT NULL,
    saved INTEGER,
    checksum INTEGER NOT NULL
)""",
    """CREATE TABLE rounds (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    committed REAL NOT NULL,
    metrics TEXT NOT NULL,
    failures INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID""",
    # The clients' values come last: reading a series never touches them.
    """CREATE TABLE metrics (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    metric TEXT NOT NULL,
    round INTEGER NOT NULL,
    value REAL,
    n INTEGER NOT NULL,
    min REAL,
    mean REAL,
    max REAL,
    packed INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    clients BLOB,
    PRIMARY KEY (run, metric, round)
) WITHOUT ROWID""",
    """CREATE TABLE failures (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    position INTEGER NOT NULL,
    client TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (run, round, position)
) WITHOUT ROWID""",
    """CREATE TABLE checkpoints (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    round INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (run, round)
) WITHOUT ROWID""",
    # The curves of runs that have ended, in one piece each; they follow from the rows (see `packed`).
    """CREATE TABLE curves (
    run INTEGER PRIMARY KEY REFERENCES runs ON DELETE CASCADE,
    checksum INTEGER NOT NULL,
    packed BLOB NOT NULL
)""",
)


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the store at `path`, making it if `create`; an InputError says why it cannot be used.

    A store that cannot be written is opened to be read.
    """
    if not create and not path.is_file():
        raise InputError(f"there is no run store at {path}; 'parley run' makes one, --store names another.")
    if path.is_file() and not can_write(path):
        return _readable(path)
    with file_errors(f"the folder {path.parent} for the run store cannot be made"):
        make_folder(path.parent, private=True)
    db = open_to_write(path)
    with explained(path):
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _readable(path: Path) -> sqlite3.Connection:
    db = open_to_read(path)
    with explained(path):
        try:
            _version(db, path)
            check_tables(db, TABLES, path)
        except BaseException:
            db.close()
            raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    # Two processes that make the file at the same moment: SQLite does not wait by itself when the journal mode changes.
    deadline = time.monotonic() + 30.0
    while True:
        try:
            _version(db, path)
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise InputError(f"the run store {path} lies on a file system without write-ahead logging; move it.")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    # What a commit says is on disk when it returns: memories and states that it supersedes are removed afterwards.
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    if _version(db, path) == 0:
        _make(db, path)
    check_tables(db, TABLES, path)


def _make(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables in one transaction."""
    with transaction(db):
        if _version(db, path) == 0:  # or another process was faster
            for statement in TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")


# One statement sees one moment: between two of them another process may make the tables.
_HEADER = """SELECT (SELECT application_id FROM pragma_application_id),
                    (SELECT user_version FROM pragma_user_version),
                    (SELECT count(*) FROM sqlite_schema)"""


def _version(db: sqlite3.Connection, path: Path) -> int:
    """The format of the file, 0 if it is empty; refuses what is no run store or one of another format."""
    application, version, tables = db.execute(_HEADER).fetchone()
    if application != APPLICATION and (application or version or tables):
        raise InputError(f"{path} is a database of another program, not a run store; name another file.")
    if version < 0 or (version == 0 and tables):
        raise InputError(f"the run store {path} is damaged; restore it from a copy or move it away.")
    if version > VERSION:
        raise InputError(f"the run store {path} was made by a newer Parley (format {version}); update Parley.")
    if 0 < version < VERSION:
        raise InputError(f"the run store {path} has format {version}, not {VERSION}; move it away, and train again.")
    return int(version)
