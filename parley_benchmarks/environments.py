"""The peers' own Python environments, made by the benchmark from the pins in `pins/*.txt`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from parley import InputError

PINS = Path(__file__).parent / "pins"
PEERS = tuple(sorted(p.stem for p in PINS.glob("*.txt")))


def cache_folder() -> Path:
    """Where environments live: `$PARLEY_CACHE/bench`, else `~/.cache/parley/bench`."""
    root = os.environ.get("PARLEY_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "parley") / "bench"


def installed(peer: str, cache: Path | None = None) -> Path | None:
    """The Python of a peer's environment, or None unless one with exactly the present pins is complete."""
    folder = (cache or cache_folder()) / peer
    mark = folder / "pins"
    complete = mark.is_file() and mark.read_text() == _fingerprint(peer)
    return _python(folder) if complete else None


def install(peer: str, cache: Path | None = None, say: Callable[[str], None] = lambda _: None) -> Path:
    """The Python of a peer's environment; makes it first if it is missing, half-made or has other pins.

    Needs a package index and one to five minutes. pip's output is kept beside the environment in `<peer>.log`.
    """
    if (ready := installed(peer, cache)) is not None:
        return ready
    folder = (cache or cache_folder()) / peer
    log = folder.with_suffix(".log")
    say(f"installing {peer} into {folder} (log: {log})")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = _python(folder)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(PINS / f"{peer}.txt")]
    with log.open("w") as output:
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
                raise InputError(f"{peer} could not be installed; read {log}, or run the benchmark without peers.")
    (folder / "pins").write_text(_fingerprint(peer))
    return python


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _fingerprint(peer: str) -> str:
    """Changes with the pins and with the Python the environment was made by."""
    pins = (PINS / f"{peer}.txt").read_bytes()
    return sha256(pins + sys.version.encode()).hexdigest()
