"""The reproduction status: made from its table, complete, and never resting on a scale that shows nothing."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from parley_papers.catalogue import studies

DOCS = Path(__file__).parents[2] / "docs"
MADE = runpy.run_path(str(DOCS / "make_reproduction.py"))
ENTRIES = MADE["entries"]()
FIGURES = {"000": 6, "001": 13, "002": 1, "003": 9, "004": 3}
TABLES = {"000": 0, "001": 3, "002": 2, "003": 1, "004": 5}
ALL = [(paper, entry) for paper, own in ENTRIES.items() for entry in own]


def test_the_page_is_in_step_with_its_table():
    assert (DOCS / "reproduction.md").read_text(encoding="utf-8") == MADE["page"](), "run docs/make_reproduction.py"


@pytest.mark.parametrize("paper", FIGURES)
def test_every_figure_and_table_is_listed(paper: str):
    listed = {entry["item"].partition(",")[0] for entry in ENTRIES[paper]}
    expected = {f"Figure {n}" for n in range(1, FIGURES[paper] + 1)} | {
        f"Table {n}" for n in range(1, TABLES[paper] + 1)
    }
    assert expected <= listed
    assert {item for item in listed if item.startswith(("Figure", "Table"))} == expected


def test_every_study_of_a_paper_is_listed_and_exists():
    named = {entry["study"] for _, entry in ALL if "study" in entry}
    assert named <= set(studies)
    assert {name for name in studies if name.partition("/")[0] in ENTRIES} <= named


@pytest.mark.parametrize(("paper", "entry"), ALL, ids=[f"{paper} {entry['item']}" for paper, entry in ALL])
def test_a_verdict_rests_on_a_run(paper: str, entry: dict[str, object]):
    assert entry["verdict"] in MADE["VERDICTS"]
    rests = entry["verdict"] in ("reproduced", "in part", "not")
    assert ("scale" in entry) == ("date" in entry)
    assert entry["verdict"] == "undecided" or rests == ("scale" in entry)
    if "scale" in entry or entry["verdict"] == "undecided":
        assert entry["ours"]
    if "scale" in entry:
        assert entry["scale"] in ("cpu", "paper")
        assert entry["scale"] in studies[str(entry["study"])].scales
    assert str(entry.get("study", paper)).startswith(paper)
    run = {"seeds", "length", "steps", "seconds", "commit", "crossing"}
    assert set(entry) <= {"item", "study", "verdict", "scale", "date", "paper", "ours", *run}
    assert "date" in entry or not run & set(entry)
    assert "commit" not in entry or "seconds" in entry
    assert not any("|" in str(value) or "\n" in str(value) for value in entry.values())


@pytest.mark.parametrize(("paper", "entry"), ALL, ids=[f"{paper} {entry['item']}" for paper, entry in ALL])
def test_no_run_refutes_what_it_was_too_short_to_show(paper: str, entry: dict[str, Any]):
    """The authors' own curves of FedALS lie below FedAvg's at first; a run that ends there decides nothing."""
    assert ("crossing" in entry) <= ("steps" in entry)
    short = entry.get("steps", 1) < entry.get("crossing", 0)
    undecided = entry["verdict"] == "undecided" and "scale" in entry
    assert undecided <= (short or "interval" in str(entry.get("ours")))
    if short:
        assert entry["verdict"] in ("undecided", "in part")
        assert f"{entry['crossing']:,}" in MADE["_row"](entry)[3]


def test_every_comparison_of_fedals_says_how_long_its_runs_were():
    compared = [
        e
        for e in ENTRIES["004"]
        if "accuracy" in e["item"]
        or e["item"]
        in ("Figure 2", "Figure 3", "Table 1", "Table 2, with BatchNorm", "Table 2, ResNet-20 at 32x32", "Table 3")
    ]
    assert len(compared) == 7
    assert all("crossing" in entry for entry in compared)
