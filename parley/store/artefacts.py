"""The folders of runs beside the store, and the root of a run's secrets in them.

A name from a store is checked before it becomes a path.
"""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from parley.core.errors import InputError
from parley.core.files import file_errors, make_folder, write_atomically
from parley.core.text import printable

if TYPE_CHECKING:
    from parley.store.runs import RunStore

_SECRET = "secret"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class Artefacts:
    """Where the runs of one store keep their files; nothing outside is ever touched."""

    def __init__(self, store: Path) -> None:
        self.store, self.root = store, store.parent / "artefacts"

    def folder(self, run: str) -> Path:
        """The run's folder, which need not exist; refused if it would lie elsewhere."""
        if not isinstance(run, str) or not _ID.fullmatch(run):
            raise InputError(
                f"the run store {self.store} holds a run '{printable(run)}', which no Parley named so; "
                "do not trust this file."
            )
        folder = self.root / run
        for path in (self.root, folder):
            if path.is_symlink():
                raise InputError(f"{path} is a link to another place; put the run's own folder there.")
        return folder

    def make(self, run: str) -> Path:
        """The run's folder, made if it is not there."""
        folder = self.folder(run)
        with file_errors(f"the folder {folder} of run '{run}' cannot be made"):
            make_folder(folder, private=True)
        return folder

    def lock(self, run: str) -> Path:
        """The file that whoever works on the run holds locked."""
        return self.folder(run) / "lock"

    def remove(self, run: str) -> None:
        """Remove the run's folder; links in it are removed, not followed."""
        folder = self.folder(run)
        with file_errors(f"the folder {folder} of run '{run}' cannot be removed"):
            if folder.exists():
                shutil.rmtree(folder)


def secret_root(store: RunStore | None, resume: str | None, given: bytes | None) -> bytes:
    """The root to train with: of a run that goes on its own, else the one given, else fresh from the system."""
    if store is None or resume is None:
        return given or secrets.token_bytes(16)
    path = store.folder(resume) / _SECRET
    if path.exists():
        kept = path.read_bytes()
        if given is not None and given != kept:
            raise InputError(f"run '{resume}' was started with another secret; leave it out to resume.")
        return kept
    if store.checkpoint(resume) is not None:
        raise InputError(f"the secret of run '{resume}' is missing ({path}), so it cannot go on with the same numbers.")
    return given or secrets.token_bytes(16)


def keep_secret(folder: Path, root: bytes) -> None:
    """Keep it among the run's artefacts."""
    path = folder / _SECRET
    if not path.exists():
        write_atomically(path, root, private=True)
