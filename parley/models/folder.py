"""Folders that appear complete or not at all."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from shutil import rmtree
from uuid import uuid4

from parley.core.errors import InputError
from parley.core.files import file_errors, make_folder, sync_file, sync_folder

_LEFT_OVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.parley\.(?P<role>draft|old)")


@contextmanager
def new_folder(target: Path, marker: str) -> Iterator[Path]:
    """A draft beside `target` that takes its place when the block ends well and vanishes when it does not.

    An existing target is replaced only if it is empty or holds the file `marker`, as an earlier result would. What the
    operating system refuses is one sentence. Drafts of processes that were killed are removed first.
    """
    if target.exists() and not target.is_dir():
        raise InputError(f"'{target}' is a file; name a folder.")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).exists():
        raise InputError(f"the folder '{target}' holds other files; name a new or empty folder.")
    draft, old = (target.parent / f".{target.name}.{uuid4().hex[:8]}.parley.{role}" for role in ("draft", "old"))
    try:
        with ExitStack() as stack:
            with file_errors(f"the folder '{target}' cannot be made"):
                make_folder(target.parent)
                with _lock(target.parent):
                    _clear(target.parent)
                    draft.mkdir()
                    stack.enter_context(_lock(draft))
            with file_errors(f"the folder '{target}' cannot be written"):
                yield draft
                for path in (draft, *draft.rglob("*")):
                    sync_folder(path) if path.is_dir() else sync_file(path)
                _swap(draft, target, old)
    finally:
        rmtree(draft, ignore_errors=True)
        rmtree(old, ignore_errors=True)


def _swap(draft: Path, target: Path, old: Path) -> None:
    """Put the draft in the target's place, which becomes the old one."""
    with _lock(target):
        if target.exists():
            target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        sync_folder(target.parent)


def _clear(parent: Path) -> None:
    """Remove what killed processes have left, and give a target back that was only half replaced."""
    for path in parent.iterdir():
        known = _LEFT_OVER.fullmatch(path.name)
        if known is None:
            continue
        with suppress(OSError), _lock(path, wait=False):  # a living process has locked its own
            if known["role"] == "old" and not (parent / known["name"]).exists():
                path.rename(parent / known["name"])
            else:
                rmtree(path, ignore_errors=True)


@contextmanager
def _lock(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a folder, wherever it is moved, which ends with the process; none where there is no folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        descriptor = -1
    try:
        if descriptor >= 0:
            with suppress(OSError) if wait else nullcontext():  # some file systems know no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
