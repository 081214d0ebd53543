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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--param", "algorithm.lr"], "--param takes a setting and a space"),
        (["--param", "algorithm.lr=logg(1, 2)"], "there is no space 'logg'"),
        (["--sampler", "best"], "tune.sampler must be"),
        (["--trials", "0"], "tune.trials must be at least 1"),
        (["--out", "file"], "file is no folder"),
    ],
)
def test_bad_input_is_one_sentence(parley, place, options, words):
    (place / "file").write_text("")
    code, out, err = parley("tune", STUDY, *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (place / "tuned").exists()
