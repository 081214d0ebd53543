"""Clients' memories: in RAM while they fit, else on disk; valid only with the checkpoint that accepted them.

On disk each accepted version is a file of its own, `<client>@<round>`. A resumed run takes, for every client, the
newest version not after the checkpoint's round, so redone rounds and replies that were never accepted change nothing.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from parley.core.message import Memory
from parley.core.tree import nbytes
from parley.core.wire import decode, encode
from parley.engine.files import write_atomically

_EMPTY = Memory()


class Memories:
    """What every client keeps, by client."""

    def __init__(self, folder: Path | None = None, budget: int = 2**30) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="parley-memories-") if folder is None else None
        self.folder = folder if folder is not None else Path(str(self._temporary and self._temporary.name))
        self.budget = budget
        self._live: OrderedDict[str, Memory] = OrderedDict()
        self._bytes = 0
        self._unsaved: dict[str, int] = {}
        """Client -> round of a version that is not on disk yet."""
        self._saved: dict[str, int] = {}
        """File stem -> round of the newest version on disk."""
        self._superseded: list[Path] = []

    def __getitem__(self, client: str) -> Memory:
        if not self._live and not self._saved:
            return _EMPTY
        if client in self._live:
            self._live.move_to_end(client)
            return self._live[client]
        stem = _stem(client)
        if stem not in self._saved:
            return _EMPTY
        memory = decode(self._path(stem, self._saved[stem]).read_bytes(), Memory)
        self._keep(client, memory)
        return memory

    def accept(self, number: int, memories: Mapping[str, Memory]) -> None:
        """The memories of replies accepted in round `number`."""
        for client, memory in memories.items():
            self._unsaved[client] = number
            self._keep(client, memory)

    def save(self) -> None:
        """Write all versions that are not on disk yet; they become valid when the checkpoint is committed."""
        for client in list(self._unsaved):
            self._save(client)

    def committed(self) -> None:
        """The checkpoint holds: older versions can go."""
        for path in self._superseded:
            path.unlink(missing_ok=True)
        self._superseded.clear()

    def resume(self, number: int) -> None:
        """Go back to the versions valid after round `number`; later ones and outdated ones are removed."""
        self._live.clear()
        self._unsaved.clear()
        self._saved.clear()
        self._bytes = 0
        for path in sorted(self.folder.glob("*/*@*.safetensors")):
            stem, version = path.stem.split("@")
            if int(version) > number:
                path.unlink()
                continue
            older = self._saved.get(stem)
            if older is not None:
                self._path(stem, min(older, int(version))).unlink()
            self._saved[stem] = max(older or 0, int(version))

    def close(self) -> None:
        """Remove what was kept on disk for this process only."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, client: str, memory: Memory) -> None:
        """Hold it in RAM; those used longest ago go to disk where the budget is exceeded."""
        old = self._live.pop(client, None)
        self._bytes += nbytes(memory.tensors) - (nbytes(old.tensors) if old is not None else 0)
        self._live[client] = memory
        while self._bytes > self.budget and len(self._live) > 1:
            client, memory = next(iter(self._live.items()))
            self._save(client)
            del self._live[client]
            self._bytes -= nbytes(memory.tensors)

    def _save(self, client: str) -> None:
        number = self._unsaved.get(client)
        if number is None:
            return
        stem = _stem(client)
        write_atomically(self._path(stem, number), encode(self._live[client]))
        if stem in self._saved and self._saved[stem] != number:
            self._superseded.append(self._path(stem, self._saved[stem]))
        self._saved[stem] = number
        if self._temporary is not None:  # there are no checkpoints to wait for
            self.committed()
        del self._unsaved[client]

    def _path(self, stem: str, number: int) -> Path:
        return self.folder / stem[:2] / f"{stem}@{number}.safetensors"


def _stem(client: str) -> str:
    return blake2b(client.encode(), digest_size=16).hexdigest()
