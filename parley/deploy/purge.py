"""What a node need not keep for ever: samples, memory and answers of runs, and studies that nobody decided about."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from parley.core.files import file_errors
from parley.deploy.node_folder import NodeFolder

_DAY = 86400.0
_MOST_DAYS = 1e6


def old_runs(folder: NodeFolder, days: float) -> list[Path]:
    """What is kept of runs that began so long ago, or that no study knows any more."""
    before = datetime.now(UTC) - timedelta(days=min(days, _MOST_DAYS))
    runs = [entry for hash in folder.studies() for entry in folder.runs_of(hash)]
    young = {folder.run(entry["run"]) for entry in runs if datetime.fromisoformat(entry["when"]) >= before}
    return sorted(path for path in (folder.path / "runs").iterdir() if path.is_dir() and path not in young)


def old_studies(folder: NodeFolder, days: float) -> list[Path]:
    """Studies proposed so long ago that have neither a decision nor a run."""
    paths = [
        folder.path / "studies" / f"{hash}.json"
        for hash in folder.studies()
        if folder.decision(hash) is None and not folder.runs_of(hash)
    ]
    return [path for path in paths if time.time() - path.stat().st_mtime >= days * _DAY]


def remove(folder: NodeFolder, paths: Sequence[Path]) -> None:
    """Remove them, with a line in the log first."""
    for path in paths:
        folder.log("purged", answered=f"removed {path.relative_to(folder.path)}")
        with file_errors(f"{path} cannot be removed"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
