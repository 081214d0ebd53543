"""`parley tune` as its user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

import parley as pl

STUDY = Path("examples/tuning.toml").resolve()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path


def test_the_example_writes_studies_that_can_be_run(parley, place):
    code, out, err = parley("tune", STUDY, "--set", "rounds=2", "--trials", "2")
    assert code == 0, err
    assert "tuned/fedavg.toml" in out
    assert "fedprox 2/2: lr = " in err
    best = pl.load_study("tuned/fedprox.toml")
    assert (best.seed, best.rounds, type(best.algorithm).__name__) == (0, 2, "FedProx")
    assert best.evaluation.clients == "auto"
    assert (place / "tuned" / "trials.png").stat().st_size > 1000
    assert parley("run", "tuned/fedavg.toml", "--seeds", "0-1", "-q")[0] == 0
    code, out, _ = parley("compare", "--metric", "central/accuracy")
    assert code == 0
    code, again, err = parley("tune", STUDY, "--set", "rounds=2", "--trials", "2", "--quiet")
    assert (code, err) == (0, "")
    assert again.split() == ["tuned/fedavg.toml", "tuned/fedprox.toml", "tuned/trials.png"]


def test_scores_say_over_how_many_clients(parley, place):
    (place / "rows").mkdir()
    for name, classes in (("a", "01" * 10), ("b", "01" * 10), ("c", "0" * 20)):
        rows = "".join(f"{number},{number % 7},{kind}\n" for number, kind in enumerate(classes))
        (place / "rows" / f"{name}.csv").write_text("x,z,y\n" + rows)
    (place / "study.toml").write_text(
        'rounds = 2\n[data]\nfolder = "rows"\ntarget = "y"\ntest_fraction = 0.5\n[model]\nname = "linear"\n'
        '[algorithm]\nname = "fedavg"\n[evaluate]\nclients = "all"\nmetrics = ["auc"]\nheadline = "clients/auc"\n'
    )
    code, out, err = parley("tune", "study.toml", "--param", "algorithm.lr=[0.001, 0.002]", "--sampler", "grid")
    assert code == 0, err
    assert "(2 of 3 clients)" in out
    assert err.count("(2 of 3 clients)") >= 2


def test_where_all_diverge_the_figure_is_written_and_their_rounds_counted(parley, place):
    rates = ["--param", "algorithm.lr=[1e38, 1e37]", "--trials", "2", "--set", "rounds=2"]
    code, out, err = parley("tune", STUDY, *rates, "--method", "fedavg", "--out", "new")
    assert code == 0, err
    assert "all trials of fedavg diverged" in err
    assert out.split()[-1] == "new/trials.png"
    assert (place / "new" / "trials.png").stat().st_size > 1000


def test_a_method_as_parley_writes_it_is_tuned_and_run(parley, place):
    assert parley("new", "algorithm", "my-method")[0] == 0
    words = ["--param", "algorithm.pull=[0.0, 0.1]", "--set", "data.test_fraction=0.2", "--set", "rounds=2"]
    code, out, err = parley("tune", "my_method.toml", *words)
    assert code == 0, err
    assert "tuned/MyMethod.toml" in out
    assert parley("run", "tuned/MyMethod.toml", "-q")[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--param", "algorithm.lr"], "--param takes a setting and a space"),
        (["--param", "algorithm.lr=logg(1, 2)"], "there is no space 'logg'"),
        (["--sampler", "best"], "tune.sampler must be"),
        (["--trials", "0"], "tune.trials must be at least 1"),
        (["--out", "file"], "file is no folder"),
        (["--out", "file/below"], "the folder file/below cannot be made"),
    ],
)
def test_bad_input_is_one_sentence(parley, place, options, words):
    (place / "file").write_text("")
    code, out, err = parley("tune", STUDY, *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (place / "tuned").exists()


@pytest.mark.parametrize("pages", [5, 27])
def test_a_full_disk_is_told_in_a_sentence(parley, place, monkeypatch, pages):
    """As SQLite sees it: the file of the trials cannot grow."""
    sqlalchemy = pytest.importorskip("sqlalchemy")

    def limit(connection, record) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", limit)
    try:
        code, out, err = parley("tune", STUDY, "--set", "rounds=2", "--trials", "4", "--quiet")
    finally:
        sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", limit)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("parley: the book of trials ")
    assert "tune.db cannot grow because the disk is full." in err
    code, _, err = parley("tune", STUDY, "--set", "rounds=2", "--trials", "4", "--quiet")
    assert code == 0, err
