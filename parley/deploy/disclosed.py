"""What a node has told in all its runs, and where two of them tell of few samples together.

Two sums over samples that differ by one row give that row away when they are subtracted, however many rows stand behind
each of them; so do two counts of the same rows in cells with other edges. A node keeps a digest of every row that it
took part with, and the cells in which they were counted, and compares before it takes part, or is counted, again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from parley.core.files import make_folder, write_atomically
from parley.data import ClientData
from parley.deploy.node_data import OwnData
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.runtimes.ledger import FILE, Answers, Ledger

_SIZE = 16
"""Bytes of a row's digest."""
_GRIDS = "grids"
_PARTS = ("train", "test")


@dataclass(frozen=True)
class Grid:
    """The cells that one question of a run counted samples in."""

    asked: str
    cells: str
    """How many edges there are, and between which numbers they lie."""
    digest: str

    @classmethod
    def of(cls, asked: str, edges: Mapping[str, Tensor]) -> Grid:
        digest, cells = blake2b(digest_size=_SIZE), []
        for name, tensor in sorted(edges.items()):
            # What begins a digest is how the rest of it is to be read, so that no two grids share their bytes.
            digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
            ends = f" from {float(tensor.min()):.6g} to {float(tensor.max()):.6g}" if tensor.numel() else ""
            cells.append(f"{name} {' x '.join(map(str, tensor.shape))}{ends}")
        return cls(asked, ", ".join(cells), digest.hexdigest())


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
    grids: list[Grid]
    """The cells in which samples were counted."""


def disclosed(folder: NodeFolder) -> list[Disclosed]:
    """Of all runs, oldest study first."""
    records = []
    for hash in folder.studies():
        for entry in folder.runs_of(hash):
            run_folder = folder.run(entry["run"])
            answers = Ledger(run_folder).summary() if (run_folder / FILE).exists() else []
            title = folder.proposal(hash).title
            near, grids = entry.get("near", ""), _grids(_path(folder, entry["run"], _GRIDS))
            records.append(Disclosed(hash, title, entry["run"], entry["by"], entry["epsilon"], answers, near, grids))
    return records


def keep_rows(folder: NodeFolder, run: str, node_data: OwnData) -> None:
    """Remember with which rows the node takes part, also when what it keeps of the run is deleted."""
    make_folder(folder.path / "rows", private=True)
    for part, data in _parts(node_data):
        write_atomically(_path(folder, run, part), _digests(data).tobytes())


def few_apart(folder: NodeFolder, run: str, stored: OwnData, least: int) -> int | None:
    """The fewest rows by which these samples differ from those of another run; None where it is nothing or many."""
    counts: list[int] = []
    for part, data in _parts(stored):
        rows = _digests(data)
        for path in (folder.path / "rows").glob(f"*.{part}"):
            if path != _path(folder, run, part):
                counts.append(_apart(rows, np.frombuffer(path.read_bytes(), dtype=f"S{_SIZE}")))
    return min((count for count in counts if 0 < count < least), default=None)


def other_study(folder: NodeFolder, run: str, proposal: Proposal, node_data: OwnData) -> bool:
    """Whether another method, or other settings, counted some of the same samples in cells, as this study would."""
    if not any(each.grid for each in proposal.rebuilt(folder.modules).algorithm.exchanges()):
        return False
    rows = np.concatenate([_digests(data) for _, data in _parts(node_data)])
    beside = {path.stem for path in _beside(folder, run, rows)}
    return any(
        folder.run(entry["run"]).name in beside
        for hash in folder.studies()
        if folder.proposal(hash).study.get("algorithm") != proposal.study.get("algorithm")
        for entry in folder.runs_of(hash)
    )


def keep_grid(folder: NodeFolder, run: str, grid: Grid, by_policy: bool) -> bool:
    """Whether another run counted some of the same samples in other cells. The grid is kept before its counts
    leave; not where that is so and nobody but the policy approved."""
    with folder.alone():  # of two runs at once one is the first
        path = _path(folder, run, _GRIDS)
        beside, before = _beside(folder, run, _kept_rows(path)), _grids(path)
        others = any(other.digest != grid.digest for each in beside for other in _grids(each))
        if grid not in before and not (others and by_policy):
            text = json.dumps([asdict(each) for each in (*before, grid)])
            write_atomically(path, text.encode())
        return others


def _beside(folder: NodeFolder, run: str, rows: Any) -> Iterator[Path]:
    """The grids of other runs that some of these rows took part in."""
    for path in (folder.path / "rows").glob(f"*.{_GRIDS}"):
        if path.stem != folder.run(run).name and np.isin(rows, _kept_rows(path)).any():
            yield path


def _kept_rows(grids: Path) -> Any:
    """Digests of all rows of the run whose grids these are."""
    paths = [path for path in map(grids.with_suffix, (f".{part}" for part in _PARTS)) if path.exists()]
    return np.frombuffer(b"".join(path.read_bytes() for path in paths), dtype=f"S{_SIZE}")


def _grids(path: Path) -> list[Grid]:
    return [Grid(**fields) for fields in json.loads(path.read_bytes())] if path.exists() else []


def _parts(data: OwnData) -> list[tuple[str, ClientData]]:
    return [("train", data.train), *([] if data.test is None else [("test", data.test)])]


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
    present = np.searchsorted(some, rows, "right") - np.searchsorted(some, rows, "left")
    return int(np.abs(2 * present - counts).sum())
