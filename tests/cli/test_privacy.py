"""Privacy on the command line: what a run has cost, and that it stopped because of it."""

import os
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "private-digits.toml"


@pytest.fixture(autouse=True)
def _accounting():
    if "privacy" not in os.environ.get("PARLEY_REQUIRE", ""):
        pytest.importorskip("dp_accounting")


def test_a_run_shows_epsilon_and_why_it_ended(parley):
    code, out, err = parley("run", EXAMPLE, "--set", "privacy.noise_multiplier=2", "--set", "privacy.epsilon=2")
    assert code == 0, err
    for text in (out, parley("runs", "show", "last")[1]):
        words = " ".join(text.split())
        assert "status stopped" in words
        assert "the privacy budget is spent" in words
        assert "epsilon 1." in words
    assert "epsilon 1." in err  # while it ran


def test_what_is_wrong_is_one_sentence(parley):
    code, _, err = parley("run", EXAMPLE, "--set", "algorithm.name=fednova")
    assert code == 2
    assert "FedNova cannot be trained with differential privacy: it reads single replies" in " ".join(err.split())
    code, _, err = parley("run", EXAMPLE, "--set", "privacy.delta=0.5")
    assert code == 2
    assert "promises nothing to 300 clients" in " ".join(err.split())


def test_channels_are_listed_with_their_settings(parley):
    words = " ".join(parley("list", "channels", "noise")[1].split())
    assert "deviation a number required" in words
