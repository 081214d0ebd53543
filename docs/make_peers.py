"""Writes the section "Other libraries" of docs/conformance.md from docs/peers.json.

    parley conformance --peers --write docs/peers.json
    python docs/make_peers.py

A test compares the page with the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from parley_benchmarks.peers import LIBRARIES, METHODS, SETTINGS, TOLERANCE

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows, with_section  # noqa: E402

BEGIN = "<!-- Made by docs/make_peers.py from docs/peers.json; do not edit. -->"


def section(file: Path) -> str:
    """Everything between the two marks; a sentence while nothing has been written."""
    if not file.is_file():
        return "No run has been recorded with this version.\n"
    read = json.loads(file.read_text(encoding="utf-8"))
    versions = ", ".join(f"{LIBRARIES[name].title} {version}" for name, version in read["versions"].items())
    few, enough, last = read["rounds"]
    settings = "; ".join(f"*{setting.name}*: {setting.about}" for setting in SETTINGS.values())
    goals = "; ".join(f"{method.title}: {method.goal}" for method in METHODS.values())
    parts = [
        f"Last run {read['date']} with `{read['command']}`: {versions}.\n",
        f"Settings: {settings}. FedProx has mu = {METHODS['fedprox'].alpha:g}, FedDyn alpha = "
        f'{METHODS["feddyn"].alpha:g}. Goals: {goals}. "Off by" is the distance from the goal after {last} rounds, '
        f"relative to the start's; up to {TOLERANCE:.0e} it is reached. A model that moved by no more than that "
        f"since round {enough} rests.\n",
        rows(("library", "method", "clients", "weights", "off by", "verdict", "again"), map(_row, read["rows"])),
        "What is known of those that end elsewhere. Each cause was written down again in NumPy "
        "(`parley_benchmarks/peers/causes.py`) and led to the library's own numbers, to the relative distance "
        f"given: after {last} rounds, or after {few} where it diverges.\n",
        *causes(read["rows"]),
        "",
        *(f"- {library.title}: {library.note}" for library in LIBRARIES.values() if library.note),
        "",
    ]
    return "\n".join(parts)


def causes(made: list[dict[str, Any]]) -> list[str]:
    """A line for each cause, with how well it explains the rows it stands for."""
    explained: dict[str, list[float]] = {}
    for row in made:
        if row["explained"] is not None:
            variant = f", {row['variant']}" if row["variant"] else ""
            head = f"{LIBRARIES[row['library']].title} {row['version']}, {METHODS[row['method']].title}{variant}"
            explained.setdefault(f"- **{head}**: {row['cause']}", []).append(row["explained"])
    return [f"{line}: {max(off):.0e}." for line, off in explained.items()]


def _row(row: dict[str, Any]) -> list[str]:
    library = LIBRARIES[row["library"]]
    title = METHODS[row["method"]].title + (f", {row['variant']}" if row["variant"] else "")
    distance = "" if row["distance"] is None else f"{row['distance']:.0e}"
    reason = row["where"] or row["error"]
    verdict = row["verdict"] if row["verdict"] in ("reaches it", "not offered") else f"**{row['verdict']}**"
    verdict += f": {reason}" if reason else ""
    again = f"`{row['command']}`" if row["command"] else ""
    return [library.title, title, row["setting"], row["weights"], distance, verdict, again]


def page(file: Path = DOCS / "peers.json") -> str:
    """The whole of docs/conformance.md with the section made anew."""
    return with_section(DOCS / "conformance.md", BEGIN, section(file))


if __name__ == "__main__":
    (DOCS / "conformance.md").write_text(page(), encoding="utf-8")
