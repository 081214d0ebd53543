"""Extreme numbers in settings: a run, or one sentence; never a traceback, never the machine's memory."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("extremes.py")


@pytest.mark.parametrize(
    ("kind", "extent"),
    [
        pytest.param("algorithms", "once", marks=pytest.mark.long),
        ("parts", "once"),
        ("settings", "once"),
        pytest.param("algorithms", "all", marks=pytest.mark.slow),
    ],
)
def test_extreme_numbers_train_or_are_refused_in_a_sentence(kind: str, extent: str):
    """Each setting `once`, in the first method that has it, or in `all` methods."""
    done = subprocess.run([sys.executable, SCRIPT, kind, extent], stdout=subprocess.PIPE, text=True, check=True)
    *wrong, tried = done.stdout.splitlines()
    assert not wrong
    assert int(tried.split()[0]) > 300
