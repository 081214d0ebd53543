"""Writes docs/reproduction.md from docs/reproduction.toml.

    python docs/make_reproduction.py

After a study has been run anew, change its entry there and run this; a test compares.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

VERDICTS = ("reproduced", "in part", "not", "undecided", "not run", "no result")

INTRODUCTION = """\
# Reproduction status

<!-- Made by docs/make_reproduction.py from docs/reproduction.toml; do not edit. -->

Every figure and table of the five papers behind Parley, with the paper's numbers and ours. What the verdicts mean:

| verdict | |
| --- | --- |
| reproduced | the paper's statement holds in the run named, with the numbers shown |
| in part | some of it holds, or on smaller data or another network than the paper's; "ours" says which |
| **not** | it was looked for and not found |
| undecided | no run came far enough, or its interval holds both answers: it speaks neither for it nor against it |
| not run | the study exists, but has not been run to its end at a scale that could show it |
| no result | a schematic, a list of settings, or a study of ours: there is nothing of the paper's to reproduce |

A verdict rests on the scale and date beside it: `cpu` is smaller than the paper, `paper` has the paper's sizes. **Scale
`smoke` supports nothing**: the tests run every study at it, which shows that the study runs and no more. `parley
reproduce NAME --scale SCALE` makes each of these again, with its checks; [studies](studies.md) tells the stories behind
the numbers, the failed designs among them. The date is that of the run or, of runs told there, of the telling.
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
    for paper, own in entries().items():
        parts.append(f"## Paper {paper}\n\n{titles[paper]}.\n")
        parts.append(rows(("item", "verdict", "the paper", "ours", "run"), map(_row, own)))
        parts += [notes[paper]] if paper in notes else []
    return "\n".join(parts)


def summary() -> str:
    counts = {paper: Counter(entry["verdict"] for entry in own) for paper, own in entries().items()}
    body = [[paper, *(str(own[verdict] or "") for verdict in VERDICTS)] for paper, own in counts.items()]
    return rows(("paper", *VERDICTS), body)


def _row(entry: dict[str, Any]) -> list[str]:
    verdict = f"**{entry['verdict']}**" if entry["verdict"] == "not" else entry["verdict"]
    run = f"`{entry['study']}`" if "study" in entry else ""
    run += f" {entry['scale']}, {entry['date']}" if "scale" in entry else ""
    ours = entry.get("ours", "")
    if "crossing" in entry:
        ours += f". {entry['steps']:,} steps; the authors' curves cross at about {entry['crossing']:,}"
    return [entry["item"], verdict, entry.get("paper", ""), ours, run]


if __name__ == "__main__":
    (DOCS / "reproduction.md").write_text(page(), encoding="utf-8")
