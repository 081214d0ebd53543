"""The data cache: official files, checked by checksum, downloaded whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import http.client
import os
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from parley.core.errors import InputError
from parley.core.text import shown

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that have arrived, and the bytes expected (None if the server does not say)."""

CHUNK = 1 << 20
ALLOWANCE = 1.5
"""How much longer than stated a download may be before it is taken for something else."""


@dataclass(frozen=True)
class Remote:
    """A file of a data set as its authors publish it."""

    path: str
    """Where it lies in the cache."""
    urls: tuple[str, ...]
    """Official address first, then mirrors."""
    checksum: str
    """'md5:...', 'sha1:...' or 'sha256:...'; the authors' own where they give one."""
    megabytes: float
    """Size of the download; what is much longer is not read to its end."""
    members: Mapping[str, str] = field(default_factory=dict)
    """For an archive: member -> place in the cache; the archive itself is not kept."""

    sums: Mapping[str, str] = field(default_factory=dict)
    """Checksums of members by their place, where known."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in the cache that this download leads to."""
        return tuple(self.members.values()) or (self.path,)

    def checksum_of(self, file: str) -> str:
        """Checksum of a file in the cache; '' where only that of its archive is known."""
        return self.sums.get(file, "") if self.members else self.checksum


def cache_dir() -> Path:
    """$PARLEY_DATA, or ~/.cache/parley."""
    return Path(os.environ.get("PARLEY_DATA") or "~/.cache/parley").expanduser()


def locate(name: str, path: str, checksum: str = "") -> Path:
    """A file of data set `name` in the cache, verified if a checksum is given; an unpacked '.gz' will do as well."""
    for candidate in (path, path.removesuffix(".gz")):
        file = cache_dir() / candidate
        if file.is_file():
            if checksum and candidate == path:
                verify(file, checksum, f"run `parley data fetch {name}` to replace it")
            return file
    raise InputError(
        f"the data set '{name}' is not here: '{cache_dir() / path}' is missing; run `parley data fetch {name}`, "
        "or set $PARLEY_DATA to a folder that has it."
    )


def verify(file: Path, checksum: str, remedy: str) -> None:
    """Raises an InputError unless the file has this checksum."""
    kind, _, expected = checksum.partition(":")
    actual = hash_file(file, kind)
    if actual != expected:
        raise InputError(
            f"'{file}' is damaged or not the official file: its {kind} is {actual}, expected {expected}; {remedy}."
        )


def hash_file(file: Path, kind: str) -> str:
    """Hexadecimal checksum of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def fetch_files(files: tuple[Remote, ...], progress: Progress | None = None) -> list[Path]:
    """Downloads what is missing or damaged; returns the files in the cache."""
    for remote in files:
        if not _is_here(remote):
            _fetch(remote, progress)
    return [cache_dir() / file for remote in files for file in remote.paths]


def _is_here(remote: Remote) -> bool:
    return all(_is_whole(cache_dir() / file, remote.checksum_of(file)) for file in remote.paths)


def _is_whole(file: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    return file.is_file() and (not checksum or hash_file(file, kind) == expected)


def _fetch(remote: Remote, progress: Progress | None) -> None:
    target = cache_dir() / remote.path
    try:
        with _part(target) as part:
            _download(remote, part, progress)
            if remote.members:
                _unpack(part, remote)
            else:
                part.replace(target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {error}; set $PARLEY_DATA to another folder.") from error


@contextmanager
def _part(target: Path) -> Iterator[Path]:
    """A place beside `target` to write to before it is moved there; cleared in the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{glob.escape(target.name)}.*.part"):
        owner = left.name.split(".")[-2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):  # of a download that was killed
            left.unlink(missing_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _download(remote: Remote, part: Path, progress: Progress | None) -> None:
    """The file from the first address that gives it whole."""
    reasons = []
    for url in remote.urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as response, part.open("wb") as file:
                _receive(response, file, remote, progress)
            kind, _, expected = remote.checksum.partition(":")
            if (actual := hash_file(part, kind)) == expected:
                return
            reasons.append(f"{url} (damaged or not the official file: its {kind} is {actual}, expected {expected})")
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            reasons.append(f"{url} ({shown(error)})")
    raise InputError(
        f"'{Path(remote.path).name}' cannot be downloaded from {' or '.join(reasons)}; try again later, or put it into "
        f"'{cache_dir() / remote.path}' yourself."
    )


def _receive(response: Any, file: IO[bytes], remote: Remote, progress: Progress | None) -> None:
    stated = response.headers["Content-Length"] or ""
    expected = int(stated) if stated.isascii() and stated.isdigit() else None
    most = int(ALLOWANCE * remote.megabytes * 1e6) + CHUNK
    done = 0
    while chunk := response.read(CHUNK):
        done += len(chunk)
        if done > most:
            raise http.client.HTTPException(f"more than {most:,} bytes came, but it has {remote.megabytes:,} MB")
        file.write(chunk)
        if progress:
            progress(Path(remote.path).name, done, expected)
    if expected is not None and done < expected:
        raise http.client.IncompleteRead(b"", expected - done)
    file.flush()
    os.fsync(file.fileno())


def _unpack(archive: Path, remote: Remote) -> None:
    """Copies the named members, and nothing else, to their paths, each whole or not at all."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for member, file in remote.members.items():
                    with zipped.open(member) as stream:
                        _place(stream, cache_dir() / file)
        else:
            with tarfile.open(archive) as tar:
                for member, file in remote.members.items():
                    content = tar.extractfile(member)
                    if content is None:
                        raise KeyError(member)
                    _place(content, cache_dir() / file)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"the archive from {remote.urls[0]} is not as expected ({error}).") from error


def _place(stream: IO[bytes], target: Path) -> None:
    with _part(target) as part:
        with part.open("wb") as file:
            shutil.copyfileobj(stream, file, CHUNK)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
