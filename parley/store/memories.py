"""Clients' memories: in RAM while all of them fit, on disk where they do not or a run is stored.

A version is valid only with the checkpoint that accepted it. A resumed run takes, for every client, the newest version
not after the checkpoint's round, so redone rounds and replies that were never accepted change nothing. The checkpoint
says how many clients have one and repeats a digest of them; what does not agree with it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parley.core.message import Memory
from parley.core.tree import nbytes
from parley.store.memory_file import MemoryFile
from parley.store.memory_index import Contents

MEMORY = "memory"
"""The folder of a stored run's memories, among its artefacts."""
BUDGET = 2**28
"""Bytes of memories kept in RAM besides those of the cohort at work."""
_AFTERWARDS = 2**26
"""The same once training is over and nobody may ask for them any more."""
_EMPTY = Memory()


class Memories:
    """What every client keeps, by client."""

    def __init__(self, folder: Path | None = None, budget: int | None = None, *, until: int | None = None) -> None:
        """Without a `folder` they go with this object. `until` opens those of a round only to read them."""
        self._file = MemoryFile(folder) if until is None else MemoryFile(folder, until)
        self.budget = BUDGET if budget is None else budget
        self._live: dict[str, Memory] = {}
        """Those accepted since RAM was last made free."""
        self._sizes: dict[str, int] = {}
        """Their bytes."""
        self._bytes = 0
        self._unsaved: dict[str, int] = {}
        """Client -> round of a version that is not on disk yet."""
        self._rounds: dict[str, int] = {}
        """The rounds of those in RAM."""
        self._lost: set[str] = set()

    def __getitem__(self, client: str) -> Memory:
        """The client's memory, empty if it has none. What is read from disk is not held on to."""
        if not self._live and not self._file.used:
            return _EMPTY
        if client in self._lost:
            return _EMPTY
        return self._live.get(client) or self._file.read(client) or _EMPTY

    def __contains__(self, client: str) -> bool:
        return client in self._live or client in self._file

    def version(self, client: str) -> int | None:
        """The round of the client's memory, None if it has none."""
        if not self._live and not self._file.used:
            return None
        if client in self._lost:
            return None
        return self._rounds[client] if client in self._live else self._file.version(client)

    def forget(self, client: str) -> None:
        """The client no longer has its memory: from now on it counts as one without."""
        self._lost.add(client)

    def accept(self, number: int, memories: Mapping[str, Memory]) -> None:
        """The memories of replies accepted in round `number`."""
        for client, memory in memories.items():
            self._unsaved[client], self._live[client], self._rounds[client] = number, memory, number
            self._lost.discard(client)
            size = nbytes(memory.tensors)
            self._bytes += size - self._sizes.get(client, 0)
            self._sizes[client] = size
        self._make_room()

    def save(self) -> Contents:
        """Bring all versions safely to disk; a checkpoint that repeats the result, once committed, makes them valid."""
        self._write()
        self._file.flush()
        return self._file.contents

    def committed(self) -> None:
        """The checkpoint holds: versions older than those of the checkpoint before it can go."""
        self._file.committed()

    def resume(self, number: int, expected: Contents | None = None) -> None:
        """Go back to the versions valid after round `number`; later ones and outdated ones are removed.

        Nothing is changed and an InputError says why if they are not as expected.
        """
        self._forget()
        self._file.resume(number, expected)

    @classmethod
    def stored(cls, folder: Path, number: int, expected: Contents) -> Memories:
        """Those of a stored run, to read: they must be as its checkpoint of round `number` expects."""
        memories = cls(folder, until=number)
        memories._file.check(number, expected)
        return memories

    def rest(self, number: int) -> None:
        """Training is over after round `number`: keep them for whoever asks, with little of them in RAM."""
        if self._file.temporary:
            self.budget = min(self.budget, _AFTERWARDS)
            self._make_room()
        else:
            self.close()
            self._file = MemoryFile(self._file.folder, number)

    def close(self) -> None:
        """Let go of everything; what was on disk for this process only is removed."""
        self._forget()
        self._file.close()

    def _forget(self) -> None:
        self._live.clear()
        self._sizes.clear()
        self._rounds.clear()
        self._unsaved.clear()
        self._bytes = 0

    def _make_room(self) -> None:
        """Above the budget everything goes to disk in one go and RAM is free again.

        To hold on to some would hardly save reading, as there are more of them than fit, but they would lie scattered
        among what every round takes and frees, and keep the process larger than it need be.
        """
        if self._bytes > self.budget:
            self._write()
            self._forget()

    def _write(self) -> None:
        if self._unsaved:
            self._file.write((client, number, self._live[client]) for client, number in self._unsaved.items())
            self._unsaved.clear()
