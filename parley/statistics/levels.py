"""The levels of columns of texts: which there are, by name, and how many samples of all clients have each.

    client   names of the levels that enough of its samples have (`names`); not asked where the study declares them
    client   how many of its samples have each level that was named by anybody (`levels`): sums alone

Names travel as bytes of fixed size, so that a reply has the same size whatever a client has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.algorithms.trees.binning import Counts
from parley.data import ClientData, DataInfo

MOST, WIDTH = 256, 64
"""Levels of a column that are told of, and bytes of a name; others count as other levels."""


def packed(names: Sequence[Sequence[str]]) -> Tensor:
    """Names of levels as bytes, [columns, MOST, WIDTH]."""
    table = np.zeros((len(names), MOST, WIDTH), np.uint8)
    for row, levels in enumerate(names):
        for position, name in enumerate([name for name in levels if len(name.encode()) <= WIDTH][:MOST]):
            text = name.encode()
            table[row, position, : len(text)] = np.frombuffer(text, np.uint8)
    return torch.from_numpy(table)


def unpacked(names: Tensor) -> list[list[str]]:
    """The names back, without what is no text."""
    all_names = []
    for row in names.numpy():
        texts = [bytes(cell).rstrip(b"\0").decode(errors="replace") for cell in row]
        all_names.append([text for text in texts if text and text.isprintable() and text == text.strip()])
    return all_names


def union(replies: Sequence[Tensor], declared: Mapping[str, Sequence[str]]) -> Tensor:
    """The names that any client told, sorted; of too many those that most told. Declared ones stay as they are."""
    client_names = [unpacked(names) for names in replies]
    rows: list[Sequence[str]] = []
    for row, levels in enumerate(declared.values()):
        counted = Counter(name for by_client in client_names for name in dict.fromkeys(by_client[row]))
        most = sorted(counted, key=lambda name: (-counted[name], name))[:MOST]
        rows.append(levels or sorted(most))
    return packed(rows)


def level_counts(info: DataInfo, data: ClientData, column: str, floor: int) -> dict[str, int]:
    """Level -> samples of a client, "" for missing ones; without those that too few have, or that give them away.

    The floor does not apply to missing cells, so they hide rare levels before another level has to.
    """
    levels = info.levels[info.categories.index(column)]
    codes = data.x[:, info.columns.index(column)].double().numpy()
    known = codes[~np.isnan(codes)].astype(np.int64)
    counts: Counts = np.bincount(known, minlength=len(levels))
    order = [code for code in np.argsort(counts, kind="stable") if counts[code]]
    hidden, missing = int((counts[order] < floor).sum()), len(codes) - len(known)
    if hidden:
        while hidden < len(order) and counts[order[:hidden]].sum() + missing < floor:
            hidden += 1
        counts[order[:hidden]], missing = 0, 0
    reported = zip((*levels, ""), (*counts.tolist(), missing), strict=True)
    return {name: count for name, count in reported if count} if len(known) >= floor else {}


def level_names(info: DataInfo, data: ClientData, columns: Sequence[str], floor: int) -> Tensor:
    """Of each column the names of the levels that enough samples have, the most frequent first."""
    rows = []
    for column in columns:
        counts = level_counts(info, data, column, floor)
        rows.append(sorted((name for name in counts if name), key=lambda name: (-counts[name], name)))
    return packed(rows)


def counted(info: DataInfo, data: ClientData, columns: Sequence[str], names: Tensor, floor: int) -> Tensor:
    """Samples of each named level, [columns, MOST + 1]; the last are missing."""
    table: NDArray[np.int64] = np.zeros((len(columns), MOST + 1), np.int64)
    for row, (column, cells) in enumerate(zip(columns, names.numpy(), strict=True)):
        counts = level_counts(info, data, column, floor)
        asked = [bytes(cell).rstrip(b"\0").decode(errors="replace") for cell in cells]
        table[row, :MOST] = [counts.get(name, 0) if name else 0 for name in asked]
        table[row, MOST] = counts.get("", 0)
    return torch.from_numpy(table)
