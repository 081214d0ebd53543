"""What has left the server of a stored run, which can be started again at any instant and goes on with the same bits.

An exchange leaves only once it is on disk what it asks of whom (as digests), and who answered the exchange before. A
run that is started again plays the rounds since its checkpoint once more: where a later exchange has left, the same
recipients answer, with the bytes that they keep; nobody is ever asked something else at a place.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from parley.core.errors import InputError, ParleyError
from parley.core.failure import Failure
from parley.core.files import make_folder

_TABLES = """
CREATE TABLE IF NOT EXISTS sent (
    round INTEGER, exchange INTEGER, digests TEXT NOT NULL, answered TEXT, PRIMARY KEY (round, exchange)
);
CREATE TABLE IF NOT EXISTS starts (number INTEGER PRIMARY KEY);
"""
_AT = "WHERE round = ? AND exchange = ?"
Step = tuple[int, int]
"""A round and an exchange."""
RollCall = Mapping[str, Failure | None]
"""Recipient -> why it gave no answer; None if it did."""


class Outbox:
    """Of a run that is kept nowhere (`path` None) nothing is remembered."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last_answers: tuple[Step, RollCall] | None = None
        """Of the last exchange: on disk when the next one leaves."""

    @cached_property
    def incarnation(self) -> int:
        """Which start of the server this is, from 1."""
        if self._path is None:
            return 1
        make_folder(self._path.parent)
        with self._open() as file:
            file.executescript(_TABLES)
            return int(file.execute("INSERT INTO starts DEFAULT VALUES RETURNING number").fetchone()[0])

    def leave(self, position: Step, digests: Mapping[str, str], durable: int) -> RollCall | None:
        """Put an exchange on disk before it leaves.

        Returns who answered it, where a later one has left since; None where everybody is to be asked.
        """
        if self._path is None:
            return None
        assert self.incarnation
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            if self._last_answers is not None and self._last_answers[0] != position:
                before, answers = self._last_answers
                recorded = {name: None if failure is None else asdict(failure) for name, failure in answers.items()}
                file.execute(f"UPDATE sent SET answered = ? {_AT}", (json.dumps(recorded), *before))
            file.execute("DELETE FROM sent WHERE round <= ?", (durable,))
            row = file.execute(f"SELECT digests, answered FROM sent {_AT}", position).fetchone()
            known, answered = ({}, None) if row is None else (json.loads(row[0]), row[1])
            changed = {name for name, digest in digests.items() if known.get(name, digest) != digest}
            if changed or (answered is not None and known.keys() != digests.keys()):
                raise ParleyError(
                    f"round {position[0]}: the server would now ask something else than before it was started again "
                    "(another version of a library, or other settings?), which no node answers; start the run anew."
                )
            file.execute(
                "INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)",
                (*position, json.dumps(known | dict(digests)), answered),
            )
            file.execute("COMMIT")
        if answered is None:
            return None
        return {
            name: None if recorded is None else Failure(**recorded) for name, recorded in json.loads(answered).items()
        }

    def answered(self, position: Step, answers: RollCall) -> None:
        """Who answered; it counts from when the next exchange leaves."""
        self._last_answers = (position, answers)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(str(self._path), timeout=60, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = EXTRA")
                yield file
        except sqlite3.Error as error:
            raise InputError(f"the outbox {self._path} cannot be used: {error}.") from None
