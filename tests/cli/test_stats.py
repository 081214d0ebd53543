"""`parley stats`: tables, notes, schema differences, frozen studies and refusals."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

STUDY = """
rounds = 2
[data]
folder = "clinics"
target = "label"
[model]
name = "linear"
[algorithm]
name = "fedavg"
lr = 0.1
"""


def clinic(place: Path, name: str, n: int, seed: int, header: str = "age,dose,label") -> None:
    rng = np.random.default_rng(seed)
    age, dose = rng.integers(20, 80, n), rng.normal(size=n) * 2 + 5
    label = np.where(age > 50, "ill", "well")
    rows = [f"{a},{d:.3f},{c}" for a, d, c in zip(age, dose, label, strict=True)]
    if header.startswith("dose"):
        rows = [f"{d:.3f},{a},{c}" for a, d, c in zip(age, dose, label, strict=True)]
    (place / "clinics" / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics").mkdir()
    for number, (name, n) in enumerate({"north": 60, "south": 45, "west": 80}.items()):
        clinic(tmp_path, name, n, number)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def test_the_tables_and_files(parley, place: Path):
    code, out, _ = parley("stats", "study.toml", "--csv", "stats.csv", "--json", "stats.json")
    assert code == 0
    words = " ".join(out.split())
    assert "column count mean std low block 25% median 75% high block histogram" in words
    assert "class samples share" in words
    assert "185 samples of 3 out of 3 clients." in words
    assert "A quantile's rank is off by at most" in words
    columns = [
        np.genfromtxt(file, delimiter=",", skip_header=1, usecols=(0, 1)) for file in place.glob("clinics/*.csv")
    ]
    pooled = np.concatenate(columns).astype(np.float32).astype(np.float64)
    rows = list(csv.DictReader((place / "stats.csv").read_text().splitlines()))
    assert [row["feature"] for row in rows] == ["age", "dose"]
    np.testing.assert_allclose([float(row["mean"]) for row in rows], pooled.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose([float(row["std"]) for row in rows], pooled.std(axis=0), rtol=1e-12)
    stored = json.loads((place / "stats.json").read_text())
    assert sum(stored["labels"].values()) == 185
    assert stored["classes"] == ["ill", "well"]


def test_small_clients_rare_classes_and_missing_values_are_told(parley, place: Path):
    clinic(place, "tiny", 4, 9)
    rows = (place / "clinics" / "west.csv").read_text().splitlines()
    rows[1] = rows[1].replace(rows[1].split(",")[1], "")
    rows[2] = rows[2].rpartition(",")[0] + ",dead"
    (place / "clinics" / "west.csv").write_text("\n".join(rows) + "\n")
    code, out, _ = parley("stats", "study.toml", "--set", "data.missing=true")
    assert code == 0
    words = " ".join(out.split())
    assert "column count missing mean" in words
    assert "185 samples of 3 out of 4 clients." in words
    assert "1 sent nothing: fewer than 10 samples each (--floor)." in words
    assert "samples are withheld: their client has fewer than 10 of some class (--floor)" in words
    assert "left out" not in words.lower()
    assert "dead 0 0.00%" in words
    assert "tiny has no sample of the class" in words
    assert "no matter" in words


def test_the_ends_are_named_for_what_they_are(parley, place: Path):
    """The mean of the lowest block is not the smallest value, and is not called so."""
    _, out, _ = parley("stats", "study.toml", "--csv", "stats.csv")
    words = " ".join(out.split())
    assert "Low and high block: the mean of the lowest and the highest 10 or more values of a client (--floor)" in words
    assert {"least", "most"}.isdisjoint(out.splitlines()[1].split())
    row = next(csv.DictReader((place / "stats.csv").read_text().splitlines()))
    assert {"low", "high"} <= row.keys()
    assert {"0%", "100%", "least", "most"}.isdisjoint(row)
    smallest = min(
        int(line.split(",")[0]) for path in place.glob("clinics/*.csv") for line in path.open() if line[0].isdigit()
    )
    assert float(row["low"]) > smallest
    _, out, _ = parley("stats", "study.toml", "--quantiles", "cells")
    words = " ".join(out.split())
    assert "low cell 25% median 75% high cell" in words
    assert "they need not be values that occur" in words


def test_columns_narrow_beside_their_offset_are_told_apart(parley, place: Path):
    for path in place.glob("clinics/*.csv"):
        lines = path.read_text().splitlines()
        rows = [f"{1_700_000_000 + 10 * i},{line}" for i, line in enumerate(lines[1:])]
        path.write_text("\n".join([f"when,{lines[0]}", *rows]) + "\n")
    code, _, err = parley("stats", "study.toml")
    assert code == 2
    assert "column 'when' of " in err
    assert "which float32 rounds to" in err
    code, out, _ = parley("stats", "study.toml", "--set", "data.dtype=float64")
    assert code == 0
    when = next(line for line in out.splitlines() if " when " in line).split()
    shown = [float(value) for value in when[4:9]]
    assert sorted(set(shown)) == shown
    assert shown[0] >= 1_700_000_000


def test_a_column_of_zeros_and_ones_is_filled_with_one_of_them(parley, place: Path):
    rng = np.random.default_rng(0)
    for path in place.glob("clinics/*.csv"):
        lines = path.read_text().splitlines()
        rows = [f"{'' if rng.random() < 0.1 else int(rng.random() < 0.45)},{line}" for line in lines[1:]]
        path.write_text("\n".join([f"smoker,{lines[0]}", *rows]) + "\n")
    for more in ([], ["--quantiles", "cells"]):
        code, _, _ = parley(
            "stats", "study.toml", "--set", "data.missing=true", "--fill", "median", "--freeze", "frozen.toml", *more
        )
        assert code == 0
        assert tomllib.loads((place / "frozen.toml").read_text())["preprocessing"]["fill"][0] == 0.0
        (place / "frozen.toml").unlink()


def test_freeze_and_train(parley, place: Path):
    code, out, _ = parley("stats", "study.toml", "--freeze", "frozen.toml", "--method", "robust")
    assert code == 0
    assert out.rstrip().endswith("frozen.toml")
    frozen = tomllib.loads((place / "frozen.toml").read_text())
    assert frozen["preprocessing"]["columns"] == ["age", "dose"]
    assert frozen["preprocessing"]["classes"] == ["ill", "well"]
    assert len(frozen["preprocessing"]["center"]) == 2
    assert {name: frozen[name] for name in ("data", "model", "algorithm")} == {
        name: tomllib.loads(STUDY)[name] for name in ("data", "model", "algorithm")
    }
    code, _, err = parley("run", "frozen.toml", "--quiet", "--store", "runs.db")
    assert (code, err) == (0, "")
    code, _, err = parley("stats", "study.toml", "--freeze", "frozen.toml")
    assert (code, "frozen.toml is there already" in err) == (2, True)
    code, _, err = parley("stats", "study.toml", "--freeze", "clinics/frozen.toml")
    assert (code, "must lie beside study.toml" in err) == (2, True)
    code, out, _ = parley("stats", "frozen.toml", "--freeze", "again.toml", "--method", "robust")
    assert code == 0
    assert tomllib.loads((place / "again.toml").read_text()) == frozen


def test_missing_values_are_filled_for_methods_that_cannot_do_with_them(parley, place: Path):
    path = place / "clinics" / "west.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], f",{rows[1].partition(',')[2]}", *rows[2:]]) + "\n")
    (place / "gaps.toml").write_text(STUDY.replace('target = "label"', 'target = "label"\nmissing = true'))
    code, _, err = parley("run", "gaps.toml", "--quiet", "--store", "runs.db")
    assert (code, "cannot take missing values" in err) == (2, True)
    assert "parley stats STUDY --freeze FILE --fill median" in err
    assert parley("stats", "gaps.toml", "--freeze", "frozen.toml", "--fill", "median")[0] == 0
    code, _, err = parley("run", "frozen.toml", "--quiet", "--store", "runs.db")
    assert (code, err) == (0, "")
    age, dose = tomllib.loads((place / "frozen.toml").read_text())["preprocessing"]["fill"]
    (place / "gaps.csv").write_text("age,dose\n,2.0\n50,\n")
    (place / "filled.csv").write_text(f"age,dose\n{age!r},2.0\n50,{dose!r}\n")
    for name in ("gaps", "filled"):
        assert parley("predict", "last", f"{name}.csv", "--out", f"{name}-out.csv", "--store", "runs.db")[0] == 0
    assert (place / "gaps-out.csv").read_text() == (place / "filled-out.csv").read_text()
    code, _, err = parley("predict", "last", "gaps.csv", "--out", "out.xlsx", "--store", "runs.db")
    assert (code, "predictions are written as .csv" in err) == (2, True)
    (place / "none.csv").write_text("age,dose\n")
    code, _, err = parley("predict", "last", "none.csv", "--out", "out.csv", "--store", "runs.db")
    assert (code, "'none.csv' has no samples to predict" in err) == (2, True)


@pytest.mark.parametrize(
    ("header", "row", "told"),
    [
        ("age,label", "50,ill", "east lacks the column dose"),
        ("age,dose,sex,label", "50,1,0,ill", "east alone has the column sex"),
        ("age,dose,label", "50,often,ill", "east cannot be read: line 2, column 'dose'"),
        ("age,dose,label", "50,,ill", "east cannot be read: line 2, column 'dose'"),
        ("age,dose,label", "50,inf,ill", "east cannot be read: line 2, column 'dose'"),
        ("age,dose,label", "50,1,", "east cannot be read:"),
    ],
)
def test_clients_that_do_not_fit_are_all_named(parley, place: Path, header: str, row: str, told: str):
    (place / "clinics" / "east.csv").write_text(f"{header}\n{row}\n")
    code, out, err = parley("stats", "study.toml")
    assert code == 2
    assert told in " ".join(out.split())
    assert "must be mended" in out
    assert err.count("\n") == 1
    assert "client 'east' " in err
    assert err.endswith("mend it first.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.toml"], "there is no study file none.toml."),
        (["study.toml", "--floor", "0"], "floor must lie between 1 and"),
        (["study.toml", "--quantiles", "sketches"], "--quantiles takes blocks or cells, not 'sketches'."),
        (["study.toml", "--range", "1"], "--range takes two numbers such as 0,16, not '1'."),
        (["study.toml", "--range", "2,1"], "low must be below high"),
        (["study.toml", "--method", "zscore"], "--method takes standard, min-max, robust, none, not 'zscore'."),
        (["study.toml", "--fill", "zero"], "--fill takes mean or median, not 'zero'."),
        (["study.toml", "--fill", "median"], "give --freeze FILE too."),
        (["study.toml", "-f", "nowhere"], "nowhere"),
        (["study.toml", "--floor", "100", "--freeze", "f.toml"], "has no values that clients may report"),
    ],
)
def test_mistakes(parley, place: Path, arguments: list[str], sentence: str):
    code, _, err = parley("stats", *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert sentence in err
    assert not (place / "f.toml").exists()


def test_every_runtime_gives_the_same(parley, place: Path):
    shown = [
        parley("stats", "study.toml", "--set", f"runtime.name={name}", "--set", "runtime.workers=1")
        for name in ("inline", "wire", "auto")
    ]
    assert {code for code, _, _ in shown} == {0}
    assert shown[0] == shown[1] == shown[2]


def test_secure_sums_of_the_study(parley, place: Path):
    """The same numbers, from sums alone; what is no sum is refused."""
    secure = ["--set", 'channels.up=["secure-sum"]']
    assert parley("stats", "study.toml", "--json", "plain.json", "--quantiles", "cells")[0] == 0
    code, out, _ = parley("stats", "study.toml", *secure, "--json", "secure.json")
    assert code == 0
    assert "The server saw sums of all clients, and no client's own (secure-sum)." in " ".join(out.split())
    assert (place / "secure.json").read_text() == (place / "plain.json").read_text()
    code, _, err = parley("stats", "study.toml", *secure, "--quantiles", "blocks")
    assert code == 2
    assert "take --quantiles cells" in err


def test_a_scaling_of_the_target_is_frozen(parley, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    for name in "ab":
        rows = "".join(f"{n % 7},{n % 5},{4000 + 200 * (n % 7)}\n" for n in range(40))
        (tmp_path / "sites" / f"{name}.csv").write_text(f"rooms,age,price\n{rows}")
    (tmp_path / "s.toml").write_text(
        'rounds = 3\n[data]\nfolder = "sites"\ntarget = "price"\nkind = "regression"\n[model]\nname = "linear"\n'
        '[algorithm]\nname = "fedavg"\n'
    )
    code, _, err = parley("stats", "s.toml", "--freeze", "f.toml", "--target-method", "standard")
    assert code == 0, err
    section = tomllib.loads((tmp_path / "f.toml").read_text())["preprocessing"]
    assert abs(section["target_center"][0] - 4600) < 50
    code, _, err = parley("run", "f.toml", "--quiet")
    assert (code, "far from the scale" in err) == (0, False), err
    assert "of a frozen study" in parley("stats", "s.toml", "--target-method", "standard")[2]
    assert "so there are no classes" in parley("stats", "s.toml", "--freeze", "g.toml", "--class-weight", "balanced")[2]


def test_class_weights_are_frozen(parley, place: Path):
    code, _, err = parley("stats", "study.toml", "--freeze", "f.toml", "--class-weight", "balanced")
    assert code == 0, err
    weights = tomllib.loads((place / "f.toml").read_text())["preprocessing"]["class_weights"]
    assert len(weights) == 2
    assert parley("run", "f.toml", "--quiet")[0] == 0
