"""SQLite files: opening them to write or only to read, transactions, and SQLite's errors as sentences."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from parley.core.errors import InputError
from parley.core.files import file_errors, open_regular, sync_folder
from parley.core.text import printable

_DAMAGED = "is damaged; restore it from a copy or move it away"


def can_write(path: Path) -> bool:
    """Whether the file can be changed; SQLite needs to write beside it too."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the file, which is made, for its user alone, if it is not there."""
    with file_errors(f"{path} cannot be opened"):
        if not path.exists():
            os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
            sync_folder(path.parent)
    with explained(path):
        return _connected(str(path))


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file without changing it; also where nothing can be written.

    SQLite replays what its log holds when it opens a file. Where it cannot do so in place, a copy in RAM is read.
    """
    with explained(path):
        if can_write(path):
            return _query_only(_connected(str(path)))
        log = path.with_name(f"{path.name}-wal")
        if not (log.exists() and log.stat().st_size):
            return _query_only(_connected(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True))
        with suppress(sqlite3.OperationalError):
            db = _connected(f"{path.resolve().as_uri()}?mode=ro", uri=True)
            try:
                db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                return _query_only(db)
            except sqlite3.OperationalError:
                db.close()
                raise
        return _query_only(copied(path))


def copied(path: Path) -> sqlite3.Connection:
    """A copy of the file in RAM, to be changed without changing the file."""
    with file_errors(f"{path} cannot be read"), tempfile.TemporaryDirectory(prefix="parley-store-") as folder:
        for name in (path.name, f"{path.name}-wal"):
            if (path.parent / name).exists():
                shutil.copyfile(path.parent / name, Path(folder) / name)
        with closing(_connected(str(Path(folder) / path.name))) as original:
            copy = _connected(":memory:")
            original.backup(copy)
            return copy


def check_tables(db: sqlite3.Connection, tables: Sequence[str], path: Path) -> None:
    """Refuse a file whose tables are not exactly these: another program's, an older format's, or one with surprises."""
    tables_here = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if tables_here != set(tables):
        raise InputError(f"{path} has other tables than Parley made; restore it from a copy or move it away.")


def checksum(*values: object) -> int:
    """A checksum of numbers, texts and None, as SQLite gives them back."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


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
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """All that is read is of one moment, whatever others write meanwhile."""
    if db.in_transaction:
        db.execute("ROLLBACK")
    try:
        db.execute("BEGIN")
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def explained(path: Path, what: str = "the run store") -> Iterator[None]:
    """SQLite's errors as one sentence about the file."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(f"{printable(error.object)} cannot be stored: it is not Unicode text.") from None
    except UnicodeDecodeError as error:  # a text in the file, or SQLite's own sentence that quotes one
        raise InputError(f"{what} {path} {_DAMAGED}.") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason = {
            sqlite3.SQLITE_NOTADB: "is not a run store; name another file",
            sqlite3.SQLITE_CORRUPT: _DAMAGED,
            sqlite3.SQLITE_READONLY: "cannot be written; make it writable or name another with --store",
            sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the path is a file you may write",
            sqlite3.SQLITE_BUSY: "is held by another process; try again when it is done",
            sqlite3.SQLITE_FULL: "cannot grow because the disk is full",
            sqlite3.SQLITE_IOERR: "cannot be read or written; check the disk",
        }.get(code)
        if reason is None and isinstance(error, sqlite3.ProgrammingError):
            raise
        raise InputError(f"{what} {path} {reason or f'failed: {printable(error)}'}.") from error


def _connected(path: str, *, uri: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False, uri=uri)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def _query_only(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("PRAGMA query_only = ON")
    return db
