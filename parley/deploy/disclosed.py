"""What a node has told in all its runs, and where two of them tell of few samples together.

Two sums over samples that differ by one row give that row away when they are subtracted, however many rows stand behind
each of them. A node keeps a digest of every row that it took part with, and compares before it takes part again.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from parley.core.files import make_folder, write_atomically
from parley.data import ClientData
from parley.deploy.node_data import OwnData
from parley.deploy.node_folder import NodeFolder
from parley.runtimes.ledger import FILE, Answers, Ledger

_SIZE = 16
"""Bytes of a row's digest."""


@dataclass(frozen=True)
class Disclosed:
    """What a run was told."""

    study: str
    title: str
    run: str
    by: str
    """Who approved it."""
    epsilon: float | None
    answers: list[Answers]
    """Nothing where the owner has deleted what the node kept of the run."""
    near: str
    """A warning where the samples differ by few rows from those of another run."""


def disclosed(folder: NodeFolder) -> list[Disclosed]:
    """Of all runs, oldest study first."""
    found = []
    for hash in folder.studies():
        for one in folder.runs_of(hash):
            place = folder.run(one["run"])
            answers = Ledger(place).summary() if (place / FILE).exists() else []
            title = folder.proposal(hash).title
            found.append(Disclosed(hash, title, one["run"], one["by"], one["epsilon"], answers, one.get("near", "")))
    return found


def keep_rows(folder: NodeFolder, run: str, own: OwnData) -> None:
    """Remember with which rows the node takes part, also when what it keeps of the run is deleted."""
    make_folder(folder.path / "rows", private=True)
    for part, data in _parts(own):
        write_atomically(_path(folder, run, part), _digests(data).tobytes())


def few_apart(folder: NodeFolder, run: str, own: OwnData, least: int) -> int | None:
    """The fewest rows by which these samples differ from those of another run; None where it is nothing or many."""
    found: list[int] = []
    for part, data in _parts(own):
        rows = _digests(data)
        for path in (folder.path / "rows").glob(f"*.{part}"):
            if path != _path(folder, run, part):
                found.append(_apart(rows, np.frombuffer(path.read_bytes(), dtype=f"S{_SIZE}")))
    return min((count for count in found if 0 < count < least), default=None)


def _parts(own: OwnData) -> list[tuple[str, ClientData]]:
    return [("train", own.train), *([] if own.test is None else [("test", own.test)])]


def _path(folder: NodeFolder, run: str, part: str) -> Path:
    return folder.path / "rows" / f"{folder.run(run).name}.{part}"


def _digests(data: ClientData) -> Any:
    """One of each row, in order of their bytes."""
    x, y = (value.contiguous().numpy() for value in (data.x, data.y))
    rows = [blake2b(a.tobytes() + b.tobytes(), digest_size=_SIZE).digest() for a, b in zip(x, y, strict=True)]
    return np.sort(np.array(rows, dtype=f"S{_SIZE}"))


def _apart(some: Any, others: Any) -> int:
    """How many rows are in one of two lists and not in the other, each as often as it is there."""
    rows, counts = np.unique(np.concatenate([some, others]), return_counts=True)
    own = np.searchsorted(some, rows, "right") - np.searchsorted(some, rows, "left")
    return int(np.abs(2 * own - counts).sum())
