"""`parley gain`: table, summary, stopping round, files and refusals."""

import csv
import json
from pathlib import Path

import pytest

NETWORK = """
rounds = 3
[data]
name = "digits"
clients = 4
[data.partition]
name = "dirichlet"
alpha = 0.5
[model]
name = "mlp"
hidden = [8]
[algorithm]
name = "fedavg"
lr = 0.1
"""
LINEAR = """
rounds = 20
[data]
name = "diabetes"
clients = 3
[model]
name = "linear"
zero = true
[algorithm]
name = "fedavg"
lr = 0.05
steps = 5
batch = 0
"""
QUICK = ("--folds", 3, "--local-rounds", 3, "--local-rate", 0.1)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(NETWORK)
    (tmp_path / "linear.toml").write_text(LINEAR)
    return tmp_path


@pytest.fixture
def parley(parley):
    """With all white space as single blanks: the summary is wrapped to the terminal."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code, out, err = parley(*arguments)
        return code, " ".join(out.split()), err

    return call


def test_a_network(parley, place: Path):
    files = ("--figure", "gain.png", "--csv", "gain.csv", "--json", "gain.json")
    code, out, _ = parley("gain", "study.toml", *QUICK, *files)
    assert code == 0
    assert "client samples own error federated gain 90% interval decision" in out
    assert "Of 4 clients," in out
    assert "new data of that client: new samples from the same distribution" in out
    assert "It includes the noise no model can predict" in out
    assert "(cross-entropy)" in out
    assert "Recommended stopping round: " in out
    assert "the least held-out error over 3 folds" in out
    assert "gain.csv gain.json gain.png" in out
    assert (place / "gain.png").stat().st_size > 10_000
    rows = list(csv.DictReader((place / "gain.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == ["0", "1", "2", "3"]
    stored = json.loads((place / "gain.json").read_text())
    assert stored["clients"][2]["gain"] == pytest.approx(float(rows[2]["gain"]))
    assert sum(stored["decisions"].values()) == 4


def test_a_linear_study_in_closed_form(parley):
    code, out, _ = parley("gain", "linear.toml", "--repeats", 1, "--sigma", 0.7, "--norm", 2, "--level", 0.8)
    assert code == 0
    assert "80% interval" in out
    assert "Closed form: each client's ridge regression" in out
    assert "a standard deviation of 0.7 (given)" in out
    assert "takes the start to be 2 away from the truth (--norm)" in out


def test_a_kernel(parley):
    options = ("--kernel", "rbf", "--lengthscale", 3, "--folds", 3, "--repeats", 1, "--set", "data.clients=6")
    code, out, _ = parley("gain", "linear.toml", *options)
    assert code == 0
    assert "RBF(lengthscale=3.0)" in out


def test_error_rates_of_some_clients_and_settings(parley):
    options = ("--measure", "error-rate", "--clients", 2, "--set", "data.test_fraction=0.2")
    code, out, _ = parley("gain", "study.toml", *QUICK, *options)
    assert code == 0
    assert "2 clients (drawn from 4)" in out
    assert "(error rate)" in out
    assert "own test samples stayed out" in out


def test_clients_with_too_few_samples_are_told(parley, place: Path):
    (place / "own").mkdir()
    for name, count in (("rich", 30), ("poor", 1)):
        lines = [f"{i % 7},{i % 3},{i % 2}.5" for i in range(count)]
        (place / "own" / f"{name}.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    (place / "own.toml").write_text(LINEAR.replace('name = "diabetes"\nclients = 3', 'folder = "own"'))
    code, out, _ = parley("gain", "own.toml", "--set", "algorithm.lr=0.01")
    assert code == 0
    assert "poor 1 - - - - too few samples" in out
    assert "1 has too few samples" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.toml"], "there is no study file none.toml."),
        (["study.toml", "--set", "algorithm.name=local-only"], "there is no federated model to judge"),
        (["study.toml", "--folds", "2"], "folds must be at least 3, not 2."),
        (["study.toml", "--folds", "2000"], "take fewer folds."),
        (["study.toml", "--level", "1.5"], "between 0 and 1, not 1.5."),
        (["study.toml", "--measure", "accuracy"], "unknown measure 'accuracy'"),
        (["study.toml", "--kernel", "rbf"], "--kernel needs a regression study"),
        (["linear.toml", "--kernel", "rfb"], "did you mean 'rbf'?"),
        (["linear.toml", "--sigma", "0"], "sigma must be positive"),
        (["linear.toml", "--norm=-1"], "norm, the distance"),
        (["study.toml", "--figure", "gain.doc"], "a figure's name ends in .png, .svg, .pdf."),
    ],
)
def test_mistakes(parley, arguments: list[str], sentence: str):
    code, out, err = parley("gain", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert sentence in err
