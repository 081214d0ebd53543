"""Environments are made once per set of pins, and a failed installation is said plainly."""

from pathlib import Path

import pytest

from parley.core.errors import InputError
from parley_benchmarks import environments
from parley_benchmarks.environments import PEERS, PINS, cache_folder, install, installed


def test_every_peer_pins_the_same_torch() -> None:
    assert PEERS == ("fedlab", "flgo", "flower", "fluke", "jax", "pfl")
    for peer in PEERS:
        lines = (PINS / f"{peer}.txt").read_text().splitlines()
        assert "torch==2.13.0" in lines
        assert all("==" in line for line in lines if not line.startswith("#"))


def test_the_cache_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "bench"
    monkeypatch.delenv("PARLEY_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "parley" / "bench"


@pytest.mark.long
def test_an_environment_is_reused_until_its_pins_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    pins.mkdir()
    (pins / "empty.txt").write_text("# nothing\n")
    monkeypatch.setattr(environments, "PINS", pins)
    said: list[str] = []
    assert installed("empty", tmp_path) is None
    python = install("empty", tmp_path, said.append)
    assert python.exists()
    assert installed("empty", tmp_path) == install("empty", tmp_path, said.append) == python
    assert len(said) == 1
    (pins / "empty.txt").write_text("# nothing else\n")
    assert installed("empty", tmp_path) is None


@pytest.mark.long
def test_a_failed_installation_points_to_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    pins.mkdir()
    (pins / "broken.txt").write_text("this is not a requirement\n")
    monkeypatch.setattr(environments, "PINS", pins)
    with pytest.raises(InputError, match=r"broken could not be installed; read .*broken\.log"):
        install("broken", tmp_path)
    assert installed("broken", tmp_path) is None
