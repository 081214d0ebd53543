"""`parley pareto`: tables, lines to paste, figures and refusals."""

import tomllib
from pathlib import Path

import pytest

STUDY = """
rounds = 5
loss = "half-squares"
[data]
name = "diabetes"
clients = 4
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def test_from_a_condition_number(parley, place: Path):
    code, out, _ = parley(
        "pareto", "--kappa0", 100, "--rounds", 14, "--C", 0.02, "--server", "heavy-ball", "--figure", "tradeoff.png"
    )
    assert code == 0
    assert "mini-batch SGD" in out
    assert "one-shot" in out
    assert "in units of 1/L" in out
    assert "no better than the start" not in out
    assert "[algorithm]" not in out
    assert (place / "tradeoff.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments", [["--kappa0", 1], ["--kappa0", 1e8, "--rounds", 2000], ["--kappa0", 1e300], ["--L", 2, "--mu", 2]]
)
def test_extreme_constants_are_answered_and_drawn(parley, place: Path, arguments: list[object]):
    code, out, err = parley("pareto", *arguments, "--figure", "extreme.pdf")
    assert (code, err) == (0, "")
    assert "nan" not in out
    assert (place / "extreme.pdf").stat().st_size > 5_000


def test_a_start_at_the_optimum_is_not_called_useless(parley):
    assert "no better than the start" not in parley("pareto", "--kappa0", 10, "--distance", 0, "--C", 0)[1]


def test_a_figure_needs_a_format_and_a_place(parley, place: Path):
    for file, words in (("noending", "must say the format"), ("x.xyz", "Format 'xyz'"), (".", "cannot be written")):
        code, _, err = parley("pareto", "--kappa0", 9, "--figure", file)
        assert code == 2
        assert words in err
    assert [path.name for path in place.iterdir()] == ["study.toml"]


def test_a_guarantee_that_says_nothing_says_so(parley):
    code, out, _ = parley("pareto", "--kappa0", 1000, "--rounds", 3)
    assert code == 0
    assert "no better than the start" in out


def test_from_constants_with_lines_to_paste(parley):
    code, out, _ = parley("pareto", "--L", 10, "--mu", 0.1, "--rounds", 14, "--C", 0.02, "--max-steps", 5)
    assert code == 0
    pasted = tomllib.loads(out[out.index("[algorithm]") :])["algorithm"]
    assert pasted["steps"] <= 5
    assert pasted["lr"] <= 1 / 10
    assert pasted["server"]["name"] == "heavy-ball"


@pytest.mark.parametrize("server", ["none", "nesterov", "heavy-ball"])
def test_on_a_study(parley, place: Path, server: str):
    code, out, _ = parley("pareto", "study.toml", "--ridge", 0.1, "--server", server, "--figure", "own.svg")
    assert code == 0
    assert "exact on 4 clients" in out
    assert "What these clients do, exactly, from this start in 5 rounds" in out
    lines = out[out.index("[algorithm]") : out.index("own.svg")]
    (place / "best.toml").write_text(STUDY[: STUDY.index("[algorithm]")] + lines)
    assert parley("run", "best.toml", "--quiet")[0] == 0


def test_on_a_network(parley):
    network = ["--set", "model={name='mlp', hidden=[3]}", "--set", "loss=mse"]
    code, out, _ = parley("pareto", "study.toml", *network, "--mu", 0.1, "--clients", 2, "--samples", 20)
    assert code == 0
    assert "Note: the model is not linear" in out
    assert "measured on 2 clients" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either kappa0, or both L and mu."),
        (["--kappa0", "0.5"], "the condition number must satisfy 1 <= kappa0 < infinity, but kappa0 = 0.5."),
        (["--L", "1", "--mu", "2"], "smoothness must satisfy mu <= L < infinity, but L = 1 and mu = 2."),
        (["--kappa0", "9", "--rounds", "0"], "the number of rounds must be a whole number of at least 1, not 0."),
        (["--kappa0", "9", "--server", "heavyball"], "did you mean 'heavy-ball'?"),
        (["--kappa0", "9", "--C=-1"], "but C = -1."),
        (["--kappa0", "nan"], "but kappa0 = nan."),
        (["--kappa0", "many"], "'many' is not a valid float"),
        (["--L", "1", "--mu", "0"], "strong convexity must satisfy mu > 0, but mu = 0"),
        (["--L", "1e300", "--mu", "1e-300"], "L / mu must be finite"),
        (["--kappa0", "9", "--distance", "inf"], "must be finite and at least 0, not inf."),
        (["--kappa0", "9", "--alpha=-1"], "0 <= alpha < infinity"),
        (["--kappa0", "9", "--max-gamma", "nan"], "must be at least 0, not nan."),
        (["--kappa0", "9", "--ridge", "1"], "--ridge needs a study file, on which it is measured."),
        (["--kappa0", "9", "--set", "rounds=3"], "--set needs a study file, on which it is measured."),
        (["study.toml", "--L", "1"], "--L is measured on the study; leave it out, or leave the study out."),
        (["none.toml"], "there is no study file none.toml."),
        (["study.toml", "--set", "data.clients=50"], "has flat directions"),
        (["study.toml", "--ridge=-1"], "ridge must be finite and at least 0, not -1."),
        (["study.toml", "--rounds", "0"], "the number of rounds must be a whole number of at least 1, not 0."),
    ],
)
def test_mistakes(parley, arguments: list[str], sentence: str):
    code, out, err = parley("pareto", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert sentence in err
