"""Preflight: what would keep a server or a node from working, found before anything depends on it."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from parley.core.errors import InputError, ParleyError
from parley.core.numbers import megabytes
from parley.deploy import certificates, keys
from parley.deploy.extra import FLOWER, check_flower
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder
from parley.secure.channel import GROUP
from parley.store.locks import is_locked

_SPACE = 2**30
"""Bytes that should be free."""
_CLOCK = 5.0
"""Seconds by which clocks may differ: Flower refuses requests that are older."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    fine: bool
    text: str


def check_server(folder: ServerFolder) -> Iterator[Finding]:
    """What the server's machine needs."""
    yield _tried("Flower", lambda: _flower())
    yield _tried("settings", lambda: f"port {folder.settings.port} at {folder.settings.bind}")
    yield _tried("certificate", lambda: _certificate(folder))
    yield _tried("port", lambda: _port(folder))
    yield _tried("nodes", lambda: _nodes(folder))
    yield _tried("disk", lambda: _disk(folder.path))


def check_node(folder: NodeFolder) -> Iterator[Finding]:
    """What a node's machine needs."""
    yield _tried("Flower", lambda: _flower())
    yield _tried("key", lambda: _key(folder))
    yield _tried("server", lambda: _server(folder))
    yield _tried("clock", lambda: _clock(folder))
    yield _tried("data", lambda: _data(folder))
    yield _tried("policy", lambda: _policy(folder))
    yield _tried("log", lambda: f"{sum(1 for _ in folder.logged())} lines, none changed")
    yield _tried("disk", lambda: _disk(folder.path))


def _tried(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except (ParleyError, OSError) as error:
        return Finding(what, False, str(error))


def _flower() -> str:
    check_flower()
    return f"version {FLOWER}"


def _certificate(folder: ServerFolder) -> str:
    wrong = certificates.news(folder.path, certificates.SERVER) or certificates.problem(
        folder.path, certificates.LOOPBACK
    )
    if wrong is not None:
        raise InputError(wrong)
    certificate = certificates.read_certificate(folder.path / "server.crt")
    missing = set(folder.settings.names) - set(certificates.names_of(certificate))
    if missing:
        raise InputError(f"the certificate lacks the name {sorted(missing)[0]}; run 'parley deploy renew'.")
    return f"for {', '.join(folder.settings.names)}; {certificates.days_left(certificate):.0f} days left"


def _port(folder: ServerFolder) -> str:
    if is_locked(folder.path / "server.lock"):
        return "the server runs"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((folder.settings.bind, folder.settings.port))
        except OSError as error:
            raise InputError(f"port {folder.settings.port} cannot be used: {error.strerror}.") from None
    return f"{folder.settings.port} is free"


def _nodes(folder: ServerFolder) -> str:
    return ", ".join(folder.nodes()) or "none yet; register them as they ask: parley deploy register NODE.csr"


def _disk(path: Path) -> str:
    free = shutil.disk_usage(path).free
    if free < _SPACE:
        raise InputError(f"only {megabytes(free)} MB are free.")
    return f"{free / 1e9:,.0f} GB free"


def _key(folder: NodeFolder) -> str:
    key = keys.private_key(folder.path / folder.settings.key)
    return keys.fingerprint(keys.text_of(key.public_key()))


def _server(folder: NodeFolder) -> str:
    status, _, name = _asked(folder)
    if status != 403:
        raise InputError(f"something else than a server of Parley's answers at {folder.settings.server} ({status}).")
    return f"{folder.settings.server} has a certificate that {name} signed"


def _clock(folder: NodeFolder) -> str:
    _, difference, _ = _asked(folder)
    if abs(difference) > _CLOCK:
        raise InputError(f"the clocks of this machine and of the server differ by {difference:.0f} s; set them.")
    return f"{abs(difference):.0f} s from the server's"


def _asked(folder: NodeFolder) -> tuple[int, float, str]:
    """The server's answer to a request that no node makes: its status, how far its clock is, and who vouches for it."""
    settings = folder.settings
    if settings.server is None or settings.ca is None:
        raise InputError("node.toml does not name the server and ca yet.")
    ca = folder.path / settings.ca
    certificates.read_certificate(ca)
    host, _, port = settings.server.rpartition(":")
    line = http.client.HTTPSConnection(host, int(port), timeout=10, context=ssl.create_default_context(cafile=ca))
    try:
        line.request("GET", "/")
        answer = line.getresponse()
        sent = answer.headers.get("date")
        away = 0.0 if sent is None else time.time() - parsedate_to_datetime(sent).timestamp()
        return answer.status, away, ca.name
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"{settings.server} cannot be trusted: {error.verify_message}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{settings.server} cannot be reached: {error}.") from None
    finally:
        line.close()


def _data(folder: NodeFolder) -> str:
    from parley.deploy.node_data import load_data

    if folder.settings.party is not None:
        return f"none: this node is the party '{folder.settings.party}'"
    data = load_data(folder.settings, folder.path)
    test = 0 if data.test is None else len(data.test)
    what = f"{data.info.outputs} classes" if data.info.kind != "regression" else "regression"
    skipped = ""
    if data.skipped:
        folder.list_skipped(data.skipped)
        skipped = f"; {len(data.skipped)} rows that cannot be read are skipped (skipped.txt)"
    return f"{len(data.train)} samples and {test} held out, of shape {list(data.info.shape)}, {what}{skipped}"


def _policy(folder: NodeFolder) -> str:
    policy = folder.policy
    if policy.rounds == 0:
        return "approves nothing in advance; you decide (parley node pending)"
    text = f"approves {', '.join(policy.algorithms) or 'no algorithm'} for at most {policy.rounds} rounds in advance"
    if not policy.peers and any(channel.partition("(")[0].strip() == GROUP for channel in policy.required_channels):
        text += (
            f"; warning: it asks for {GROUP}, but peers is empty, so a server could invent all other nodes of a sum "
            "and subtract them: write the fingerprints of their keys into peers"
        )
    return text
