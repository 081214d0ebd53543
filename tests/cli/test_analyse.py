"""`parley analyse`: tables, files, figures and refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import parley as pl

EXAMPLES = Path(__file__).parents[2] / "examples"
CURVES = ("--model", "kaplan-meier", "--event", "died")
COX = ("--model", "cox", "--event", "died", "--covariates", "age,treated,marker")


@pytest.fixture
def analyse(parley, tmp_path, monkeypatch):
    for name in ("trial", "trial.toml"):
        (shutil.copytree if (EXAMPLES / name).is_dir() else shutil.copy)(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return lambda *more: parley("analyse", "trial.toml", *more)


def test_curves_in_a_table_and_files(analyse):
    code, out, err = analyse(
        *CURVES, "--by", "treated", "--grid", "0:1825:30", "--csv", "a.csv", "--json", "a.json", "--figure", "a.svg"
    )
    assert code == 0, err
    found = pl.analyse(pl.load_study("trial.toml"), "kaplan-meier", event="died", by="treated", grid=range(0, 1825, 30))
    assert all(note in out for note in found.notes())
    assert f"p = {found.p:.4g}." in out
    for curve in found.curves:
        assert re.search(rf"{curve.median:g} +{curve.median_low:g} to {curve.median_high:g}", out)
    assert Path("a.json").read_text() == found.json()
    assert Path("a.csv").read_text() == found.csv()
    assert Path("a.svg").stat().st_size > 1000


def test_sites_and_who_is_left_out(analyse):
    code, out, err = analyse(*COX, "--sites", "--leave-one-out", "--json", "a.json", "--figure", "a.png")
    assert code == 0, err
    found = json.loads(Path("a.json").read_text())
    for one in found["heterogeneity"]:
        assert f"Sites' {one['name']}: Q {one['q']:.4g} with 3 degrees of freedom" in out
        assert f"I2 {one['i2']:.1%}" in out
    assert [one["client"] for one in found["left_out"]] == ["east", "north", "south", "west"]
    assert all(f"{one['score']:.5g}" in out for one in found["left_out"])
    assert "concordance" in out
    for rest in (("--model", "cox", "--covariates", "age"), ("--model", "kaplan-meier", "--times", "raw")):
        code, out, err = analyse(*rest)
        assert (code, "All rows count as events" in " ".join(out.split())) == (0, True), err
    assert "NOT the usual ones" in analyse(*COX, "--penalty", "5")[1]


def test_levels_of_texts_are_in_the_heads_of_tables(parley, tmp_path, monkeypatch):
    (tmp_path / "sites").mkdir()
    for site in "ab":
        rows = "".join(f"{age},{'mf'[age % 2]},{age % 7}\n" for age in range(30, 70))
        (tmp_path / "sites" / f"{site}.csv").write_text("age,sex,score\n" + rows)
    (tmp_path / "study.toml").write_text('[data]\nfolder = "sites"\ntarget = "score"\ncategories = ["sex"]\n')
    monkeypatch.chdir(tmp_path)
    code, out, err = parley("analyse", "study.toml", "--model", "gaussian", "--sites")
    assert code == 0, err
    assert re.search(r"sex\[m\] +estimate +std. error", out)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (CURVES, "need a grid"),
        ((*CURVES, "--times", "raw", "--by", "age"), "is none of the groups 0, 1; name its values"),
        ((*CURVES, "--times", "raw", "--by", "treated", "--groups", "a,b"), "'treated' holds numbers, and 'a' is none"),
        ((*CURVES, "--times", "stratified"), "times"),
        ((*CURVES, "--grid", "400:900:30"), "nor lie before 400"),
        ((*CURVES, "--times", "raw", "--figure", "curves"), "the ending of its name"),
        ((*COX, "--figure", "a.png"), "add --sites"),
        ((*COX, "--by", "treated"), "by is no setting of the model cox"),
        (("--model", "lasso"), "take a penalty (ridge)"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(analyse, more, sentence):
    code, _, err = analyse(*more)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
