"""DataShare: a small global set joins every client's data (Zhao et al., 2018, Section 4).

A share of all samples, drawn uniformly over all clients, is moved into one public set G; client i then trains on what
it has left and all of G. Everything else is FedAvg, weights by size included (a client's size counts G).

G reaches the clients before the first round, as in the paper: it is part of the federation they train on and not of the
rounds' traffic. `shared_bytes` says what handing it out costs each client once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.local_update import FedAvg
from parley.algorithms.protocol import algorithm
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import wire_size
from parley.data import ClientData, Federation
from parley.data.sources import Source


@algorithm("datashare")
@dataclass(frozen=True)
class DataShare(FedAvg):
    """DataShare (Zhao et al., 2018): FedAvg where a global set of a tenth of all samples joins every client's data."""

    share: float = 0.1
    """Samples in the global set, as a share of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise InputError(f"share must lie between 0 and 1, not {self.share}.")

    def prepare(self, federation: Federation, key: Key) -> Federation:
        """The federation with the global set in it."""
        shared = Shared.draw(federation, self.share, key)
        return Federation(
            federation.info, federation.ids, shared,
            held_out=federation.held_out, test=federation.test, public=federation.public,
        )  # fmt: skip


def shared_bytes(federation: Federation) -> int:
    """Bytes of the message that hands the global set of a prepared federation to one client; 0 without one."""
    source = federation.source
    return wire_size(Message.of(x=source.common.x, y=source.common.y)) if isinstance(source, Shared) else 0


@dataclass(frozen=True)
class Shared(Source):
    """The clients of `source` without the rows that went into the common set, and that set added to each."""

    source: Source
    common: ClientData
    taken: dict[int, Tensor]
    """Client -> its rows (int64) that are in the common set."""

    @classmethod
    def draw(cls, federation: Federation, share: float, key: Key) -> Shared:
        ends = np.cumsum(federation.sizes())
        count = max(1, round(share * int(ends[-1])))
        chosen = np.sort(key.numpy().choice(int(ends[-1]), count, replace=False))
        owners = np.searchsorted(ends, chosen, side="right")
        starts = ends - federation.sizes()
        taken = {int(i): torch.from_numpy(chosen[owners == i] - starts[i]) for i in np.unique(owners)}
        parts = [(federation.source.load(i), rows) for i, rows in taken.items()]
        common = ClientData(torch.cat([d.x[rows] for d, rows in parts]), torch.cat([d.y[rows] for d, rows in parts]))
        return cls(federation.source, common, taken)

    def size(self, i: int) -> int:
        return self.source.size(i) - len(self.taken.get(i, ())) + len(self.common)

    def load(self, i: int) -> ClientData:
        own = self.source.load(i)
        left = torch.ones(len(own), dtype=torch.bool)
        if i in self.taken:
            left[self.taken[i]] = False
        return ClientData(torch.cat([own.x[left], self.common.x]), torch.cat([own.y[left], self.common.y]))
