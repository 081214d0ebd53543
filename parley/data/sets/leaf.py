"""LEAF's JSON files (Caldas et al. 2018): the reader, and FEMNIST.

LEAF's scripts write {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}, either to
`train/*.json` and `test/*.json` (after its own split) or to `all_data/all_data_*.json`.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.data.dataset import Dataset
from parley.data.formats import read_json, readable
from parley.data.sets.base import dataset, images


@dataclass(frozen=True)
class LeafPart:
    """Samples of all users, one after the other; `owner` holds numbers into the common list of users."""

    x: list[Any]
    y: list[Any]
    owner: NDArray[np.int64]


def read_leaf(folder: Path) -> tuple[tuple[str, ...], LeafPart, LeafPart | None]:
    """(users, train, test) of LEAF's output folder; test is None where LEAF has not split the data."""
    train, test = _users(folder / "train"), _users(folder / "test")
    if not train:
        train, test = _users(folder / "all_data"), {}
    if not train:
        raise InputError(f"'{folder}' has no LEAF files: it needs train/*.json and test/*.json, or all_data/*.json.")
    names = tuple(sorted(train.keys() | test.keys()))
    number = {name: i for i, name in enumerate(names)}
    return names, _part(train, number), _part(test, number) if test else None


def _users(folder: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    users: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        content = read_json(file)
        with readable(file, "LEAF"):
            for user in content["users"]:
                samples = content["user_data"][user]
                if len(samples["x"]) != len(samples["y"]):
                    raise ValueError(f"user {user} has {len(samples['x'])} inputs but {len(samples['y'])} targets")
                users[user] = (samples["x"], samples["y"])
    return users


def _part(users: dict[str, tuple[list[Any], list[Any]]], number: dict[str, int]) -> LeafPart:
    x = [sample for xs, _ in users.values() for sample in xs]
    y = [label for _, ys in users.values() for label in ys]
    sizes = [len(ys) for _, ys in users.values()]
    return LeafPart(x, y, np.repeat([number[user] for user in users], sizes).astype(np.int64))


@dataset(
    "femnist",
    source="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
    license="public domain (NIST Special Database 19); LEAF scripts BSD 2-Clause",
    manual="run LEAF's data/femnist/preprocess.sh and copy its data/train and data/test to $PARLEY_DATA/femnist.",
)
def femnist() -> Dataset:
    """Handwritten digits and letters of 28x28 pixels by writer, 62 classes, some 3,500 natural clients (LEAF)."""
    folder = femnist.folder()
    names, train, test = read_leaf(folder)
    classes = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    data = _pair(train, folder)
    if test is None:
        whole = images(femnist, data, (data[0][:0], data[1][:0]), classes)
        return Dataset(whole.info, whole.x, whole.y, groups=train.owner, group_names=names)
    own = {"groups": train.owner, "group_names": names, "test_groups": test.owner}
    return images(femnist, data, _pair(test, folder), classes, **own)


def _pair(part: LeafPart, folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with readable(folder, "FEMNIST"):
        return np.asarray(part.x, np.float32).reshape(len(part.x), 1, 28, 28), np.asarray(part.y, np.int64)
