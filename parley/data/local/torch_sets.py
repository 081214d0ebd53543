"""Torch data sets, one per client, read under a seed of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.text import shown
from parley.data.checks import SampleForm, check_form, check_info, check_values, infer_info, largest
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision
from parley.data.fingerprint import data_digest
from parley.data.local.arrays import as_client
from parley.data.sources import Source

READS = 8
"""How often a client's first item is read to see whether it changes; a coin flip stays unseen once in 128 times."""


@dataclass(frozen=True)
class TorchSource(Source):
    """One map-style torch data set per client, each yielding (input, target)."""

    clients: tuple[TorchDataset[Any], ...]
    ids: tuple[str, ...]
    key: Key
    """Where randomness in items comes from, if they have any."""
    precision: Precision | None = None
    info: DataInfo | None = None
    """None while the clients are read for the first time."""

    def __post_init__(self) -> None:
        for id, client in zip(self.ids, self.clients, strict=True):
            if isinstance(client, IterableDataset) or not hasattr(client, "__len__"):
                raise InputError(
                    f"the data set of client '{shown(id)}' has no length; give a map-style torch data set."
                )
            if len(client) == 0:
                raise InputError(f"the data set of client '{shown(id)}' is empty; every client needs a sample.")

    def size(self, i: int) -> int:
        return len(self.clients[i])  # type: ignore[arg-type]

    def load(self, i: int) -> ClientData:
        data = self.read(i, self.size(i))
        return data if self.info is None else check_values(data, self.info, self.who(i))

    def read(self, i: int, rows: int, attempt: int = 0) -> ClientData:
        """The first rows of client i; another attempt gets other random numbers."""
        client = self.clients[i]
        if isinstance(client, TensorDataset) and len(client.tensors) == 2:
            pair = (client.tensors[0][:rows], client.tensors[1][:rows])
            return as_client(pair, self.info, self.precision, self.who(i))
        with _seeded(self.key.fold(self.ids[i], attempt)):
            try:
                samples = [client[row] for row in range(rows)]
                x = torch.stack([torch.as_tensor(np.asarray(x) if not torch.is_tensor(x) else x) for x, _ in samples])
                y = torch.stack([torch.as_tensor(y) for _, y in samples])
            except (TypeError, ValueError, RuntimeError) as error:
                reason = f"its samples cannot be stacked as (input, target) pairs ({shown(error)})"
                raise InputError(f"{self.who(i)}: {reason}; give tensors or arrays of one shape.") from error
        return as_client((x, y), self.info, self.precision, self.who(i))

    def who(self, i: int) -> str:
        return f"client '{shown(self.ids[i])}'"


def open_datasets(
    clients: Mapping[str, TorchDataset[Any]],
    info: DataInfo | None,
    precision: Precision | None,
    key: Key,
    draw_once: bool,
) -> tuple[TorchSource, DataInfo]:
    """The source and what it tells; with `info` only first items are read now, otherwise all."""
    if not clients:
        raise InputError("from_datasets was given no clients.")
    source = TorchSource(tuple(clients.values()), tuple(map(str, clients)), key, precision, info)
    form = SampleForm.of(source.read(0, 1))
    label = token = -1
    for i in range(len(clients)):
        if not draw_once:
            _refuse_variation(source, i)
        data = source.read(i, 1) if info is not None else source.load(i)
        check_form(data, form, source.who(i))
        label, token = max(label, largest(data.y)), max(token, largest(data.x))
    if info is None:
        info = infer_info("datasets", form, label, token)
        for i in range(len(clients)):
            check_values(source.load(i), info, source.who(i))
    check_info(form, info)
    return TorchSource(source.clients, source.ids, key, precision, info), info


def _refuse_variation(source: TorchSource, i: int) -> None:
    """Items that change with each reading would be frozen as they happen to come first."""
    first = data_digest(source.read(i, 1))
    for attempt in range(1, READS if i == 0 else 2):
        if data_digest(source.read(i, 1, attempt)) != first:
            raise InputError(
                f"the items of {source.who(i)} differ from one reading to the next (random augmentation?); give the "
                "data set without it, or draw_once=True to draw each item once from the seed."
            )


@contextmanager
def _seeded(key: Key) -> Iterator[None]:
    """Global random states as `key` says, and afterwards as they were: a data set's own code draws from them."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.seed)
        random.seed(key.seed)
        np.random.set_state(np.random.RandomState(key.seed % 2**32).get_state())  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
