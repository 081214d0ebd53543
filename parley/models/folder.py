"""Folders that appear complete or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from uuid import uuid4

from parley.core.errors import InputError
from parley.core.files import file_errors


@contextmanager
def new_folder(target: Path, marker: str) -> Iterator[Path]:
    """A draft beside `target` that takes its place when the block ends well and vanishes when it does not.

    An existing target is replaced only if it is empty or holds the file `marker`, as an earlier result would.
    """
    if target.exists() and not target.is_dir():
        raise InputError(f"'{target}' is a file; name a folder.")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).exists():
        raise InputError(f"the folder '{target}' holds other files; name a new or empty folder.")
    draft, old = (target.parent / f".{target.name}.{uuid4().hex[:8]}.{role}" for role in ("draft", "old"))
    with file_errors(f"the folder '{target}' cannot be made"):
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
    try:
        with file_errors(f"the folder '{target}' cannot be written"):
            yield draft
        if target.exists():
            target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        rmtree(draft, ignore_errors=True)
        rmtree(old, ignore_errors=True)
