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
        'Cells: "off by" with the setting equal / unequal, and where a method ends instead; weights are marked where '
        "they are not those of Parley's row. `parley conformance METHOD --peer NAME` repeats a cell.\n",
        rows(("", *(method.title for method in METHODS.values())), lines(read["rows"])),
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


def lines(made: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each library with a cell for each method."""
    usual = {row["method"]: row["weights"] for row in made if row["library"] == "parley"}
    body = []
    for name in dict.fromkeys(row["library"] for row in made):
        cells = [[row for row in made if (row["library"], row["method"]) == (name, method)] for method in METHODS]
        body.append([f"{LIBRARIES[name].title} (`{name}`)", *(_cell(rows, usual) for rows in cells)])
    return body


def _cell(rows: list[dict[str, Any]], usual: dict[str, str]) -> str:
    """What the variants of a method did."""
    variants: dict[str, list[str]] = {}
    for row in rows:
        variants.setdefault(row["variant"] or "", []).append(_outcome(row))
    shown = {variant: " / ".join(dict.fromkeys(outcomes)) for variant, outcomes in variants.items()}
    words = "; ".join(f"{variant}: {outcome}" if variant else outcome for variant, outcome in shown.items())
    weights = {row["weights"] for row in rows if row["weights"] not in ("", usual.get(row["method"], row["weights"]))}
    return words + "".join(f" (weights by {each})" for each in sorted(weights))


def _outcome(row: dict[str, Any]) -> str:
    if row["verdict"] == "not offered":
        return "not offered"
    distance = "" if row["distance"] is None else f"{row['distance']:.0e}"
    verdict = "" if row["verdict"] == "reaches it" else f"**{row['verdict']}**"
    detail = row["where"] or row["error"] or ""
    return " ".join(filter(None, (distance, verdict + f", {detail}" * bool(detail))))


def page(file: Path = DOCS / "peers.json") -> str:
    """The whole of docs/conformance.md with the section made anew."""
    return with_section(DOCS / "conformance.md", BEGIN, section(file))


if __name__ == "__main__":
    (DOCS / "conformance.md").write_text(page(), encoding="utf-8")
