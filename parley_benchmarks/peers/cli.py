"""`parley conformance --peers`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from parley import InputError
from parley.cli.screen import console


def show(method: str | None, libraries: tuple[str, ...], may_install: bool, write: Path | None) -> None:
    """Other libraries, in environments made and kept as the benchmark makes them."""
    from parley.display.progress import steps
    from parley_benchmarks import environments
    from parley_benchmarks.peers import Library, fill, peers_table, planned_peers, record

    if write is not None and not write.parent.is_dir():
        raise InputError(f"there is no folder {write.parent} to write {write.name} into.")

    def python(library: Library) -> Path:
        if library.ours:
            return Path(sys.executable)
        if may_install:
            return environments.install(library.name, say=lambda text: print(text, file=sys.stderr))
        installed = environments.installed(library.name)
        if installed is None:
            raise InputError(f"{library.name} is not installed; leave out --no-install.")
        return installed

    plans = planned_peers(method, libraries)
    rows = []
    with steps() as tell:
        for done, plan in enumerate(plans, 1):
            rows.append(fill(plan, python))
            tell("asking", done, len(plans))
    console().print(peers_table(rows))
    if write is not None:
        write.write_text(json.dumps(record(rows), indent=1) + "\n", encoding="utf-8")
