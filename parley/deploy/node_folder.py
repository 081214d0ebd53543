"""A node's folder: its owner's settings, key, decisions, modules and log, and what the node keeps of each run.

node.toml          settings: name, server, data
policy.toml        what is answered without asking the owner
node.key           the node's identity, which stays here
node.pub  node.csr its public half, and a signing request for it: one of them is handed over
modules/           code of studies that the owner has looked at and put here
studies/HASH.json  studies that the server proposed; HASH.decision what the owner said
runs/              data and memory of each run (see `runtimes.node`)
audit.jsonl        every message that was answered or refused, in order; each line seals the one before it
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError, WireError
from parley.core.files import file_errors, make_folder, open_regular, write_atomically
from parley.core.plugins import beside, is_file_name
from parley.deploy import keys, signing
from parley.deploy.settings import NodeSettings, PolicySettings, ServerSettings, commented, read_settings

if TYPE_CHECKING:
    from parley.deploy.proposal import Proposal

MOST_PENDING = 100
"""Studies that wait for the owner; further ones are refused, so that no server fills the disk."""
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
        self, *, server: str | None = None, ca: Path | None = None, key: Path | None = None, data: str | None = None,
        target: str | None = None,
    ) -> None:  # fmt: skip
        """Settings given on the command line, whose paths are relative to where it is typed."""
        changes: dict[str, object] = {}
        if server is not None:
            changes["server"] = server if ":" in server else f"{server}:{ServerSettings.port}"
        if ca is not None:
            changes["ca"] = str(ca.resolve())
        if key is not None:
            changes["key"] = str(key.resolve())
        if data is not None:
            place = data if is_file_name(data) else str(Path(data).expanduser().resolve())
            changes["data"] = beside(data, Path.cwd()) if is_file_name(data) else place
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

    def keep(self, proposal: Proposal) -> None:
        """Keep a study that the server proposed, for its owner to look at."""
        path = self.path / "studies" / f"{proposal.hash}.json"
        if path.exists():
            return
        waiting = [one for one in self.studies() if self.decision(one) is None]
        if len(waiting) >= MOST_PENDING:
            raise InputError(f"{MOST_PENDING} studies wait for the owner of this node already.")
        write_atomically(path, proposal.bytes())

    def proposal(self, hash: str) -> Proposal:
        """A study that was proposed before; what is on disk must have the hash that it is called by."""
        from parley.deploy.proposal import Proposal

        if _HASH.fullmatch(hash) is None:
            raise WireError("it names no study.")
        try:
            found = Proposal.read((self.path / "studies" / f"{hash}.json").read_bytes())
        except FileNotFoundError:
            raise WireError("it belongs to a study that was never proposed here.") from None
        if found.hash != hash:
            raise WireError("the study on this node's disk was changed after it was proposed.")
        return found

    def studies(self) -> list[str]:
        """The hashes of all studies that were proposed, oldest first."""
        found = sorted((self.path / "studies").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [path.stem for path in found if _HASH.fullmatch(path.stem)]

    def named(self, beginning: str) -> str:
        """The one study whose hash begins so."""
        found = [hash for hash in self.studies() if hash.startswith(beginning.lower())]
        if len(found) != 1:
            what = "no study begins" if not found else f"{len(found)} studies begin"
            raise InputError(f"{what} with '{beginning[:80]}'; see 'parley node pending'.")
        return found[0]

    def decision(self, hash: str) -> dict[str, Any] | None:
        """What the owner said: {"decision": "approved" or "rejected", "disclose": ..., ...}; None for nothing."""
        try:
            return dict(json.loads((self.path / "studies" / f"{hash}.decision").read_bytes()))
        except FileNotFoundError:
            return None

    def decide(self, hash: str, decision: str, *, disclose: bool = False, note: str = "") -> None:
        said = {"decision": decision, "disclose": disclose, "note": note, "when": now()}
        self.log("owner", study=hash, decision=decision, disclose=disclose, note=note)
        write_atomically(self.path / "studies" / f"{hash}.decision", json.dumps(said).encode())

    # --- the log ---

    def log(self, event: str, **facts: Any) -> None:
        """Append a line for good, before what it speaks of leaves the node."""
        with file_errors(f"the log of this node cannot be written ({self.path / 'audit.jsonl'})"):
            descriptor = open_regular(self.path / "audit.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                line = {"when": now(), "event": event, **facts, "seal": _last_seal(descriptor, size)}
                text = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
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
        try:
            lines = (self.path / "audit.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                intact = found["seal"] == seal
            except (ValueError, KeyError, TypeError):
                intact = False
            if not intact:
                raise InputError(f"line {number} of the log does not follow from the one before it: it was changed.")
            yield found
            seal = _seal(line)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _last_seal(descriptor: int, size: int) -> str:
    """The digest of the last line; of a log that begins, nothing."""
    block = min(size, 65536)
    lines = os.pread(descriptor, block, size - block).splitlines()
    return _seal(lines[-1]) if lines else ""


def _seal(line: bytes) -> str:
    return sha256(line).hexdigest()[:32]
