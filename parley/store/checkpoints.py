"""Checkpoints: the server's state as safetensors files plus a manifest, which the run store commits.

Only tensors that are new objects since the last checkpoint are written (states are values, see `core.tree`), so a
growing ensemble costs what it grew by. Files no manifest needs any more are removed after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.core.message import Payload, State
from parley.core.wire import decode, encode


class Checkpoints:
    """Writes and reads the states of one run; several named states may share tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, tuple[Tensor, list[str]]] = {}
        """id of a tensor on disk -> the tensor itself (kept, so that the id stays its own) and [file, name]."""

    def save(self, number: int, states: Mapping[str, State]) -> dict[str, Any]:
        """Write what changed; returns the manifest to commit."""
        file = f"state-{number:08d}.safetensors"
        fresh: dict[str, Tensor] = {}
        written: dict[int, tuple[Tensor, list[str]]] = {}
        manifest: dict[str, Any] = {}
        for label, state in states.items():
            places: dict[str, list[str]] = {}
            for name, value in state.tensors.items():
                known = self._written.get(id(value)) or written.get(id(value))
                if known is None:
                    key = f"{label}/{name}"
                    fresh[key] = value
                    known = (value, [file, key])
                written[id(value)] = known
                places[name] = known[1]
            manifest[label] = {"tensors": places, "scalars": state.scalars}
        if fresh:
            write_atomically(self.folder / file, encode(Payload(fresh)))
        self._written = written
        return manifest

    def committed(self, manifest: Mapping[str, Any]) -> None:
        """The manifest is in the store: remove the files it does not need."""
        needed = {place[0] for entry in manifest.values() for place in entry["tensors"].values()}
        for path in self.folder.glob("state-*.safetensors"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def load(self, manifest: Mapping[str, Any]) -> dict[str, State]:
        """The states of a manifest."""
        files: dict[str, Payload] = {}
        written: dict[int, tuple[Tensor, list[str]]] = {}
        states = {}
        for label, entry in manifest.items():
            tensors = {}
            for name, (file, key) in entry["tensors"].items():
                if file not in files:
                    files[file] = self._read(file)
                value = files[file].tensor(key)
                written[id(value)] = (value, [file, key])
                tensors[name] = value
            states[label] = State(tensors, entry["scalars"])
        self._written = written
        return states

    def _read(self, file: str) -> Payload:
        path = self.folder / file
        if not path.exists():
            raise InputError(f"the checkpoint file {path} is missing; the run cannot be resumed or exported.")
        return decode(path.read_bytes(), Payload)
