"""Writes the section "The last run of each workload" of docs/bench.md from docs/bench.json.

    parley bench --all --write docs/bench.json
    python docs/make_bench.py

A test compares the page with the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows, with_section  # noqa: E402

BEGIN = "<!-- Made by docs/make_bench.py from docs/bench.json; do not edit. -->"


def section(file: Path) -> str:
    """Everything between the two marks; a sentence while nothing has been written."""
    if not file.is_file():
        return "Nothing has been recorded yet.\n"
    read = json.loads(file.read_text(encoding="utf-8"))
    parts = [
        *sources(read),
        "Times are multiples of Parley's on the same chunks of rounds, with the smallest and largest over the chunks; "
        "differences are relative distances of the parameters from the plain loop's, at the end or, with dropout, "
        "after the rounds without it.\n",
        rows(("workload", "cores", "contestant", "version", "time, Parley = 1", "difference"), standings(read)),
        rows(("workload", "claim", "measured", "spread", "verdict"), claims(read)),
    ]
    if any(workload["scale"] != "full" for workload in read["workloads"]):
        parts.insert(0, "**At scale smoke, which measures nothing.**\n")
    return "\n".join(parts)


def sources(read: dict[str, Any]) -> list[str]:
    """A sentence for each day and command: which workloads it ran, and on what."""
    groups: dict[str, list[str]] = {}
    for workload in read["workloads"]:
        here = workload["machine"]
        text = (
            f"{workload['date']}, `{workload['command']}`, Parley {workload['parley']}, Python {here['python']}, torch "
            f"{here['torch']}, on a machine with {here['cores']} cores and {here['memory_gb']:g} GB"
        )
        groups.setdefault(text, []).append(workload["name"])
    return [f"{text}: {', '.join(names)}.\n" for text, names in groups.items()]


def standings(read: dict[str, Any]) -> list[list[str]]:
    """A row per contestant of a race with Parley."""
    body = []
    for workload in read["workloads"]:
        if all(standing["times"] is None for standing in workload["standings"]):
            continue  # its claims say what was measured
        for standing in workload["standings"]:
            versions = ", ".join(f"{name} {version}" for name, version in standing["versions"].items())
            times = "1" if standing["name"] == "parley" else ""
            if standing["times"] is not None:
                times = f"{standing['times']:.2f} ({standing['low']:.2f} to {standing['high']:.2f})"
            known = (
                standing["final_difference"]
                if standing["final_difference"] is not None
                else standing["early_difference"]
            )
            off = "" if known is None else f"{known:.0e}"
            body.append([workload["name"], str(workload["cores"]), standing["name"], versions, times, off])
    return body


def claims(read: dict[str, Any]) -> list[list[str]]:
    """A row per claim. A figure in microseconds holds on its machine only, so it is shown but is no target here."""
    body = []
    for workload in read["workloads"]:
        for claim in workload["claims"]:
            measured = "" if claim["value"] is None else f"{claim['value']:.3g}"
            spread = "" if claim["low"] is None else f"{claim['low']:.3g} to {claim['high']:.3g}"
            verdict = {True: "holds", False: "**does not hold**", None: "not judged"}[claim["passed"]]
            if "microseconds" in claim["claim"]:
                verdict = "this machine's figure"
            body.append([workload["name"], claim["claim"], measured, spread, verdict])
    return body


def page(file: Path = DOCS / "bench.json") -> str:
    """The whole of docs/bench.md with the section made anew."""
    return with_section(DOCS / "bench.md", BEGIN, section(file))


if __name__ == "__main__":
    (DOCS / "bench.md").write_text(page(), encoding="utf-8")
