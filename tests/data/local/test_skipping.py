"""Rows that cannot be read: refused, or left out when asked, counted and named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import parley as pl
from parley.core.errors import InputError, ParleyWarning
from parley.data.local.folder import open_files
from parley.data.local.tables import Cells

BROKEN = """age,came,pain,ill
31,2020-01-01,mild,no
old,2020-01-02,none,yes
45,2020-01-03,none,yes
46,3.1.2020,none,yes
47,2020-01-05,none,
inf,2020-01-06,none,no
50,2020-01-07
60,2020-01-08,severe,yes
61,2020-01-09,mild,no
62,2020-01-10,mild,no
63,2020-01-11,mild,yes
"""
KEPT = [31, 45, 60, 61, 62, 63]
HOW = {"target": "ill", "categories": ["pain"], "dates": ["came"]}


def folder(tmp_path: Path) -> Path:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "a.csv").write_text(BROKEN)
    whole = BROKEN
    mended = {"old": "44", "inf": "49", "3.1.2020": "2020-01-04", "none,\n": "none,no\n", "01-07\n": "01-07,mild,no\n"}
    for wrong, right in mended.items():
        whole = whole.replace(wrong, right)
    (tmp_path / "sites" / "b.csv").write_text(whole)
    return tmp_path / "sites"


def test_rows_of_files_are_left_out_counted_and_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"line 3, column 'age' .* holds 'old'"):
        pl.Federation.from_folder(folder(tmp_path), **HOW)
    with pytest.warns(ParleyWarning, match=r"5 rows of '.*a.csv' skipped, the first because line 3") as said:
        data = pl.Federation.from_folder(tmp_path / "sites", on_error="skip", **HOW)
    assert len(said) == 1
    assert data.client("a").x[:, 0].tolist() == KEPT
    assert len(data.client("b")) == 11


def test_each_skipped_row_has_its_reason(tmp_path: Path):
    cells = Cells(categories=("pain",), dates=("came",), skip=True)
    source = open_files((folder(tmp_path) / "a.csv",), "t", "ill", None, None, cells)
    reasons = (
        "line 3, column 'age' .* 'old'",
        "line 5, column 'came' .* '3.1.2020', which is no date",
        "line 8 .* 2 columns",
        "line 6, column 'ill' .* no target",
        "line 7, column 'age' .* 'inf'",
    )
    for row, reason in zip(source.skipped[0], reasons, strict=True):
        assert re.search(reason, row), row


@pytest.mark.parametrize("as_file", [False, True])
def test_rows_of_frames_are_left_out_with_their_clients(tmp_path: Path, as_file: bool):
    frame = pd.DataFrame(
        {
            "age": [31, "old", 45, 46, 47, 48, 60, 61, 62],
            "came": ["2020-01-01"] * 3 + ["soon"] + ["2020-01-01"] * 5,
            "pain": ["mild", "none", None, *["mild"] * 6],
            "ill": ["no", "yes", "no", "yes", None, *["yes"] * 4],
            "site": list("aaabbbaab"),
        }
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    given = tmp_path / "all.csv" if as_file else frame
    with pytest.warns(ParleyWarning, match="4 rows of"):
        data = pl.Federation.from_frame(given, client="site", on_error="skip", **HOW)
    assert {site: data.client(site).x[:, 0].tolist() for site in data.ids} == {"a": [31, 60, 61], "b": [48, 62]}


def test_a_file_of_which_most_rows_cannot_be_read_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text('age,ill\n"3,1",no\n"4,5",yes\n5,yes\n')
    with pytest.raises(InputError, match=r"2 of 3 rows of .* cannot be read, too many to be skipped; the first: line"):
        pl.Federation.from_folder(tmp_path, target="ill", on_error="skip")


def test_nothing_is_skipped_where_rows_are_predicted():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(size=40), "ill": rng.choice(["no", "yes"], 40), "site": ["a", "b"] * 20})
    data = pl.Federation.from_frame(frame, client="site", target="ill", on_error="skip")
    run = pl.train(pl.FedAvg(), data, model=pl.models.linear(), rounds=1, runtime="inline")
    with pytest.raises(InputError, match="holds 'old'"):
        run.predict(pd.DataFrame({"age": [1.0, "old"]}))


def test_other_words_for_it_are_refused():
    with pytest.raises(InputError, match='on_error is "refuse" or "skip"'):
        pl.Federation.from_frame({"a": [1], "b": [1], "c": ["x"]}, client="c", target="b", on_error="ignore")  # type: ignore[arg-type]
