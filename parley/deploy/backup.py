"""A server's or a node's folder in one file, and back again.

Both may run meanwhile: data bases are copied as a whole, all other files are replaced as a whole when they change.

Of a node the file has no samples and no answers, and what comes back approves nothing: it does not know what the node
has answered since. The server's has its runs; one that has sent more since is told by the nodes that it needs a new
approval.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from parley.core.errors import InputError
from parley.core.files import file_errors, replacing, write_atomically
from parley.deploy.node_folder import NodeFolder
from parley.deploy.settings import PolicySettings, commented

_SERVER, _NODE = "deploy.toml", "node.toml"
_LEFT_OUT = {_SERVER: ("flower", "server.lock"), _NODE: ("runs", "flower", "programs", "node.lock")}
"""What is made again: Flower's own, and of a node what it keeps of runs."""
_BEFORE = "policy-before-restore.toml"


def backup(folder: Path, to: Path) -> int:
    """Write everything to a file that only its user may read, for it has the keys; the number of files in it."""
    settings = _SERVER if (folder / _SERVER).exists() else _NODE
    if not (folder / settings).exists():
        raise InputError(f"there is neither a server nor a node at {folder}.")
    if to.exists():
        raise InputError(f"there is a file {to} already.")
    if to.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{to} lies in the folder that is backed up; put it elsewhere.")
    count = 0
    with replacing(to, private=True) as part, tarfile.open(part, "w:gz") as archive:
        for path in _files(folder, _LEFT_OUT[settings]):
            name = str(path.relative_to(folder))
            if path.suffix == ".db":
                with tempfile.TemporaryDirectory(dir=to.parent) as temporary:
                    archive.add(_copied(path, Path(temporary)), name, recursive=False)
            else:
                archive.add(path, name, recursive=False)
            count += 1
    return count


def restore(file: Path, folder: Path) -> str:
    """Make the folder from a backup; what is to be done next, in a sentence."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; restore into a new folder.")
    try:
        with file_errors(f"{folder} cannot be made"), tarfile.open(file, "r:gz") as archive:
            names = archive.getnames()
            if not {_SERVER, _NODE} & set(names):
                raise InputError(f"{file} is no backup of a server or a node.")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from None
    for below in ("nodes", "revoked", "runs") if _SERVER in names else ("modules", "studies", "runs"):
        (folder / below).mkdir(exist_ok=True)
    if _SERVER in names:
        return "start the server; runs that have sent more since the backup need a new approval of the nodes' owners."
    return _forgetful(NodeFolder(folder.resolve()))


def _forgetful(node: NodeFolder) -> str:
    """Spend every approval: nobody knows what was answered under it since."""
    for hash in node.studies():
        decision = node.decision(hash)
        if decision is not None:
            decision["runs"] = len(node.runs_of(hash))
            write_atomically(node.path / "studies" / f"{hash}.decision", json.dumps(decision).encode())
    (node.path / "policy.toml").replace(node.path / _BEFORE)
    write_atomically(node.path / "policy.toml", commented(PolicySettings).encode())
    node.log("restored", answered="restored from a backup; nothing is approved")
    return f"nothing is approved any more; what the policy was is in {_BEFORE}."


def _files(folder: Path, left_out: tuple[str, ...]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        passing = path.name.endswith((".part", ".lock", ".sock", "-wal", "-shm"))
        if (
            path.is_file()
            and not path.is_symlink()
            and not passing
            and path.relative_to(folder).parts[0] not in left_out
        ):
            yield path


def _copied(path: Path, into: Path) -> Path:
    """A data base as it is at one moment."""
    copy = into / path.name
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy
