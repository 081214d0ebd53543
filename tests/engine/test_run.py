"""A run as its user meets it in a console, a notebook and other programs."""

from pathlib import Path

import pytest

import parley as pl
from parley.core.errors import InputError


@pytest.fixture(scope="module")
def run() -> pl.Run:
    federation = pl.data.iris().split(pl.IID(), clients=5)
    return pl.train(pl.FedAvg(), federation, model=pl.models.mlp(4), rounds=3, faults=pl.Faults(dropout=0.3, quorum=0))


def test_it_is_shown_in_one_short_line(run: pl.Run):
    assert repr(run).startswith("<Run fedavg-iris: finished, 3 rounds, central/accuracy 0.")
    assert len(repr(run)) < 120
    assert "\n" not in repr(run)


def test_a_notebook_shows_the_figure(run: pl.Run, tmp_path: Path):
    figure = run.plot("accuracy")
    assert figure._repr_png_().startswith(b"\x89PNG")
    run.plot("accuracy", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
    with pytest.raises(InputError, match="cannot be written"):
        run.plot("accuracy", tmp_path / "none" / "a.png")
    with pytest.raises(InputError, match="cannot be written"):
        run.plot("accuracy", tmp_path / "a.jpeg2000")


def test_a_data_frame_in_one_call(run: pl.Run):
    pytest.importorskip("pandas")
    frame = run.frame()
    own = frame[(frame.client == "") & (frame.metric == "central/accuracy")]
    assert list(own["value"]) == list(run.series("accuracy")[1])


def test_who_was_missing(run: pl.Run):
    missing = run.failures()
    assert len(missing) == run.summary()["failures"] > 0
    assert all(one.client in run.federation.ids and one.reason == "dropped out (simulated)." for one in missing)
