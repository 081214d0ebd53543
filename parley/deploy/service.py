"""Units with which systemd runs a server or a node; `init` writes one into the folder."""

from __future__ import annotations

import sys
from pathlib import Path

from parley.core.files import write_atomically

_UNIT = """# {install}
[Unit]
Description={what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
WorkingDirectory={folder}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=60
LimitNOFILE=8192
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}

[Install]
WantedBy=default.target
"""


def write_unit(folder: Path, name: str, what: str, *words: str) -> Path:
    """The unit for a command of Parley's that works in a folder."""
    path = folder / f"{name}.service"
    command = " ".join(_quoted(word) for word in (str(Path(sys.executable).parent / "parley"), *words))
    install = f"systemctl --user link {_quoted(str(path))} && systemctl --user enable --now {name}"
    text = _UNIT.format(what=what, command=command, folder=_escaped(str(folder)), install=install)
    write_atomically(path, text.encode())
    return path


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    return f'"{_escaped(word)}"' if any(char in word for char in " \"'\\") else _escaped(word)
