"""`parley new algorithm`: what it writes works as written, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    return tmp_path


@pytest.mark.long
def test_the_skeleton_passes_its_own_test(parley, place: Path):
    """As docs/extending.md prints it: write, train, test (every runtime, a resumed run, two special cases)."""
    code, out, _ = parley("new", "algorithm", "my-method")
    assert code == 0
    assert "python -m pytest test_my_method.py" in out
    assert len((place / "my_method.py").read_text().splitlines()) <= 60
    assert parley("run", "my_method.toml", "-q")[0] == 0
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_my_method.py"], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


@pytest.mark.long
def test_a_mistake_in_it_is_found(parley, place: Path):
    """The test that comes with it is not blind: a flipped sign fails by name."""
    parley("new", "algorithm", "wrong")
    text = (place / "wrong.py").read_text()
    assert "pull(x, self.pull)" in text
    (place / "wrong.py").write_text(text.replace("pull(x, self.pull)", "pull(x, -self.pull)"))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "special"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_wrong.py"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "test_known_special_cases" in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedavg", "there is an algorithm 'fedavg' already"),
        ("../evil", "letters, digits and hyphens"),
        ("1st", "letters, digits and hyphens"),
        ("class", "is a word of Python's own; choose another name"),
        ("", "letters, digits and hyphens"),
    ],
)
def test_names_that_are_refused(parley, place: Path, name: str, said: str):
    code, _, err = parley("new", "algorithm", name)
    assert code == 2
    assert said in err
    assert list(place.iterdir()) == []


def test_nothing_is_overwritten(parley, place: Path):
    (place / "test_mine.py").write_text("precious")
    code, _, err = parley("new", "algorithm", "mine")
    assert code == 2
    assert "test_mine.py exists already" in err
    assert [file.name for file in place.iterdir()] == ["test_mine.py"]
