"""`parley attack`: table, files, refusals."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

STUDY = """
[data]
name = "digits"
clients = 5
[model]
name = "mlp"
hidden = [16]
[algorithm]
name = "fedavg"
"""
QUICK = ("--victims", 1, "--batch", 1, "--restarts", 1)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def test_table_figure_and_files(parley, place: Path) -> None:
    more = ("--defence", "top-k(0.1)", "--after", 1, "--figure", "a.png", "--csv", "a.csv", "--json", "a.json")
    code, out, err = parley("attack", "study.toml", *QUICK, *more)
    assert code == 0, err
    assert all(line.startswith("defences: ") for line in err.splitlines())  # on a slow machine it says how far it is
    words = " ".join(out.split())
    assert "Membership by loss after 1 rounds: AUC" in words
    assert "top-k(0.1)" in words
    assert (place / "a.png").stat().st_size > 10_000
    scores = list(csv.DictReader((place / "a.csv").open()))
    assert {row["attack"] for row in scores} == {"division", "dlg", "cosine", "blind"}
    body = json.loads((place / "a.json").read_text())
    assert body["method"] == "FedAvg"
    assert len(body["scores"]) == len(scores)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--defence", "top-k"), "share is missing"),
        (("--defence", "nothing(1)"), "unknown channel 'nothing'"),
        (("--victims", 0), "at least one victim"),
        (("--figure", "a.bmp"), "ends in .png"),
        (("--set", "algorithm.name=centralised"), "has them already"),
    ],
)
def test_bad_input_is_a_sentence(parley, arguments: tuple[object, ...], said: str) -> None:
    code, out, err = parley("attack", "study.toml", *QUICK, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_missing_package_is_a_sentence(parley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    code, _, err = parley("attack", "study.toml", *QUICK, "--defence", "none")
    assert code == 2
    assert "pip install -c constraints.txt '.[attack]'" in err
