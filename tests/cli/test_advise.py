"""`parley advise`: the advice, the page, the study that parley run takes, and refusals."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import parley as pl
from parley.study.toml import study_from_dict

LINEAR = """
rounds = 20
[data]
name = "diabetes"
clients = 5
[model]
name = "linear"
zero = true
[evaluate]
metric = "loss"
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(LINEAR)
    return tmp_path


@pytest.mark.long
def test_advice_page_and_study(parley, place: Path):
    code, out, err = parley("advise", "study.toml", "--page", "a.html", "--write", "b.toml", "--json", "c.json")
    assert code == 0, err
    for words in ("largest curvature L", "Advised for 20 rounds", "local steps K", "Not estimated:", "Who gains"):
        assert words in out
    page = (place / "a.html").read_text()
    assert "What could not be estimated" in page
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)  # nothing is fetched
    assert json.loads((place / "c.json").read_text())["budget"]["rounds"] == 20
    code, _, err = parley("run", "b.toml", "--quiet", "--rounds", "2")
    assert code == 0, err


def test_a_pilot_and_megabytes(parley, place: Path):
    code, out, err = parley("advise", "study.toml", "--megabytes", "0.2", "--pilot", "--no-gain")
    assert code == 0, err
    assert "of the" in out
    assert "qsgd(8)" in out


def test_client_names_are_hidden_unless_asked_for(parley, place: Path):
    sites = place / "clinics"
    sites.mkdir()
    for name in ("secret-north", "secret-south"):
        rows = "".join(f"{i},{i % 7},{0.5 * i + i % 3}\n" for i in range(30))
        (sites / f"{name}.csv").write_text(f"age,dose,outcome\n{rows}")
    study = '[data]\nfolder = "clinics"\ntarget = "outcome"\nstandardise = true\n[model]\nname = "linear"\n'
    (place / "study.toml").write_text("rounds = 5\n" + study)
    code, _, err = parley("advise", "study.toml", "--page", "a.html", "--write", "w.toml")
    assert code == 0, err
    assert "secret-north" not in (place / "a.html").read_text()
    code, _, err = parley("advise", "study.toml", "--page", "a.html", "--names")
    assert code == 0, err
    assert "secret-north" in (place / "a.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "data.clients=1"), "only one"),
        (("--set", "model.name=mlpp"), "mlp"),
        (("--rounds", "0"), "at least one round"),
        (("--megabytes", "0.0001"), "do not pay for one round"),
        (("--set", "algorithm.name=ffgb"), "leave out the model"),
        (("--page", "study.toml/a.html"), "cannot be written"),
    ],
)
def test_refusals(parley, arguments: tuple[str, ...], words: str):
    code, _, err = parley("advise", "study.toml", "--no-gain", *arguments)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_no_such_study(parley):
    code, _, err = parley("advise", "none.toml")
    assert code == 2
    assert "no study file" in err


def test_the_lines_to_change_make_the_study_that_is_written(parley, place: Path):
    rng = np.random.default_rng(0)
    (place / "sites").mkdir()
    for name in "abc":
        ill = rng.random(200) < 0.05
        rows = "".join(
            f"{v:.3f},{w:.3f},{int(y)}\n" for v, w, y in zip(rng.normal(size=200) + ill, ill * 1.0, ill, strict=True)
        )
        (place / "sites" / f"{name}.csv").write_text(f"age,dose,ill\n{rows}")
    text = """rounds = 6
[data]
folder = "sites"
target = "ill"
kind = "classification"
test_fraction = 0.3
[model]
name = "mlp"
hidden = [4]
[algorithm]
name = "fedavgm"
steps = 7
"""
    (place / "study.toml").write_text(text)
    code, out, err = parley("advise", "study.toml", "--no-gain", "--write", "b.toml")
    assert code == 0, err
    lines = tomllib.loads(out.split("The lines to change in the study:")[1].replace("b.toml\n", ""))
    assert "batch" not in lines["evaluate"]
    assert lines["model"]["name"] == "linear"
    assert lines["algorithm"]["options"]["weight_decay"] > 0
    assert lines["evaluate"]["headline"] == "clients/loss"
    merged = tomllib.loads(text) | lines
    made, written = study_from_dict(merged, place).resolved(), pl.load_study(place / "b.toml").resolved()
    assert made | {"name": ""} == written | {"name": ""}
