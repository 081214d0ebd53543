"""The server's folder: settings, certificates, registered keys, runs.

deploy.toml                    settings
ca.key  ca.crt                 the authority; ca.crt goes to the nodes, ca.key can be kept elsewhere but for renewals
server.key  server.crt         what nodes see
loopback.key  loopback.crt     between the processes of this machine
nodes/NAME.pub                 keys that are let in; revoked/NAME.pub those that were
runs.db                        the run store
runs/ID.json                   submitted runs (see `submissions`)
flower/                        what Flower keeps
server.log                     one line for everything that happened
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from parley.core.errors import InputError, nearest
from parley.core.files import file_errors, make_folder, sync_folder, write_atomically
from parley.deploy import certificates, keys, signing
from parley.deploy.service import write_unit
from parley.deploy.settings import ServerSettings, commented, read_settings


@dataclass(frozen=True)
class ServerFolder:
    path: Path

    @classmethod
    def open(cls, path: Path | str) -> ServerFolder:
        folder = cls(Path(path).resolve())
        if not (folder.path / "deploy.toml").exists():
            raise InputError(f"there is no deployment at {path}; make one: parley deploy init {path}.")
        return folder

    @classmethod
    def create(cls, path: Path | str, names: Sequence[str], **settings: object) -> ServerFolder:
        """A new deployment: authority, certificates and settings; deploy.toml comes last."""
        folder = cls(Path(path).resolve())
        if (folder.path / "deploy.toml").exists():
            raise InputError(f"there is a deployment at {path} already; 'parley deploy renew' renews its certificate.")
        if not names:
            names = list(dict.fromkeys([socket.getfqdn(), socket.gethostname(), "localhost", "127.0.0.1"]))
        days = float(settings.get("certificate_days", ServerSettings.certificate_days))  # type: ignore[arg-type]
        with file_errors(f"{path} cannot be made"):
            make_folder(folder.path, private=True)
            make_folder(folder.path / "nodes")
            make_folder(folder.path / "revoked")
            make_folder(folder.path / "runs")
        certificates.make_authority(folder.path)
        folder._certify(names, days)
        text = commented(ServerSettings, names=tuple(names), **settings)
        write_unit(folder.path, "parley-server", "Server of a federation", "deploy", "server", "-f", str(folder.path))
        write_atomically(folder.path / "deploy.toml", text.encode())
        return folder

    @cached_property
    def settings(self) -> ServerSettings:
        return read_settings(ServerSettings, self.path / "deploy.toml", "the settings")

    @property
    def store(self) -> Path:
        return self.path / "runs.db"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    def certificate(self, stem: str = certificates.SERVER) -> tuple[Path, Path]:
        return self.path / f"{stem}.crt", self.path / f"{stem}.key"

    def renew(self) -> None:
        """New certificates by the same authority, for the names in the settings; nodes need nothing new."""
        self._certify(self.settings.names, self.settings.certificate_days)

    def _certify(self, names: Sequence[str], days: float) -> None:
        certificates.make_certificate(self.path, certificates.SERVER, names, days)
        certificates.make_certificate(self.path, certificates.LOOPBACK, ["localhost", "127.0.0.1"], days)

    # --- nodes ---

    def nodes(self) -> dict[str, str]:
        """Name -> public key of the nodes that are let in, in the order of their names."""
        paths = sorted((self.path / "nodes").glob("*.pub"))
        return {path.name.removesuffix(".pub"): keys.public_text(path) for path in paths}

    def register(self, handed_over: Path, name: str | None = None) -> str:
        """Let a node in by its signing request, or by its public key alone; its name is the one that the request is
        signed for, or the comment of the key unless another one is given."""
        key, signed_for = signing.handed_over(handed_over)
        if signed_for is not None and name not in (None, signed_for):
            raise InputError(f"the request in {handed_over} is signed for '{signed_for}'; leave out --name.")
        name = name or signed_for
        if name is None:
            words = re.split(r"\s+", handed_over.read_text(encoding="utf-8").strip(), maxsplit=2)
            if len(words) < 3:
                raise InputError(f"the key in {handed_over} names no node; say how it is called (--name).")
            name = words[2]
        keys.check_name(name)
        for other, known in self.nodes().items():
            if known == key and other != name:
                raise InputError(f"this key is registered as '{other}'; a node has one name.")
            if other == name and known != key:
                raise InputError(
                    f"another key is registered as '{name}'; revoke it first: parley deploy revoke {name}."
                )
        if any(keys.public_text(path) == key for path in (self.path / "revoked").glob("*.pub")):
            raise InputError("this key was revoked; the node needs a new one (parley node init).")
        write_atomically(self.path / "nodes" / f"{name}.pub", key.encode() + b"\n")
        return name

    def revoke(self, name: str) -> None:
        """Let a node in no more; a server that runs shuts it out at once."""
        path = self.path / "nodes" / f"{name}.pub"
        if name not in self.nodes():
            raise InputError(f"no node '{name}' is registered: {nearest(name, self.nodes())}")
        digest = keys.fingerprint(keys.public_text(path)).removeprefix("SHA256:")
        label = re.sub(r"[^A-Za-z0-9]", "", digest)[:12]
        with file_errors(f"{path} cannot be moved"):
            path.replace(self.path / "revoked" / f"{name}-{label}.pub")
            sync_folder(self.path / "nodes")

    # --- which node of Flower's is which ---

    @property
    def _numbers(self) -> Path:
        return self.path / "flower" / "nodes.json"

    def numbers(self) -> dict[str, int]:
        """Public key -> the number under which Flower knows it."""
        try:
            return {str(key): int(number) for key, number in json.loads(self._numbers.read_bytes()).items()}
        except FileNotFoundError:
            return {}

    def keep_numbers(self, numbers: dict[str, int]) -> None:
        write_atomically(self._numbers, json.dumps(numbers, indent=1).encode())
