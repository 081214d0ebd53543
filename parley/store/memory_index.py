"""Where each version of a client's memory lies, and a digest of all current ones that is kept up to date with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from parley.core.errors import InputError
from parley.store.database import check_tables, explained, open_to_read, open_to_write, transaction

_TABLES = (
    """CREATE TABLE versions (
    client TEXT NOT NULL, round INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (client, round)
) WITHOUT ROWID""",
    "CREATE TABLE contents (clients INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_DIGEST = re.compile("[0-9a-f]{16}")
_OLDER = """DELETE FROM versions WHERE EXISTS
    (SELECT 1 FROM versions AS newer WHERE newer.client = versions.client AND newer.round > versions.round)"""


class Version(NamedTuple):
    """The memory of a client after a round, and its record in the file."""

    client: str
    round: int
    offset: int
    length: int
    checksum: int

    def hashed(self) -> int:
        return int.from_bytes(blake2b(repr(tuple(self)).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Contents:
    """How many clients have a memory, and a digest of their current versions: the sum of their hashes, mod 2^64.

    A sum changes with one version at the cost of that version, and does not depend on their order.
    """

    clients: int = 0
    digest: str = f"{0:016x}"

    def replaced(self, old: Version | None, new: Version) -> Contents:
        change = new.hashed() - (old.hashed() if old is not None else 0)
        return Contents(self.clients + (old is None), f"{(int(self.digest, 16) + change) % 2**64:016x}")


class MemoryIndex:
    """The index of one folder of memories."""

    def __init__(self, path: Path, *, writing: bool, durable: bool = True) -> None:
        """`durable`: what was added stays, also when the power fails."""
        self.path = path
        self.db = open_to_write(path) if writing else open_to_read(path)
        with self._explained():
            try:
                if writing:
                    self.db.execute(f"PRAGMA journal_mode = {'WAL' if durable else 'MEMORY'}")
                    self.db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
                    self._make_tables()
                check_tables(self.db, _TABLES, path)
            except BaseException:
                self.db.close()
                raise

    def find(self, client: str, until: int) -> Version | None:
        """The client's newest version not after round `until`."""
        with self._explained():
            row = self.db.execute(
                "SELECT * FROM versions WHERE client = ? AND round <= ? ORDER BY round DESC LIMIT 1", (client, until)
            ).fetchone()
        return self._version(row) if row is not None else None

    def add(self, versions: Iterable[Version]) -> list[Version]:
        """Enter versions, in one transaction with the contents; returns those that they supersede."""
        superseded: list[Version] = []
        with self._explained(), transaction(self.db):
            contents = self.contents()
            for version in versions:
                rows = self.db.execute("SELECT * FROM versions WHERE client = ? ORDER BY round", (version.client,))
                older = [self._version(row) for row in rows]
                contents = contents.replaced(older[-1] if older else None, version)
                superseded += older
                self.db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?)", version)
            self._set(contents)
        return superseded

    def remove(self, versions: Iterable[Version], complete: int) -> None:
        """Forget versions; those of checkpoints since round `complete` are all still there."""
        gone = [(version.client, version.round, version.offset) for version in versions]
        if gone:
            with self._explained(), transaction(self.db):
                self.db.executemany("DELETE FROM versions WHERE client = ? AND round = ? AND offset = ?", gone)
                self.db.execute(f"PRAGMA user_version = {complete}")

    def go_back(self, number: int, contents: Contents) -> None:
        """Keep the versions valid after round `number`, which are these, and no others."""
        with self._explained(), transaction(self.db):
            self.db.execute("DELETE FROM versions WHERE round > ?", (number,))
            self.db.execute(_OLDER)
            self._set(contents)
            self.db.execute(f"PRAGMA user_version = {number}")

    def contents(self) -> Contents:
        """What all newest versions together are, as it was kept up to date."""
        with self._explained():
            row = self.db.execute("SELECT clients, digest FROM contents").fetchone()
        if row is None or type(row[0]) is not int or type(row[1]) is not str or not _DIGEST.fullmatch(row[1]):
            raise self._damaged()
        return Contents(*row)

    def count(self, until: int) -> Contents:
        """What the newest versions not after round `until` are, counted one by one."""
        clients, total = 0, 0
        with self._explained():
            for row in self.db.execute(
                "SELECT client, max(round), offset, length, checksum FROM versions WHERE round <= ? GROUP BY client",
                (until,),
            ):
                clients, total = clients + 1, total + self._version(row).hashed()
        return Contents(clients, f"{total % 2**64:016x}")

    def extents(self) -> Iterator[tuple[int, int]]:
        """(offset, length) of every version, in the order of the file."""
        with self._explained():
            yield from self.db.execute("SELECT offset, length FROM versions ORDER BY offset")

    def complete_since(self) -> int:
        """The versions of checkpoints of this round and later ones are all there."""
        with self._explained():
            return int(self.db.execute("PRAGMA user_version").fetchone()[0])

    def _version(self, row: tuple[Any, ...]) -> Version:
        client, *numbers = row
        if type(client) is not str or not all(type(number) is int and number >= 0 for number in numbers):
            raise self._damaged()
        return Version(*row)

    def _damaged(self) -> InputError:
        return InputError(f"the index of memories {self.path} is damaged; restore it from a copy.")

    def _set(self, contents: Contents) -> None:
        self.db.execute("UPDATE contents SET clients = ?, digest = ?", (contents.clients, contents.digest))

    def _make_tables(self) -> None:
        with transaction(self.db):
            if not self.db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in _TABLES:
                    self.db.execute(statement)
                self.db.execute("INSERT INTO contents VALUES (?, ?)", (0, Contents().digest))

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.path, "the index of memories")
