"""Index sets that somebody has written down, so that a federation is the same one, sample by sample."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.data.fetch import cache_dir
from parley.data.partition.base import Partition, partitioner


@partitioner("fixed")
@dataclass(frozen=True)
class Fixed:
    """Index sets from a file: client i gets the samples that its set names, counted from 0 in the data set's order.

    The file is an .npz with `NAME_idx`, the sets of all clients one after the other, and `NAME_sizes`, how many samples
    each client has. Clients may share samples, and samples may be nobody's. A file that is missing, or names a sample
    that the data set does not have, is refused: no other partition takes its place.
    """

    file: str = ""
    """The .npz file; a relative path starts at $PARLEY_DATA."""
    which: str = ""
    """Name of the partition in the file."""

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int | None,
        key: Key,
        *,
        groups: NDArray[Any] | None = None,
        coarse: NDArray[Any] | None = None,
    ) -> Partition:
        index, sizes = self._read()
        where = f"partition '{self.which}' of '{self.file}'"
        if sizes.sum() != len(index) or (sizes < 1).any():
            raise InputError(f"{where} has {len(index)} indices, but sizes that sum to {sizes.sum()} or lie below 1.")
        if clients is not None and clients != len(sizes):
            raise InputError(f"{where} has {len(sizes)} clients, not {clients}; leave their number out.")
        if index.min() < 0 or index.max() >= len(labels):
            wrong = index.min() if index.min() < 0 else index.max()
            raise InputError(f"{where} names sample {wrong}, but the data set has samples 0 to {len(labels) - 1}.")
        return Partition.of(np.split(index, np.cumsum(sizes)[:-1]))

    def _read(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if not self.file or not self.which:
            raise InputError("the partitioner 'fixed' needs `file`, an .npz of index sets, and `which` of them.")
        try:
            with np.load(cache_dir() / self.file, allow_pickle=False) as content:
                names = [key.removesuffix("_sizes") for key in content.files if key.endswith("_sizes")]
                if self.which not in names or f"{self.which}_idx" not in content.files:
                    raise InputError(f"'{self.file}' has no partition '{self.which}': {nearest(self.which, names)}")
                index, sizes = content[f"{self.which}_idx"], content[f"{self.which}_sizes"]
        except FileNotFoundError:
            raise InputError(f"there is no file '{cache_dir() / self.file}' with index sets.") from None
        except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
            raise InputError(f"'{self.file}' is no .npz file of index sets: {error}.") from None
        for what, values in (("idx", index), ("sizes", sizes)):
            if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
                raise InputError(f"'{self.which}_{what}' of '{self.file}' must be a list of whole numbers.")
        return index.astype(np.int64), sizes.astype(np.int64)
