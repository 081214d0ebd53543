"""Versions of clients' memories on disk: one file of records, found through an index in SQLite.

A version is (client, round). Its record is written where nothing valid lies, and the place of an older version is used
again only after two checkpoints that superseded it were committed. So neither a kill nor a power failure loses
anything, and the file holds one version per client plus those written since the checkpoint before the last. Neither
opening it nor reading a memory costs RAM for the population, and a checkpoint costs one flush to disk however many
clients it covers. Records carry a checksum; `memory_index` keeps a digest of all, which the run's checkpoint repeats.

Blobs in SQLite, in one table, would be less code, but took 1.9 times as long and 1.7 times the disk (200 of 4,000
clients a round, 31 kB each): every page goes through the log first, then into the file.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from parley.core.errors import InputError, WireError
from parley.core.files import file_errors, make_folder, open_regular, sync_folder
from parley.core.message import Memory
from parley.core.text import printable
from parley.core.wire import decode, encode
from parley.store.free_space import FreeSpace
from parley.store.memory_index import Contents, MemoryIndex, Version

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
        self._space = FreeSpace()
        self._superseded: dict[int, Version] = {}
        """Offset -> versions that the next checkpoint will not need."""
        self._retired: dict[int, Version] = {}
        """Offset -> versions that only the checkpoint before the last needs; they go with the next commit."""
        self._newest = self._safe = 0
        """The newest round of any version, now and when the last checkpoint was committed."""
        self._index: MemoryIndex | None = None
        self._data = -1
        self._end: Callable[[], object] | None = None

    @property
    def used(self) -> bool:
        """Whether anything was ever written; nothing is made on disk before."""
        return self._index is not None or (self.until < _EVER and self._look())

    @property
    def contents(self) -> Contents:
        """What there is: a checkpoint keeps it and `resume` compares."""
        return self._index.contents() if self._index is not None else Contents()

    def read(self, client: str) -> Memory | None:
        """The client's newest version, or None if it has none."""
        if not self.used:
            return None
        assert self._index is not None
        version, gone_on = self._index.find(client, self.until), self._gone_on()
        if version is None and not gone_on:
            return None
        if version is not None and not gone_on:
            body = self._body(version)
            if body is not None:
                with suppress(WireError):
                    return decode(body, Memory, limit=version.length)
            if not self._gone_on():  # whoever writes over a record has removed it from the index before
                raise InputError(
                    f"the memory of client '{printable(client)}' in {self._index.path.parent} is damaged; restore the "
                    "folder from a copy made with the store, or start the run again."
                )
        raise InputError(
            f"the run has gone on since the memory of client '{printable(client)}' was looked up; load it again."
        )

    def version(self, client: str) -> int | None:
        """The round of the client's newest version."""
        if not self.used:
            return None
        assert self._index is not None
        entry = self._index.find(client, self.until)
        return None if entry is None else entry.round

    def __contains__(self, client: str) -> bool:
        return self.version(client) is not None

    def check(self, until: int, expected: Contents) -> None:
        """Refuse memories that are not those after round `until`: missing, older, changed, or gone already."""
        if self._index is None:
            self._look()
        contents = self._index.count(until) if self._index is not None else Contents()
        if contents != expected:
            if self._index is not None and self._gone_on():
                raise InputError("the run has gone on since its checkpoint was looked up; load it again.")
            what = (
                f"are of {contents.clients:,} clients instead of {expected.clients:,}"
                if contents.clients != expected.clients
                else "are of other rounds, or damaged"
            )
            raise InputError(
                f"the memories of clients in {self.folder} do not belong to the run's checkpoint: they {what}; restore "
                "the folder from a copy made with the store, or start the run again."
            )

    def write(self, versions: Iterable[tuple[str, int, Memory]]) -> None:
        """Add versions (client, round, memory). They are safe on disk after `flush`."""
        if self._index is None:
            self._open(self.folder or Path(tempfile.mkdtemp(prefix="parley-memories-")))
            self.resume(0)  # nothing that a dead process may have left here is valid
        assert self._index is not None
        # What an interrupt leaves taken without a row in the index is a gap again when the file is next opened.
        rows: list[Version] = []
        for client, number, memory in versions:
            head, body = _head(client, number), encode(memory)
            length = _HEAD + len(body)
            offset = self._space.take(_rounded(length))
            rows.append(Version(client, number, offset, length, zlib.crc32(body, zlib.crc32(head))))
            self._put(head, offset)
            self._put(body, offset + _HEAD)
        older = self._index.add(rows)
        self._superseded |= {version.offset: version for version in older if version.offset not in self._retired}
        self._newest = max([self._newest, *(version.round for version in rows)])
        if self.temporary:  # there are no checkpoints to wait for
            self._remove(self._superseded)

    def flush(self) -> None:
        """Everything written is safe from now on."""
        if self._index is not None and not self.temporary:
            with file_errors(f"the memories of clients in {self.folder} cannot be written"):
                os.fsync(self._data)

    def committed(self) -> None:
        """The checkpoint holds: versions that neither it nor the one before needs can go."""
        if self._index is None:
            return
        # A version is in one table at a time, so that an interrupt may lose a gap but never opens one twice.
        going, self._retired = self._retired, {}
        while self._superseded:
            offset, version = self._superseded.popitem()
            (self._retired if version.round <= self._safe else going)[offset] = version
        complete, self._safe = self._safe, self._newest
        self._remove(going, complete)

    def resume(self, number: int, expected: Contents | None = None) -> None:
        """Go back to the versions valid after round `number`, which must be those expected; all others are removed."""
        self._superseded.clear()
        self._retired.clear()
        if expected is not None:
            self.check(number, expected)
        if self._index is None and not self._look():
            return
        assert self._index is not None
        self._index.go_back(number, expected or self._index.count(number))
        extents = list(self._index.extents())
        with file_errors(f"the memories of clients in {self.folder} cannot be written"):
            if extents and sum(extents[-1]) > os.fstat(self._data).st_size:
                raise InputError(f"the memories of clients in {self.folder} are cut short; restore them from a copy.")
            self._space = FreeSpace((offset, _rounded(length)) for offset, length in extents)
            os.ftruncate(self._data, self._space.end)
        self._newest = self._safe = number

    def close(self) -> None:
        """Let go of the files; a temporary folder is removed."""
        if self._end is not None:
            self._end()
        self._index = self._end = None

    def _remove(self, going: dict[int, Version], complete: int = 0) -> None:
        assert self._index is not None
        self._index.remove(going.values(), complete)
        end = self._space.end
        while going:
            offset, version = going.popitem()
            self._space.give(offset, _rounded(version.length))
        if self._space.end < end:
            with file_errors(f"the memories of clients beside {self._index.path} cannot be written"):
                os.ftruncate(self._data, self._space.end)

    def _gone_on(self) -> bool:
        assert self._index is not None
        return self.until < _EVER and self._index.complete_since() > self.until

    def _look(self) -> bool:
        """Open what is there."""
        if self.folder is None or not (self.folder / "index.db").exists():
            return False
        self._open(self.folder)
        return True

    def _open(self, folder: Path) -> None:
        writing = self.until == _EVER
        with file_errors(f"the memories of clients in {folder} cannot be opened"):
            if folder.is_symlink() or (folder / "index.db").is_symlink():
                raise InputError(f"{folder} is or holds a link to another place; put the memories themselves there.")
            make_folder(folder, private=True)
            self._data = open_regular(folder / "records", os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY)
            sync_folder(folder)
        try:
            self._index = MemoryIndex(folder / "index.db", writing=writing, durable=not self.temporary)
        except BaseException:
            os.close(self._data)
            raise
        self._end = weakref.finalize(self, _let_go, self._data, self._index.db, folder if self.temporary else None)

    def _put(self, piece: bytes, offset: int) -> None:
        assert self._index is not None
        rest = memoryview(piece)
        try:
            while rest:
                done = os.pwrite(self._data, rest, offset)
                rest, offset = rest[done:], offset + done
        except OSError as error:
            raise InputError(
                f"the memories of clients beside {self._index.path} cannot be written ({error.strerror}); make room "
                "and resume the run from its last checkpoint."
            ) from None

    def _body(self, version: Version) -> bytes | None:
        """The record of a version without its head; None if it is not there as it was written."""
        with file_errors(f"the memories of clients in {self.folder} cannot be read"):
            if version.length < _HEAD or version.offset + version.length > os.fstat(self._data).st_size:
                return None
            head = self._piece(version.offset, _HEAD)
            body = self._piece(version.offset + _HEAD, version.length - _HEAD)
        whole = head == _head(version.client, version.round) and zlib.crc32(body, zlib.crc32(head)) == version.checksum
        return body if whole else None

    def _piece(self, offset: int, length: int) -> bytes:
        pieces = []
        while length > 0 and (piece := os.pread(self._data, length, offset)):
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _head(client: str, number: int) -> bytes:
    return blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).digest() + number.to_bytes(8, "little")


def _rounded(length: int) -> int:
    return -(-length // _STEP) * _STEP


def _let_go(data: int, db: sqlite3.Connection, temporary: Path | None) -> None:
    os.close(data)
    db.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
