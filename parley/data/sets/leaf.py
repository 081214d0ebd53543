"""LEAF's JSON files (Caldas et al. 2018): the reader, and FEMNIST.

LEAF's scripts write {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}, either to
`train/*.json` and `test/*.json` (after its own split) or to `all_data/all_data_*.json`.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError
from parley.data.dataset import Dataset
from parley.data.formats import read_json, readable
from parley.data.sets.base import dataset, images

Encoder = Callable[[list[Any]], NDArray[Any]]
"""One user's inputs or targets, as JSON has them, to an array with one row per sample."""


@dataclass(frozen=True)
class LeafPart:
    """Samples of all users, one after the other; `owner` holds numbers into the common list of users."""

    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[np.int64]


def read_leaf(folder: Path, inputs: Encoder, targets: Encoder) -> tuple[tuple[str, ...], LeafPart, LeafPart | None]:
    """(users, train, test) of LEAF's output folder; test is None where LEAF has not split the data.

    Files are encoded one by one, because JSON's lists take many times the memory of arrays.
    """
    train, test = (_users(folder / part, inputs, targets) for part in ("train", "test"))
    if not train:
        train, test = _users(folder / "all_data", inputs, targets), {}
    if not train:
        raise InputError(f"'{folder}' has no LEAF files: it needs train/*.json and test/*.json, or all_data/*.json.")
    names = tuple(sorted(train.keys() | test.keys()))
    number = {name: i for i, name in enumerate(names)}
    return names, _part(train, number), _part(test, number) if test else None


Users = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def _users(folder: Path, inputs: Encoder, targets: Encoder) -> Users:
    users: Users = {}
    for file in sorted(folder.glob("*.json")):
        content = read_json(file)
        with readable(file, "LEAF"):
            for user in content["users"]:
                samples = content["user_data"].pop(user)
                x, y = inputs(samples["x"]), targets(samples["y"])
                if len(x) != len(y):
                    raise ValueError(f"user {user} has {len(x)} inputs but {len(y)} targets")
                if len(x):
                    users[user] = (x, y)
    return users


def _part(users: Users, number: dict[str, int]) -> LeafPart:
    x, y = (np.concatenate([pair[i] for pair in users.values()]) for i in (0, 1))
    owner = np.repeat([number[user] for user in users], [len(pair[1]) for pair in users.values()])
    return LeafPart(x, y, owner.astype(np.int64))


@dataset(
    "femnist",
    source="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
    license="public domain (NIST Special Database 19); LEAF scripts BSD 2-Clause",
    manual="run LEAF's data/femnist/preprocess.sh and copy its data/train and data/test to $PARLEY_DATA/femnist.",
)
def femnist() -> Dataset:
    """Handwritten digits and letters of 28x28 pixels by writer, 62 classes, some 3,500 natural clients (LEAF)."""
    names, train, test = read_leaf(femnist.folder(), _pictures, lambda labels: np.asarray(labels, np.int64))
    classes = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    if test is None:
        whole = images(femnist, (train.x, train.y), (train.x[:0], train.y[:0]), classes)
        return Dataset(whole.info, whole.x, whole.y, groups=train.owner, group_names=names)
    groups = {"groups": train.owner, "group_names": names, "test_groups": test.owner}
    return images(femnist, (train.x, train.y), (test.x, test.y), classes, **groups)


def _pictures(samples: list[Any]) -> NDArray[Any]:
    return np.asarray(samples, np.float32).reshape(len(samples), 1, 28, 28)
