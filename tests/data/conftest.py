"""Real data sets for tests: skipped where $PARLEY_DATA lacks them, a failure where they are required."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Path:
    """The cache with the files named by `@pytest.mark.parametrize("real", [...], indirect=True)`."""
    root = Path(os.environ.get("PARLEY_DATA") or "~/.cache/parley").expanduser()
    if not (root / request.param).exists():
        reason = f"{request.param} is not in $PARLEY_DATA"
        if "data" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data cache."""
    monkeypatch.setenv("PARLEY_DATA", str(tmp_path))
    return tmp_path
