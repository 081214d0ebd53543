"""Shakespeare's plays by role: predict the next character (McMahan et al. 2017; LEAF's 80 characters)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.data.client import ClientData
from parley.data.dataset import Dataset
from parley.data.formats import read_json, readable
from parley.data.sets.base import dataset
from parley.data.sets.leaf import LeafPart, read_leaf

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's characters; a token id is a position in it."""


@dataset(
    "shakespeare",
    source="https://github.com/TalwalkarLab/leaf/tree/master/data/shakespeare",
    license="public domain",
    manual=(
        "run LEAF's data/shakespeare/preprocess.sh and copy its data/train and data/test to $PARLEY_DATA/shakespeare, "
        'or put a roles.json.gz there ({"users": {role: [speech, ...]}}).'
    ),
)
def shakespeare(length: int = 80, stride: int = 20, min_chars: int = 1000, test_fraction: float = 0.2) -> Dataset:
    """Lines of plays by role, next-character prediction over 80 characters; natural clients are the roles.

    From `roles.json.gz`, a role's speeches are joined by newlines; roles with fewer than `min_chars` characters are
    left out. Its first 1 - `test_fraction` of the text gives training windows of `length` characters, one every
    `stride` characters, the rest test windows; the target is the character after the window. `stride=1` uses every
    position. LEAF's own JSON files, if present, come as they are (windows of 80, every position).
    """
    folder = shakespeare.folder()
    roles = next((file for file in (folder / "roles.json.gz", folder / "roles.json") if file.is_file()), None)
    if roles is None:
        return _from_leaf(folder)
    if length < 1 or stride < 1 or not 0.0 < test_fraction < 1.0:
        raise InputError("shakespeare needs length and stride of at least 1 and test_fraction between 0 and 1.")
    content = read_json(roles)
    with readable(roles, "roles"):
        texts = {role: encode("\n".join(speeches)) for role, speeches in content["users"].items()}
    parts: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    names = []
    for role, text in texts.items():
        border = round((1 - test_fraction) * len(text))
        pieces = [_windows(piece, length, stride) for piece in (text[:border], text[border:])]
        if len(text) >= min_chars and all(len(piece) for piece in pieces):
            names.append(role)
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
    if not names:
        raise InputError(f"no role of '{roles}' has {min_chars} characters; lower min_chars.")
    (data, groups), (test, test_groups) = (_pool(part) for part in parts)
    info = shakespeare.info((length,), len(VOCABULARY), "text", tuple(VOCABULARY), len(VOCABULARY))
    return Dataset(info, data.x, data.y, test, groups, tuple(names), test_groups)


def encode(text: str) -> NDArray[np.int64]:
    """Token ids; characters outside the vocabulary are dropped."""
    ids = _table()[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    return np.asarray(ids[ids >= 0])


@cache
def _table() -> NDArray[np.int64]:
    """Code point -> token id, or -1."""
    table = np.full(0x110000, -1, np.int64)
    table[[ord(c) for c in VOCABULARY]] = np.arange(len(VOCABULARY))
    return table


def _windows(text: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    """[n, length + 1]: each window with the character that follows."""
    if len(text) <= length:
        return np.empty((0, length + 1), np.int64)
    return np.lib.stride_tricks.sliding_window_view(text, length + 1)[::stride]


def _pool(windows: list[NDArray[np.int64]]) -> tuple[ClientData, NDArray[np.int64]]:
    rows = torch.from_numpy(np.concatenate(windows))
    owner = np.repeat(np.arange(len(windows)), [len(w) for w in windows])
    return ClientData(rows[:, :-1].contiguous(), rows[:, -1].contiguous()), owner


def _from_leaf(folder: Path) -> Dataset:
    names, train, test = read_leaf(folder, _rows, lambda labels: encode("".join(labels)))
    info = shakespeare.info((train.x.shape[1],), len(VOCABULARY), "text", tuple(VOCABULARY), len(VOCABULARY))
    data = _tensors(train)
    if test is None:
        return Dataset(info, data.x, data.y, None, train.owner, names)
    return Dataset(info, data.x, data.y, _tensors(test), train.owner, names, test.owner)


def _tensors(part: LeafPart) -> ClientData:
    return ClientData(torch.from_numpy(part.x), torch.from_numpy(part.y))


def _rows(windows: list[str]) -> NDArray[np.int64]:
    return encode("".join(windows)).reshape(len(windows), -1)
