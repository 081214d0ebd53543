"""The folders of runs beside the store. A name from a store is checked before it becomes a path."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from parley.core.errors import InputError
from parley.core.files import file_errors, make_folder
from parley.core.text import printable

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class Artefacts:
    """Where the runs of one store keep their files; nothing outside is ever touched."""

    def __init__(self, store: Path) -> None:
        self.store, self.root = store, store.parent / "artefacts"

    def folder(self, run: str) -> Path:
        """The run's folder, which need not exist; refused if it would lie elsewhere."""
        if not isinstance(run, str) or not _ID.fullmatch(run):
            raise InputError(f"the run store {self.store} holds a run '{printable(run)}', which no Parley named so; "
                             "do not trust this file.")  # fmt: skip
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
