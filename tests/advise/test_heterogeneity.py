"""A federation's heterogeneity: what is known of one-class clients, and the command that prints it."""

from pathlib import Path

import numpy as np
import pytest

import parley as pl
from parley.advise.heterogeneity import METRICS, PARTS, heterogeneity
from parley.core.errors import InputError

STUDY = """
[data]
name = "iris"
clients = 3
{partition}
[model]
name = "linear"
[algorithm]
name = "fedavg"
"""


def two_points(apart: float) -> pl.Federation:
    x = np.zeros((10, 3), np.float32)
    return pl.Federation.from_arrays({"a": (x, np.zeros(10, int)), "b": (x + np.float32(apart), np.ones(10, int))})


def test_two_clients_at_two_points():
    found = heterogeneity(two_points(2.0), label_cost=5.0)
    assert found.omega("labels", "tv").value == pytest.approx(0.5)
    assert found.omega("inputs", "w1").value == pytest.approx(3**0.5)  # half of 2 sqrt(3)
    assert found.omega("joint", "w1").value == pytest.approx(3**0.5 + 2.5)
    np.testing.assert_allclose(found.between("inputs", "tv"), [[0, 1], [1, 0]])
    assert found.omega("inputs", "w1").exact
    assert found.farthest("inputs", "w1") in ("a", "b")
    assert len(found.plain()["omega"]) == len(PARTS) * len(METRICS)


def test_the_same_samples_everywhere():
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) / 3.0
    found = heterogeneity(pl.Federation.from_arrays(dict.fromkeys("abc", (x, y))))
    assert all(found.omega(part, metric).value == pytest.approx(0, abs=1e-9) for part in PARTS for metric in METRICS)


def test_clients_and_samples_are_limited_and_repeated():
    federation = pl.data.digits().split(pl.SHomogeneity(0.0), clients=10, seed=0)
    found = [heterogeneity(federation, clients=4, samples=30, limit=60, seed=1) for _ in range(2)]
    assert found[0].plain() == found[1].plain()
    assert found[0].clients == ("0", "3", "6", "9")
    assert not found[0].omega("inputs", "w1").exact  # the mixture has 120 points
    assert found[0].omega("labels", "tv").value > 0.6
    iid = heterogeneity(pl.data.digits().split("iid", clients=10, seed=0), clients=4, samples=30, limit=200)
    apart = heterogeneity(federation, clients=4, samples=30)
    assert iid.omega("inputs", "w1").value < apart.omega("inputs", "w1").value


@pytest.mark.parametrize("count", [2, 3, 7])
def test_total_variation_of_points_that_hardly_ever_repeat_is_not_shown(count: int):
    """It is 1 - 1/N whatever the clients are: here they are alike."""
    random = np.random.default_rng(count)
    parts = {str(k): (random.normal(size=(20, 3)), random.normal(size=20)) for k in range(count)}
    found = heterogeneity(pl.Federation.from_arrays(parts))
    for part in PARTS:
        assert found.omega(part, "tv").value == pytest.approx(1 - 1 / count)
        assert [found.informative(part, metric) for metric in METRICS] == [False, True]
    classes = {name: (x, (y > 0).astype(int)) for name, (x, y) in parts.items()}
    assert [heterogeneity(pl.Federation.from_arrays(classes)).informative(part, "tv") for part in PARTS] == [
        True,
        False,
        False,
    ]
    few = {name: (np.round(x[:, :1]), y) for name, (x, y) in parts.items()}
    assert heterogeneity(pl.Federation.from_arrays(few)).informative("inputs", "tv")


def test_bad_input():
    with pytest.raises(InputError, match="has only one"):
        heterogeneity(pl.Federation.from_arrays({"a": (np.ones((3, 2)), np.ones(3))}))
    with pytest.raises(InputError, match="at least 2 clients"):
        heterogeneity(two_points(1.0), clients=1)
    with pytest.raises(InputError, match="label_cost"):
        heterogeneity(two_points(1.0), label_cost=-1.0)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from parley.cli.main import main

    (tmp_path / "study.toml").write_text(STUDY.format(partition='[data.partition]\nname = "sorted"'))
    with pytest.raises(SystemExit) as ended:
        main(["data", "show", str(tmp_path / "study.toml"), "--heterogeneity"])
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "omega_W1" in out
    assert "3 of 3 clients measured" in out
    rows = [line.split() for line in out.splitlines() if "omega_TV" in line]
    assert [row[1] for row in rows if row[1] in PARTS] == ["labels"]
    assert "omega_TV of inputs and joint is left out" in " ".join(out.split())
    with pytest.raises(SystemExit) as ended:
        main(["data", "show", "iris", "--heterogeneity"])
    assert ended.value.code == 2
    assert "need a study file" in capsys.readouterr().err
