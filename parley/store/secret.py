"""The root of a stored run's secrets: apart from its seed and its records, for its user's eyes only."""

from __future__ import annotations

import secrets
from pathlib import Path

from parley.core.errors import InputError
from parley.core.files import write_atomically
from parley.store.runs import RunStore

_FILE = "secret"


def secret_root(store: RunStore | None, resume: str | None, given: bytes | None) -> bytes:
    """The root to train with: of a run that goes on its own, else the one given, else fresh from the system."""
    if store is None or resume is None:
        return given or secrets.token_bytes(16)
    path = store.folder(resume) / _FILE
    if path.exists():
        kept = path.read_bytes()
        if given is not None and given != kept:
            raise InputError(f"run '{resume}' was started with another secret; leave it out to go on.")
        return kept
    found = store.checkpoint(resume)
    if found is not None and "memories" in found[1]:  # earlier formats are refused when the checkpoint is read
        raise InputError(f"the secret of run '{resume}' is missing ({path}), so it cannot go on with the same numbers.")
    return given or secrets.token_bytes(16)


def keep_secret(folder: Path, root: bytes) -> None:
    """Keep it among the run's artefacts."""
    path = folder / _FILE
    if not path.exists():
        write_atomically(path, root, private=True)
