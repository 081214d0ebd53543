"""Writes docs/reproduction.md from docs/reproduction.toml.

    python docs/make_reproduction.py

After a study has been run anew, change its entry there and run this; a test compares.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

from parley_papers.versions import PAPERS, titled  # noqa: E402

VERDICTS = ("reproduced", "in part", "not", "undecided", "not run", "no result")

INTRODUCTION = """\
# Reproduction status

<!-- Made by docs/make_reproduction.py from docs/reproduction.toml; do not edit. -->

Every figure and table of the five papers behind Parley, with the paper's numbers and ours.

| verdict | |
| --- | --- |
| reproduced | the paper's statement holds in the run named |
| in part | some of it holds, or on smaller data or another network than the paper's ("ours" says which) |
| **not** | it does not hold in the run named |
| undecided | no run was long enough, or its interval includes both answers |
| not run | not run to its end at a scale that could show it |
| no result | a schematic, a list of settings, or a study of ours |

A verdict rests on the scale and date beside it: `cpu` is smaller than the paper, `paper` has the paper's sizes. **Scale
`smoke` supports nothing**: the tests run every study at it to see that it runs. The date is when the study was run, or
for results described only in [studies](studies.md) when they were written down. Seconds are wall time on one or two
busy cores, tuning included; some runs from before 2026-11-18 have none. `parley reproduce NAME --scale SCALE` runs a
study again, with its checks, after printing its size; interrupted, the same command resumes.
"""


def entries() -> dict[str, list[dict[str, Any]]]:
    """The entries of each paper, in the order of the file."""
    read = tomllib.loads((DOCS / "reproduction.toml").read_text(encoding="utf-8"))
    return {paper: read[paper] for paper in read["papers"]}


def page() -> str:
    """The whole page."""
    read = tomllib.loads((DOCS / "reproduction.toml").read_text(encoding="utf-8"))
    titles, notes = read["papers"], read["notes"]
    parts = [INTRODUCTION, summary()]
    for paper, listed in entries().items():
        parts.append(f"## {_authors(titles[paper])} (`{PAPERS[paper]}`)\n\n{titles[paper]}.\n")
        parts.append(rows(("item", "verdict", "the paper", "ours", "run"), map(_row, listed)))
        parts += [notes[paper]] if paper in notes else []
    return re.sub(r"`(00\d/[^`]+)`", lambda study: f"`{titled(study[1])}`", "\n".join(parts))


def _authors(title: str) -> str:
    """`Su et al.`, or both where there are two."""
    names = title.partition(":")[0]
    return names if "," not in names else f"{names.partition(',')[0]} et al."


def summary() -> str:
    titles = tomllib.loads((DOCS / "reproduction.toml").read_text(encoding="utf-8"))["papers"]
    counts = {paper: Counter(entry["verdict"] for entry in listed) for paper, listed in entries().items()}
    body = [
        [f"{_authors(titles[paper])} (`{PAPERS[paper]}`)", *(str(listed[verdict] or "") for verdict in VERDICTS)]
        for paper, listed in counts.items()
    ]
    return rows(("paper", *VERDICTS), body)


def _row(entry: dict[str, Any]) -> list[str]:
    verdict = f"**{entry['verdict']}**" if entry["verdict"] == "not" else entry["verdict"]
    run = f"`{entry['study']}`" if "study" in entry else ""
    run += f" {', '.join(_run(entry))}" if "date" in entry else ""
    ours = entry.get("ours", "")
    if "crossing" in entry:
        ours += f". The authors' curves cross at about step {entry['crossing']:,}"
    return [entry["item"], verdict, entry.get("paper", ""), ours, run]


def _run(entry: dict[str, Any]) -> list[str]:
    """What is known of the run: scale, date, seeds, length, seconds, commit."""
    parts = [entry["scale"]] if "scale" in entry else []
    parts.append(str(entry["date"]))
    parts += [f"seed{'s' * (not entry['seeds'].isdigit())} {entry['seeds']}"] if "seeds" in entry else []
    parts += [f"{entry['steps']:,} steps"] if "steps" in entry else []
    parts += [entry["length"]] if "length" in entry else []
    parts += [f"{entry['seconds']:,} s"] if "seconds" in entry else []
    parts += [f"commit {entry['commit']}"] if "commit" in entry else []
    return parts


if __name__ == "__main__":
    (DOCS / "reproduction.md").write_text(page(), encoding="utf-8")
