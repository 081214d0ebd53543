"""A node's ledger of one run: at each place of it one question, whatever the server says, and the bytes of its answer.

A place is a round and an exchange; evaluation is one exchange of a round. The same question is answered with the same
bytes, another one is refused for ever. Bytes go once the server is durable beyond them, digests never do. A question is
in the ledger before anything is computed for it and its answer before it leaves, both safe from a power failure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from parley.core.errors import InputError, WireError

FILE = "ledger.db"
EVALUATION = -1
"""The exchange that evaluation is."""
_ANEW = "a server that was restored from an older backup needs a new approval, for a run anew (--again)."
OTHER = f"it was asked this before, with another message; {_ANEW}"
STALE = f"the server that asks has been started again since, and only its newest start is answered; {_ANEW}"
CHANGED = f"it was sent something else before of what is the same in a whole run; {_ANEW}"
FORGOTTEN = f"it has answered this, and keeps the answer no longer; {_ANEW}"
TOLD = (OTHER, STALE, CHANGED, FORGOTTEN)
"""Refusals that say nothing but what the server has done itself, which it may read."""
_TABLES = """
CREATE TABLE answers (
    round INTEGER, exchange INTEGER, asked TEXT NOT NULL, digest BLOB NOT NULL, reply BLOB, size INTEGER,
    PRIMARY KEY (round, exchange)
);
CREATE TABLE fixed (name TEXT PRIMARY KEY, digest BLOB NOT NULL);
CREATE TABLE fence (incarnation INTEGER NOT NULL);
INSERT INTO fence VALUES (0);
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its place."""

    round: int
    exchange: int
    name: str
    digest: bytes
    incarnation: int
    """Which start of the server asks."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What has been answered to the questions of one name."""

    name: str
    rounds: tuple[int, int]
    """The first and the last."""
    count: int
    size: int
    """Bytes."""


class Ledger:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def create(self) -> None:
        """An empty one, unless it is there."""
        if not self.path.exists():
            with self._open("rwc") as file:
                file.executescript(f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")

    def answered(self, asked: Asked) -> bytes | None:
        """The answer that this question has had; None if it has had none. A WireError if there was another one."""
        with self._open() as file:
            (newest,) = file.execute("SELECT incarnation FROM fence").fetchone()
            if asked.incarnation < newest:
                raise WireError(STALE)
            return self._recorded(file, asked)

    def reserve(
        self, asked: Asked, most: int, everywhere: bool = False, fixed: Mapping[str, bytes] | None = None
    ) -> None:
        """Take the place for this question; a WireError if it cannot be had.

        `most`: how many questions of this name a round may ask, or, with `everywhere`, the run. `fixed`: digests of
        what is the same in all questions of the run that have it.
        """
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            self._recorded(file, asked)
            (others,) = file.execute(
                "SELECT count(*) FROM answers WHERE asked = ? AND (? OR round = ?) AND (round, exchange) != (?, ?)",
                (asked.name, everywhere, asked.round, asked.round, asked.exchange),
            ).fetchone()
            if others >= most:
                span = "run" if everywhere else "round"
                raise WireError(f"'{asked.name}' is answered at most {most} times in a {span}.")
            (latest,) = file.execute("SELECT coalesce(max(round), 0) FROM answers").fetchone()
            if asked.round < latest:
                raise WireError(
                    f"it was asked in round {latest} already, so it answers nothing new in round {asked.round}."
                )
            for name, digest in (fixed or {}).items():
                first = file.execute("SELECT digest FROM fixed WHERE name = ?", (name,)).fetchone()
                if first is None:
                    file.execute("INSERT INTO fixed VALUES (?, ?)", (name, digest))
                elif first[0] != digest:
                    raise WireError(CHANGED)
            file.execute(
                "INSERT OR IGNORE INTO answers (round, exchange, asked, digest) VALUES (?, ?, ?, ?)",
                (asked.round, asked.exchange, asked.name, asked.digest),
            )
            file.execute("UPDATE fence SET incarnation = max(incarnation, ?)", (asked.incarnation,))
            file.execute("COMMIT")

    def keep(self, asked: Asked, reply: bytes, durable: int) -> bytes:
        """The answer for good, or the one that another process was faster with; those up to `durable` can go."""
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            before = self._recorded(file, asked)
            if before is None:
                file.execute(
                    "UPDATE answers SET reply = ?, size = ? WHERE round = ? AND exchange = ?",
                    (reply, len(reply), asked.round, asked.exchange),
                )
            file.execute("UPDATE answers SET reply = NULL WHERE round <= ? AND reply IS NOT NULL", (durable,))
            file.execute("COMMIT")
        return reply if before is None else before

    def summary(self) -> list[Answers]:
        """What has been answered in all."""
        query = (
            "SELECT asked, min(round), max(round), count(*), sum(size) FROM answers WHERE size IS NOT NULL "
            "GROUP BY asked ORDER BY min(rowid)"
        )
        with self._open("ro") as file:
            return [Answers(n, (first, last), count, size) for n, first, last, count, size in file.execute(query)]

    @staticmethod
    def _recorded(file: sqlite3.Connection, asked: Asked) -> bytes | None:
        row = file.execute(
            "SELECT digest, reply, size FROM answers WHERE round = ? AND exchange = ?", (asked.round, asked.exchange)
        ).fetchone()
        if row is None:
            return None
        digest, reply, size = row
        if digest != asked.digest:
            raise WireError(OTHER)
        if size is not None and reply is None:
            raise WireError(FORGOTTEN)
        return None if reply is None else bytes(reply)

    @contextmanager
    def _open(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        try:
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            with closing(sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = EXTRA")
                yield file
        except sqlite3.Error as error:
            raise InputError(f"its ledger {self.path} cannot be used ({error}), so it answers nothing.") from None
