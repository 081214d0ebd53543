"""Servers and nodes on this machine, without processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from parley import __version__
from parley.core.key import Key
from parley.deploy.answering import PROTOCOL
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.server_folder import ServerFolder
from parley.deploy.submissions import submitted_study
from parley.runtimes.node import round_key

SAME = {"parley": __version__, "protocol": PROTOCOL}
"""What every frame says first."""
ALL = 'algorithms = ["*"]\nmodels = ["*"]\nchannels = ["*"]\nrounds = 6\n'


def key_of(seed: int, number: int, name: str = "a") -> str:
    """A node's key of a round, as envelopes carry it."""
    return round_key(Key(seed), number, name).digest.hex()


def table(name: str = "fedavg", rounds: int = 3, **sections: object) -> dict[str, object]:
    """A small study."""
    return {
        "rounds": rounds,
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": name, "lr": 0.1, "steps": 3},
    } | sections


def proposed(name: str = "fedavg", rounds: int = 3, **sections: object) -> Proposal:
    return Proposal.of(submitted_study({"table": table(name, rounds, **sections), "base": "."}))


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return ServerFolder.create(tmp_path / "server", ["localhost", "127.0.0.1"])


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., NodeFolder]:
    """`make_node("a", policy)`: a node with its own digits."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)

    def make(name: str, policy: str = "", samples: int = 50) -> NodeFolder:
        start = 50 * (ord(name[-1]) - ord("a"))
        np.savez(tmp_path / f"{name}.npz", x=x[start : start + samples], y=y[start : start + samples])
        folder = NodeFolder.create(tmp_path / name, name)
        folder.point(data=str(tmp_path / f"{name}.npz"))
        if policy:
            (folder.path / "policy.toml").write_text(policy)
        return folder

    return make
