"""Files that are safe to open, that are there whole or not at all, and that no power failure takes back."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from parley.core.errors import InputError
from parley.core.text import shown

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """What the operating system refuses, as one sentence: `what` and the reason."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}.") from error


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write the file so that it is there whole or as it was before, also after a power failure."""
    with replacing(path, private=private) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A place beside `path` to write to; it takes the place of `path` when the block ends well, else it goes.

    Folders that are missing are made. `private`: only its user may read the file. An InputError says what went wrong.
    """
    with file_errors(f"{path} cannot be written"):
        make_folder(path.parent)
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
            yield part
            sync_file(part)
            part.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make the folder and those above it, for good; `private`: only their user may look into those that are new."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            folder.mkdir(0o700 if private else 0o777)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Names made, moved or removed in the folder are safe from now on."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # some file systems do not sync folders
            raise


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a private regular file, made if `flags` say so; links and devices are refused."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def read_regular(path: Path) -> bytes:
    """The content of a regular file; links and devices are refused."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def sync_file(path: Path) -> None:
    """What was written to the file is safe from now on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def regular_file(path: Path | str, what: str = "file") -> Path:
    """The path, if a regular file (or a link to one) is there: opening a pipe would wait for ever, a device read on."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise InputError(f"there is no {what} '{shown(path)}'.") from None
    except OSError as error:
        raise InputError(f"the {what} '{shown(path)}' cannot be opened: {error.strerror}.") from None
    except ValueError:  # a NUL in the path
        raise InputError(f"the {what} '{shown(path)}' cannot be opened: no file can have such a name.") from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"the {what} '{shown(path)}' is {kind}, not a regular file.")
    return Path(path)
