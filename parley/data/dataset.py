"""A pooled data set before it is split among clients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.show import as_html
from parley.core.text import printable
from parley.data.checks import SampleForm, check_form, check_info, check_values
from parley.data.client import ClientData, DataInfo
from parley.data.federation import Federation, NumberedIds, check_fraction
from parley.data.partition.base import Partition, Partitioner, partitioners
from parley.data.partition.fixed import Fixed
from parley.data.sources import Pooled, held_out, strata


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples with their labels and, where known, a test set, natural clients and coarse labels."""

    info: DataInfo
    x: Tensor
    """[n, ...] inputs."""
    y: Tensor
    """[n] class numbers, [n, k] targets, or [n, T] next tokens."""
    test: ClientData | None = None
    """The official test set."""
    groups: NDArray[Any] | None = None
    """[n] the natural client of each sample, as a number into `group_names`."""
    group_names: tuple[str, ...] = ()
    test_groups: NDArray[Any] | None = None
    """The natural client of each test sample, where test samples belong to the same clients."""
    coarse: NDArray[Any] | None = None
    """[n] coarse labels, for Pachinko."""
    strata: NDArray[Any] | None = None
    """[n] what partitioners take for the labels where `y` does not hold one class per sample."""

    def __post_init__(self) -> None:
        whole = ClientData(self.x, self.y)  # checks the lengths
        check_info(form := SampleForm.of(whole), self.info)
        check_values(whole, self.info, f"'{self.info.name}'")
        if self.test is not None:
            check_values(check_form(self.test, form, "the test set"), self.info, f"the test set of '{self.info.name}'")
        for name in ("groups", "coarse", "strata"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise InputError(f"'{self.info.name}' has {len(self.x)} samples but {len(values)} {name}.")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Dataset('{printable(self.info.name)}', {', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        return as_html(f"Data set {self.info.name}", self._facts().items())

    def _facts(self) -> dict[str, str]:
        facts = {"samples": f"{len(self):,} samples of shape {list(self.info.shape)}", "targets": self.info.targets}
        if self.test is not None:
            facts["test"] = f"{len(self.test):,} test samples"
        if self.groups is not None:
            facts["groups"] = f"{len(np.unique(self.groups)):,} natural clients"
        return facts

    def split(
        self,
        partitioner: Partitioner | str,
        clients: int | None = None,
        seed: int = 0,
        test_fraction: float = 0.0,
        public_fraction: float = 0.0,
    ) -> Federation:
        """Deals the samples to clients; the pooled tensors are kept once and shared by all of them.

        `partitioner` is one of `parley.data`'s or the name of one, with its defaults. `test_fraction` of each client's
        samples, of each class its share, become its own test data (it keeps at least one for training).
        `public_fraction` of the pool is taken out first and offered to all as inputs without labels. Partitioners that
        look at labels see a regression target's decile.
        """
        if isinstance(partitioner, str):
            partitioner = partitioners[partitioner]()
        check_fraction("test_fraction", test_fraction)
        check_fraction("public_fraction", public_fraction)
        if public_fraction and isinstance(partitioner, Fixed):
            raise InputError("fixed index sets count all samples, so none can be taken out first: no public_fraction.")
        key = Key(seed).fold("split")
        order = key.fold("public").numpy().permutation(len(self))
        taken = round(public_fraction * len(self))
        kept = np.sort(order[taken:])
        partition = partitioner(
            self.labels()[kept],
            clients,
            key.fold("partition"),
            groups=None if self.groups is None else self.groups[kept],
            coarse=None if self.coarse is None else self.coarse[kept],
        )
        ids = self._names(partition)
        rows = kept[partition.rows]
        is_test = held_out(
            strata(self.y)[rows], np.diff(partition.offsets), test_fraction, key.fold("held out").numpy()
        )
        train, held = _hold_out(rows, partition.offsets, is_test)
        apart = Pooled(self.x, self.y, *held) if test_fraction else self._natural_test(partition)
        return Federation(
            self.info,
            NumberedIds(len(partition)) if ids is None else ids,
            Pooled(self.x, self.y, *train),
            held_out=apart,
            test=self.test,
            public=self.x[torch.from_numpy(np.sort(order[:taken]))] if taken else None,
        )

    def labels(self) -> NDArray[np.int64]:
        """One integer per sample: its stratum or class, or the decile of its (first) regression target."""
        if self.strata is not None:
            return np.asarray(self.strata, np.int64)
        if not self.y.is_floating_point():
            return np.asarray(self.y.numpy(), np.int64)
        first = self.y.reshape(len(self), -1)[:, 0].numpy().astype(np.float64)
        return np.searchsorted(np.quantile(first, np.arange(0.1, 0.95, 0.1)), first).astype(np.int64)

    def _names(self, partition: Partition) -> tuple[str, ...] | None:
        """Natural names; several clients of one group are numbered: 'travel/0', 'travel/1'."""
        if partition.groups is None:
            return None
        groups = partition.groups.tolist()
        total, seen = Counter(groups), Counter[int]()
        names = []
        for group in groups:
            name = self.group_names[group] if self.group_names else str(group)
            names.append(name if total[group] == 1 else f"{name}/{seen[group]}")
            seen[group] += 1
        return tuple(names)

    def _natural_test(self, partition: Partition) -> Pooled | None:
        """Test samples by natural client; clients of one group share theirs."""
        if partition.groups is None or self.test_groups is None or self.test is None:
            return None
        by_group = Partition.by_owner(self.test_groups, int(max(partition.groups.max(), self.test_groups.max())) + 1)
        parts = Partition.of(by_group[int(g)] for g in partition.groups)
        return Pooled(self.test.x, self.test.y, torch.from_numpy(parts.rows), torch.from_numpy(parts.offsets))


def _hold_out(
    rows: NDArray[np.int64], offsets: NDArray[np.int64], is_test: NDArray[np.bool_]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Every client's rows as (train, test), each flat with offsets."""
    sizes = np.diff(offsets)
    tests = np.diff(np.concatenate([[0], np.cumsum(is_test)])[offsets])

    def flat(mask: NDArray[np.bool_], counts: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return torch.from_numpy(np.ascontiguousarray(rows[mask])), torch.from_numpy(ends)

    return flat(~is_test, sizes - tests), flat(is_test, tests)
