"""A node's folder: its owner's settings, key, decisions, modules and log, and what the node keeps of each run.

node.toml          settings: name, server, data
policy.toml        what is answered without asking the owner
node.key           the node's identity, which stays here
node.pub  node.csr its public half, and a signing request for it: one of them is handed over
modules/           code of studies that the owner has looked at and put here
studies/HASH.json  studies that the server proposed; HASH.decision what the owner said; HASH.runs the runs it answers
skipped.txt        rows of the data that could not be read
runs/              data and memory of each run (see `runtimes.node`)
rows/              digests of the rows with which it took part in each run, and the cells in which they were counted
audit.jsonl        every message before anything is done with it, and then what was answered; each line seals the one
                   before it; audit-NUMBER.jsonl.gz what it was before it became large
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError, WireError
from parley.core.files import file_errors, make_folder, open_regular, replacing, sync_folder, write_atomically
from parley.core.plugins import beside, is_file_name
from parley.deploy import keys, signing
from parley.deploy.service import write_unit
from parley.deploy.settings import NodeSettings, PolicySettings, ServerSettings, commented, read_settings
from parley.store.locks import acquire, release

if TYPE_CHECKING:
    from parley.deploy.proposal import Proposal

MOST_PENDING = 100
"""Studies that wait for the owner; further ones are refused, so that no server fills the disk."""
LARGEST_LOG = 20 * 2**20
"""Bytes of audit.jsonl, after which it is archived."""
_PATIENCE = 60.0
"""Seconds that one message waits for another."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class NodeFolder:
    path: Path

    @classmethod
    def open(cls, path: Path | str) -> NodeFolder:
        folder = cls(Path(path).resolve())
        if not (folder.path / "node.toml").exists():
            raise InputError(f"there is no node at {path}; make one: parley node init NAME --node {path}.")
        return folder

    @classmethod
    def create(cls, path: Path | str, name: str, **settings: object) -> NodeFolder:
        """A new node with a key of its own; node.toml comes last."""
        folder = cls(Path(path).resolve())
        keys.check_name(name)
        if (folder.path / "node.toml").exists():
            raise InputError(f"there is a node at {path} already.")
        with file_errors(f"{path} cannot be made"):
            make_folder(folder.path, private=True)
            for below in ("modules", "studies", "runs"):
                make_folder(folder.path / below, private=True)
        keys.make_key(folder.path / "node.key", folder.path / "node.pub", name)
        signing.make_request(folder.path / "node.key", folder.path / "node.csr", name)
        write_atomically(folder.path / "policy.toml", commented(PolicySettings).encode())
        write_unit(
            folder.path, "parley-node", f"Node {name} of a federation", "deploy", "client", "--node", str(folder.path)
        )
        write_atomically(folder.path / "node.toml", commented(NodeSettings, name=name, **settings).encode())
        return folder

    @property
    def settings(self) -> NodeSettings:
        return read_settings(NodeSettings, self.path / "node.toml", "the settings")

    @property
    def policy(self) -> PolicySettings:
        return read_settings(PolicySettings, self.path / "policy.toml", "the policy")

    def set(self, **changes: object) -> NodeSettings:
        """Settings changed for good, with their comments."""
        new = replace(self.settings, **changes)  # type: ignore[arg-type]
        write_atomically(self.path / "node.toml", commented(NodeSettings, **vars(new)).encode())
        return new

    def point(
        self,
        *,
        server: str | None = None,
        ca: Path | None = None,
        key: Path | None = None,
        data: str | None = None,
        target: str | None = None,
    ) -> None:
        """Settings given on the command line, whose paths are relative to where it is typed."""
        changes: dict[str, object] = {}
        if server is not None:
            changes["server"] = server if ":" in server else f"{server}:{ServerSettings.port}"
        if ca is not None:
            changes["ca"] = str(ca.resolve())
        if key is not None:
            changes["key"] = str(key.resolve())
        if data is not None:
            path = data if is_file_name(data) else str(Path(data).expanduser().resolve())
            changes["data"] = beside(data, Path.cwd()) if is_file_name(data) else path
        if target is not None:
            changes["target"] = target
        if changes:
            self.set(**changes)

    @property
    def modules(self) -> Path:
        return self.path / "modules"

    def run(self, name: str) -> Path:
        """What the node keeps of a run."""
        return self.path / "runs" / blake2b(name.encode(), digest_size=16).hexdigest()

    # --- studies ---

    def keep(self, proposal: Proposal, pending: bool = True) -> None:
        """Keep a study that the server proposed; `pending`: it waits for its owner to look at it."""
        path = self.path / "studies" / f"{proposal.hash}.json"
        if path.exists():
            return
        waiting = [hash for hash in self.studies() if self.decision(hash) is None and not self.runs_of(hash)]
        if pending and len(waiting) >= MOST_PENDING:
            raise InputError(f"{MOST_PENDING} studies wait for the owner of this node already.")
        write_atomically(path, proposal.bytes())

    def proposal(self, hash: str) -> Proposal:
        """A study that was proposed before; what is on disk must have the hash that it is called by."""
        from parley.deploy.proposal import Proposal

        if _HASH.fullmatch(hash) is None:
            raise WireError("it names no study.")
        try:
            proposal = Proposal.read((self.path / "studies" / f"{hash}.json").read_bytes())
        except FileNotFoundError:
            raise WireError("it belongs to a study that was never proposed here.") from None
        if proposal.hash != hash:
            raise WireError("the study on this node's disk was changed after it was proposed.")
        return proposal

    def studies(self) -> list[str]:
        """The hashes of all studies that were proposed, oldest first."""
        paths = sorted((self.path / "studies").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [path.stem for path in paths if _HASH.fullmatch(path.stem)]

    def named(self, beginning: str) -> str:
        """The one study whose hash begins so."""
        hashes = [hash for hash in self.studies() if hash.startswith(beginning.lower())]
        if len(hashes) != 1:
            what = "no study begins" if not hashes else f"{len(hashes)} studies begin"
            raise InputError(f"{what} with '{beginning[:80]}'; see 'parley node pending'.")
        return hashes[0]

    def decision(self, hash: str) -> dict[str, Any] | None:
        """What the owner said: {"decision": "approved" or "rejected", "disclose": ..., ...}; None for nothing."""
        try:
            return dict(json.loads((self.path / "studies" / f"{hash}.decision").read_bytes()))
        except FileNotFoundError:
            return None

    def decide(self, hash: str, decision: str, *, disclose: bool = False, note: str = "") -> None:
        """An approval is for one run: one more than there have been."""
        runs = len(self.runs_of(hash)) + (decision == "approved")
        record = {"decision": decision, "disclose": disclose, "note": note, "runs": runs, "when": now()}
        self.log("owner", study=hash, decision=decision, disclose=disclose, note=note)
        write_atomically(self.path / "studies" / f"{hash}.decision", json.dumps(record).encode())

    def runs_of(self, hash: str) -> list[dict[str, Any]]:
        """The runs of a study that this node has taken part in: {"run": ..., "by": ..., "enrolled": ..., ...}."""
        try:
            return list(json.loads((self.path / "studies" / f"{hash}.runs").read_bytes()))
        except FileNotFoundError:
            return []

    def keep_runs(self, hash: str, runs: list[dict[str, Any]]) -> None:
        write_atomically(self.path / "studies" / f"{hash}.runs", json.dumps(runs).encode())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process of this node takes part in a further run."""
        lock = self.path / "studies" / ".lock"
        until = time.monotonic() + _PATIENCE
        while not acquire(lock):
            if time.monotonic() > until:
                raise InputError("another message is being answered for too long.")
            time.sleep(0.02)
        try:
            yield
        finally:
            release(lock)

    def list_skipped(self, rows: Sequence[str]) -> None:
        """Keep which rows of the data could not be read, for the owner alone."""
        write_atomically(self.path / "skipped.txt", "".join(f"{row}\n" for row in rows).encode())

    # --- the log ---

    def log(self, event: str, **facts: Any) -> None:
        """Append a line for good, before what it speaks of leaves the node."""
        with file_errors(f"the log of this node cannot be written ({self.path / 'audit.jsonl'})"):
            descriptor = self._open_log()
            try:
                size = os.fstat(descriptor).st_size
                seal = _last_seal(descriptor, size) if size else self._archived_seal()
                line = {"when": now(), "event": event, **facts, "seal": seal}
                text = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
                try:
                    if os.write(descriptor, text) < len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, size)  # half a line would break the chain
                    raise
            finally:
                os.close(descriptor)

    def logged(self) -> Iterator[dict[str, Any]]:
        """The lines in order; an InputError where one was changed or taken out."""
        seal = ""
        for number, line in enumerate(self._log_lines(), 1):
            try:
                entry = json.loads(line)
                intact = entry["seal"] == seal
            except (ValueError, KeyError, TypeError):
                intact = False
            if not intact:
                raise InputError(f"line {number} of the log does not follow from the one before it: it was changed.")
            yield entry
            seal = _seal(line)

    def _open_log(self) -> int:
        """The log, for this process alone until it is closed; one that has become large is archived first."""
        path = self.path / "audit.jsonl"
        while True:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            stat = os.fstat(descriptor)
            with suppress(FileNotFoundError):
                current = path.stat().st_ino == stat.st_ino
                if current and stat.st_size < LARGEST_LOG:
                    return descriptor
                if current:
                    path.rename(self.path / f"audit-{len(self._archives()) + 1:06d}.jsonl")
                    sync_folder(self.path)
                    self._compress()
            os.close(descriptor)

    def _archives(self) -> list[Path]:
        """What was the log before, oldest first; whole where a file is there plain and compressed."""
        archives = {
            path.name.removesuffix(".gz"): path for path in sorted(self.path.glob("audit-*.jsonl*"), reverse=True)
        }
        return [archives[name] for name in sorted(archives)]

    def _compress(self) -> None:
        """Archives in a tenth of the space; what cannot be written yet stays plain."""
        for path in [path for path in self._archives() if path.suffix != ".gz"]:
            with suppress(InputError):
                with replacing(path.with_name(f"{path.name}.gz"), private=True) as part:
                    part.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
                path.unlink()

    def _archived_seal(self) -> str:
        """Of the last line of the newest archive; of a log that begins, nothing."""
        archives = self._archives()
        return _seal(_lines(archives[-1])[-1]) if archives else ""

    def _log_lines(self) -> Iterator[bytes]:
        for path in [*self._archives(), self.path / "audit.jsonl"]:
            with suppress(FileNotFoundError):
                yield from _lines(path)


def _lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError, zlib.error):
        raise InputError(f"the archive {path} of the log cannot be read: it was changed.") from None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _last_seal(descriptor: int, size: int) -> str:
    """The digest of the last line; of a log that begins, nothing."""
    begin, line = size, b""
    while begin and b"\n" not in line[:-1]:
        step = min(begin, 65536)
        begin -= step
        line = os.pread(descriptor, step, begin) + line
    lines = line.splitlines()
    return _seal(lines[-1]) if lines else ""


def _seal(line: bytes) -> str:
    return sha256(line).hexdigest()[:32]
