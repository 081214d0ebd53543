"""Papers are called by their authors; the old numbers still work."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import parley as pl
from parley_papers.catalogue import matching, run_study, studies
from parley_papers.printed import catalogue, checks_table
from parley_papers.versions import PAPERS


@pytest.mark.parametrize(("number", "authors"), PAPERS.items())
def test_a_paper_is_found_by_its_authors_and_by_its_number(number: str, authors: str) -> None:
    expected = [name for name in studies if name.startswith(f"{number}/")]
    assert expected
    assert matching(authors) == matching(number) == expected


def test_a_study_is_found_either_way_and_has_one_name() -> None:
    assert matching("charles2021/fig1") == matching("001/fig1") == ["001/fig1"]
    assert run_study("charles2021/fig1").study == "001/fig1"
    with pytest.raises(pl.InputError, match="unknown study 'su2023/fig99'"):
        matching("su2023/fig99")


def test_users_read_the_authors(tmp_path: Path) -> None:
    screen = Console(file=StringIO(), width=200)
    screen.print(catalogue())
    result = run_study("001/fig1", out=tmp_path)
    screen.print(checks_table(result))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "charles2021/fig1 (smoke)" in shown
    assert not any(f"{number}/" in shown for number in PAPERS)
    assert result.files[0] == tmp_path / "charles2021" / "fig1" / "smoke.json"
    assert json.loads(result.files[0].read_text())["study"] == "charles2021/fig1"


def test_pages_name_studies_by_their_authors() -> None:
    docs = Path(__file__).parents[2] / "docs"
    numbers = "|".join(PAPERS)
    for page in [*docs.glob("**/*.md"), *docs.glob("tutorials/*.ipynb")]:
        named = re.findall(rf"`(?:parley reproduce )?((?:{numbers})/[a-z][^`]*)`", page.read_text(encoding="utf-8"))
        assert set(named) <= ({"000/fig1"} if page.name == "faq.md" else set()), page.name
