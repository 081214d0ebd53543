"""Versions of clients' memories on disk: one file of records, found through an index in SQLite.

A version is (client, round). Its record is written where nothing valid lies, and the place of an older version is used
again only after the checkpoint that superseded it was committed. So a process killed at any instant loses nothing, and
the file holds one version per client plus those written since the last checkpoint. Neither opening it nor reading a
memory costs RAM for the population, and a checkpoint costs one flush to disk however many clients it covers.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

from parley.core.errors import InputError
from parley.core.message import Memory
from parley.core.wire import decode, encode
from parley.store.free_space import Space
from parley.store.schema import explained, transaction

_TABLE = """CREATE TABLE IF NOT EXISTS versions (
    client TEXT, round INTEGER, offset INTEGER, length INTEGER, PRIMARY KEY (client, round)
) WITHOUT ROWID"""
_OLDER = """DELETE FROM versions WHERE EXISTS
    (SELECT 1 FROM versions AS newer WHERE newer.client = versions.client AND newer.round > versions.round)"""
_HEAD = 24
"""A record begins with whose and which version it is, and is the encoded memory from here on."""
_STEP = 64
"""Records begin at multiples of this."""
_EVER = 2**62


class MemoryFile:
    """The versions in one folder; without a folder, in a temporary one that goes with this object.

    Whoever goes on writing says with `resume` what counts; before that nothing in the folder does.
    """

    def __init__(self, folder: Path | None, until: int = _EVER) -> None:
        """`until`: the versions valid after this round are meant, later ones are another process's business."""
        self.folder, self.until = folder, until
        self.temporary = folder is None
        self._space = Space()
        self._superseded: dict[int, tuple[str, int, int]] = {}
        """Offset -> client, round and length of versions that can go with the next commit."""
        self._newest = 0
        self._db: sqlite3.Connection | None = None
        self._data = -1
        self._end: Callable[[], object] | None = None

    @property
    def used(self) -> bool:
        """Whether anything was ever written; nothing is made on disk before."""
        return self._db is not None or (self.until < _EVER and self._look())

    def read(self, client: str) -> Memory | None:
        """The client's newest version, or None if it has none."""
        if not self.used:
            return None
        assert self._db is not None
        with explained(self._index):
            found = self._db.execute(
                "SELECT round, offset, length FROM versions WHERE client = ? AND round <= ? "
                "ORDER BY round DESC LIMIT 1", (client, self.until),
            ).fetchone()  # fmt: skip
            gone_on = self.until < _EVER and self._db.execute("PRAGMA user_version").fetchone()[0] > self.until
        if found is None and not gone_on:
            return None
        if found is not None and not gone_on:
            number, offset, length = found
            record = self._record(offset, length)
            # The head is looked at again because whoever writes over a record does so from its beginning.
            if record[:_HEAD] == _head(client, number) == self._record(offset, _HEAD):
                return decode(record[_HEAD:], Memory, limit=length)
        raise InputError(f"the run has gone on since the memory of client '{client}' was looked up; load it again.")

    def version(self, client: str) -> int | None:
        """The round of the client's newest version."""
        if not self.used:
            return None
        assert self._db is not None
        with explained(self._index):
            query = "SELECT max(round) FROM versions WHERE client = ? AND round <= ?"
            number: int | None = self._db.execute(query, (client, self.until)).fetchone()[0]
            return number

    def __contains__(self, client: str) -> bool:
        return self.version(client) is not None

    def write(self, versions: Iterable[tuple[str, int, Memory]]) -> None:
        """Add versions (client, round, memory). They are safe on disk after `flush`."""
        if self._db is None:
            self._open(self.folder or Path(tempfile.mkdtemp(prefix="parley-memories-")))
            self.resume(0)  # nothing that a dead process may have left here is valid
        assert self._db is not None
        # What an interrupt leaves taken without a row in the index is a gap again when the file is next opened.
        rows: list[tuple[str, int, int, int]] = []
        for client, number, memory in versions:
            record = _head(client, number) + encode(memory)
            rows.append((client, number, self._space.take(_rounded(len(record))), len(record)))
            self._put(record, rows[-1][2])
        with explained(self._index), transaction(self._db):
            older = [self._rows(client) for client, _, _, _ in rows]
            self._db.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)", rows)
        for old in older:
            self._superseded |= {offset: (client, number, length) for client, number, offset, length in old}
        self._newest = max([self._newest, *(number for _, number, _, _ in rows)])
        if self.temporary:  # there are no checkpoints to wait for
            self.committed()

    def flush(self) -> None:
        """Everything written is safe from now on."""
        if self._db is not None and not self.temporary:
            os.fsync(self._data)

    def committed(self) -> None:
        """The checkpoint holds: superseded versions can go."""
        if self._db is None or not self._superseded:
            return
        gone = [(client, number, offset) for offset, (client, number, _) in self._superseded.items()]
        with explained(self._index), transaction(self._db):
            self._db.executemany("DELETE FROM versions WHERE client = ? AND round = ? AND offset = ?", gone)
            self._db.execute(f"PRAGMA user_version = {self._newest}")
        end = self._space.end
        while self._superseded:
            offset, (_, _, length) = self._superseded.popitem()
            self._space.give(offset, _rounded(length))
        if self._space.end < end:
            os.ftruncate(self._data, self._space.end)

    def resume(self, number: int) -> None:
        """Go back to the versions valid after round `number`; all others are removed."""
        self._superseded.clear()
        if self._db is None and not self._look():
            return
        assert self._db is not None
        with explained(self._index), transaction(self._db):
            self._db.execute("DELETE FROM versions WHERE round > ?", (number,))
            self._db.execute(_OLDER)
            self._db.execute(f"PRAGMA user_version = {number}")
        taken = self._db.execute("SELECT offset, length FROM versions ORDER BY offset")
        self._space = Space((offset, _rounded(length)) for offset, length in taken)
        os.ftruncate(self._data, self._space.end)
        self._newest = number

    def close(self) -> None:
        """Let go of the files; a temporary folder is removed."""
        if self._end is not None:
            self._end()
        self._db = self._end = None

    def _look(self) -> bool:
        """Open what is there."""
        if self.folder is None or not (self.folder / "index.db").exists():
            return False
        self._open(self.folder)
        return True

    def _open(self, folder: Path) -> None:
        self._index = folder / "index.db"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            how = os.O_RDWR | os.O_CREAT if self.until == _EVER else os.O_RDONLY
            self._data = os.open(folder / "records", how, 0o644)
        except OSError as error:
            raise InputError(f"the memories of clients in {folder} cannot be opened: {error.strerror}.") from None
        with explained(self._index):
            self._db = sqlite3.connect(self._index, timeout=30.0, isolation_level=None, check_same_thread=False)
            if self.until == _EVER:
                self._db.execute(f"PRAGMA journal_mode = {'MEMORY' if self.temporary else 'WAL'}")
                self._db.execute(f"PRAGMA synchronous = {'OFF' if self.temporary else 'FULL'}")
                self._db.execute(_TABLE)
        self._end = weakref.finalize(self, _let_go, self._data, self._db, folder if self.temporary else None)

    def _rows(self, client: str) -> list[tuple[str, int, int, int]]:
        assert self._db is not None
        return self._db.execute("SELECT * FROM versions WHERE client = ?", (client,)).fetchall()

    def _put(self, record: bytes, offset: int) -> None:
        rest = memoryview(record)
        try:
            while rest:
                done = os.pwrite(self._data, rest, offset)
                rest, offset = rest[done:], offset + done
        except OSError as error:
            raise InputError(
                f"the memories of clients beside {self._index} cannot be written ({error.strerror}); make room and "
                "resume the run from its last checkpoint."
            ) from None

    def _record(self, offset: int, length: int) -> bytes:
        pieces = []
        while length > 0 and (piece := os.pread(self._data, length, offset)):
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _head(client: str, number: int) -> bytes:
    return blake2b(client.encode(), digest_size=16).digest() + number.to_bytes(8, "little")


def _rounded(length: int) -> int:
    return -(-length // _STEP) * _STEP


def _let_go(data: int, db: sqlite3.Connection, temporary: Path | None) -> None:
    os.close(data)
    db.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
