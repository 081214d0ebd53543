"""Checkpoints: the server's state as safetensors files plus a manifest, which the run store commits.

Only tensors that are new objects since the last checkpoint are written (states are values, see `core.tree`), so a
growing ensemble costs what it grew by. Files that neither this checkpoint nor the one before needs are removed after
the commit. The manifest has a checksum of every file it needs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from parley.core.errors import InputError, WireError
from parley.core.files import file_errors, read_regular, write_atomically
from parley.core.message import Payload, State
from parley.core.text import printable
from parley.core.wire import decode, encode
from parley.store.memory_index import Contents

if TYPE_CHECKING:
    from parley.store.runs import RunStore

Content = TypeVar("Content")
_FILE = re.compile(r"state-[0-9]{8,20}\.safetensors")


class Checkpoints:
    """Writes and reads the states of one run; several named states may share tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, tuple[Tensor, list[str]]] = {}
        """id of a tensor on disk -> the tensor itself (kept, so that the id stays its own) and [file, name]."""
        self._checksums: dict[str, int] = {}
        """Of the files that the newest manifest needs."""
        self._before: set[str] = set()
        """Files that the newest committed manifest needs."""

    def save(self, number: int, states: Mapping[str, State]) -> dict[str, Any]:
        """Write what changed; returns the manifest to commit."""
        file = f"state-{number:08d}.safetensors"
        fresh: dict[str, Tensor] = {}
        written: dict[int, tuple[Tensor, list[str]]] = {}
        described: dict[str, Any] = {}
        for label, state in states.items():
            positions: dict[str, list[str]] = {}
            for name, value in state.tensors.items():
                known = self._written.get(id(value)) or written.get(id(value))
                if known is None:
                    key = f"{label}/{name}"
                    fresh[key] = value
                    known = (value, [file, key])
                written[id(value)] = known
                positions[name] = known[1]
            described[label] = {"tensors": positions, "scalars": state.scalars}
        checksums = dict(self._checksums)
        if fresh:
            data = encode(Payload(fresh))
            write_atomically(self.folder / file, data, private=True)
            checksums[file] = zlib.crc32(data)
        needed = {position[0] for _, position in written.values()}
        self._checksums = {file: checksums[file] for file in sorted(needed)}
        self._written = written
        return {"states": described, "files": self._checksums}

    def committed(self, manifest: Mapping[str, Any]) -> None:
        """The manifest is in the store: remove the files that neither it nor the one before needs."""
        needed = set(manifest["files"])
        with file_errors(f"files of older checkpoints in {self.folder} cannot be removed"):
            for path in self.folder.glob("state-*.safetensors"):
                if path.name not in needed | self._before:
                    path.unlink(missing_ok=True)
        self._before = needed

    def load(self, manifest: Mapping[str, Any]) -> dict[str, State]:
        """The states of a manifest, exactly as they were saved, or an InputError."""
        files: dict[str, Payload] = {}
        written: dict[int, tuple[Tensor, list[str]]] = {}
        states = {}
        try:
            checksums = dict(manifest["files"])
            for label, entry in manifest["states"].items():
                tensors = {}
                for name, (file, key) in entry["tensors"].items():
                    if file not in files:
                        files[file] = self._read(file, checksums[file])
                    value = files[file].tensor(key)
                    written[id(value)] = (value, [file, key])
                    tensors[name] = value
                states[label] = State(tensors, dict(entry["scalars"]))
        except (KeyError, TypeError, ValueError, AttributeError, WireError) as error:
            raise InputError(
                f"the checkpoint in {self.folder} is damaged ({printable(error)}); the run cannot be "
                "resumed or exported."
            ) from error
        self._written, self._checksums, self._before = written, checksums, set(files)
        return states

    def _read(self, file: str, expected: int) -> Payload:
        if not _FILE.fullmatch(file):
            raise InputError(
                f"a checkpoint in {self.folder} names the file '{printable(file)}', which no Parley named "
                "so; do not trust this store."
            )
        path = self.folder / file
        if not path.exists():
            raise InputError(f"the checkpoint file {path} is missing; the run cannot be resumed or exported.")
        with file_errors(f"the checkpoint file {path} cannot be read"):
            data = read_regular(path)
        if zlib.crc32(data) != expected:
            raise InputError(f"the checkpoint file {path} is damaged; the run cannot be resumed or exported.")
        return decode(data, Payload)


def read_newest(store: RunStore, run: str, read: Callable[[int, dict[str, Any]], Content]) -> Content:
    """What `read` gives of the newest checkpoint, its round and its manifest.

    Of a run that is going on the next one is read where files of this one were removed in the meantime.
    """
    while True:
        checkpoint = store.checkpoint(run)
        if checkpoint is None:
            raise InputError(f"run '{run}' has no checkpoint yet.")
        try:
            return read(*checkpoint)
        except InputError:
            if store.checkpoint(run) == checkpoint:
                raise


def expected_memories(checkpoint: Mapping[str, Any]) -> Contents:
    """What the memories of clients must be at this checkpoint."""
    try:
        return Contents(**checkpoint["memories"])
    except (KeyError, TypeError):
        raise InputError("a checkpoint does not say which memories belong to it; restore the store.") from None
