"""Papers are called by their authors; the old numbers still work."""

from __future__ import annotations

import pytest

import parley as pl
from parley_papers.catalogue import matching, run_study, studies
from parley_papers.versions import PAPERS


@pytest.mark.parametrize(("number", "authors"), PAPERS.items())
def test_a_paper_is_found_by_its_authors_and_by_its_number(number: str, authors: str) -> None:
    expected = [name for name in studies if name.startswith(f"{number}/")]
    assert expected
    assert matching(authors) == matching(number) == expected


def test_a_study_is_found_either_way_and_has_one_name() -> None:
    assert matching("charles2021/fig1") == matching("001/fig1") == ["001/fig1"]
    assert run_study("charles2021/fig1").study == "001/fig1"
    with pytest.raises(pl.InputError, match="unknown study '000/fig99'"):
        matching("su2023/fig99")
