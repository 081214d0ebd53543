"""Federation: many clients, each with its own samples, loaded only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.data.client import ClientData, DataInfo, as_inputs, as_targets, infer_info
from parley.data.sources import Cached, HeldOut, InMemory, Made, Source

__all__ = ["ClientData", "DataInfo", "Federation", "NumberedIds"]


class NumberedIds(Sequence[str]):
    """The ids '0', '1', ... `count - 1`, formatted on demand.

    >>> ids = NumberedIds(1_000_000)
    >>> ids[7], len(ids), "999999" in ids
    ('7', 1000000, True)
    """

    def __init__(self, count: int) -> None:
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[str]: ...
    def __getitem__(self, item: int | slice) -> str | Sequence[str]:
        if isinstance(item, slice):
            return tuple(str(i) for i in self._range[item])
        return str(self._range[item])

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else -1
        if str(number) != value or number not in self._range[start:stop]:
            raise ValueError(f"{value!r} is not in {self}")
        return number

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True

    def __repr__(self) -> str:
        return f"NumberedIds({len(self)})"


class Federation:
    """Clients by id, in a fixed order; costs memory for what is asked for, not for the population.

    Most federations come from `Dataset.split` or from one of the `from_...` constructors.
    """

    def __init__(
        self,
        info: DataInfo,
        ids: Sequence[str],
        source: Source,
        *,
        held_out: Source | None = None,
        test: ClientData | None = None,
        public: Tensor | None = None,
    ) -> None:
        self.info = info
        self.ids = ids
        self.source = source
        self.held_out = held_out
        self.test = test
        self.public = public
        self._numbers: dict[str, int] | None = None
        if len(ids) == 0:
            raise InputError(f"the federation '{info.name}' has no clients.")

    def __len__(self) -> int:
        return len(self.ids)

    def client(self, id: str) -> ClientData:
        """Training samples of one client."""
        return self.source.load(self._number(id))

    def client_test(self, id: str) -> ClientData | None:
        """The client's own held-out samples; None where it has none."""
        i = self._number(id)
        if self.held_out is None or self.held_out.size(i) == 0:
            return None
        return self.held_out.load(i)

    def size(self, id: str) -> int:
        """Training samples of one client, without loading them."""
        return self.source.size(self._number(id))

    def test_size(self, id: str) -> int:
        """The client's own held-out samples, without loading them."""
        return 0 if self.held_out is None else self.held_out.size(self._number(id))

    def sizes(self, ids: Sequence[str] | None = None) -> np.ndarray:
        """Training samples per client, int64; all clients if `ids` is None."""
        return self.source.sizes(range(len(self)) if ids is None else [self._number(id) for id in ids])

    def __repr__(self) -> str:
        return f"Federation('{self.info.name}', {len(self)} clients)"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_numbers": None}

    def _number(self, id: str) -> int:
        if isinstance(self.ids, NumberedIds):
            try:
                return self.ids.index(id)
            except ValueError:
                hint = f"the ids are '0' to '{len(self.ids) - 1}'."
                raise InputError(f"there is no client {id!r} in '{self.info.name}': {hint}") from None
        if self._numbers is None:
            self._numbers = {name: i for i, name in enumerate(self.ids)}
            if len(self._numbers) != len(self.ids):
                raise InputError(f"two clients of '{self.info.name}' have the same id.")
        if id not in self._numbers:
            raise InputError(f"there is no client {id!r} in '{self.info.name}': {nearest(str(id), self.ids)}")
        return self._numbers[id]

    # -- the user's own data ------------------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, ClientData | tuple[Any, Any]],
        *,
        test: ClientData | tuple[Any, Any] | None = None,
        public: Any = None,
        info: DataInfo | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """Clients from NumPy arrays or tensors in memory: id -> (x, y).

        Integer `y` means classification with max + 1 classes, floating `y` regression; `info` overrides. Integer `x`
        (but not uint8) are taken for token ids.
        """
        data = {str(id): _client(value, info) for id, value in clients.items()}
        empty = [id for id, value in data.items() if len(value) == 0]
        if not data or empty:
            raise InputError(f"client '{empty[0]}' has no samples." if empty else "from_arrays was given no clients.")
        first = next(iter(data.values()))
        for id, value in data.items():
            if value.x.shape[1:] != first.x.shape[1:] or value.y.dtype != first.y.dtype:
                raise InputError(
                    f"client '{id}' has samples of another shape or kind than client '{next(iter(data))}'."
                )
        central = None if test is None else _client(test, info)
        pools = [*data.values(), *([central] if central is not None else [])]
        largest = -1 if first.y.is_floating_point() else max(int(value.y.max()) for value in pools if len(value))
        info = info or infer_info("arrays", first, largest)
        if info.kind != "regression" and (largest >= info.outputs or any(int(v.y.min()) < 0 for v in pools if len(v))):
            raise InputError(f"'{info.name}' has labels outside 0 to {info.outputs - 1}; number the classes from 0.")
        inputs = None if public is None else as_inputs(public)
        return cls._held_out(info, tuple(data), InMemory(tuple(data.values())), central, inputs, test_fraction, seed)

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[str, TorchDataset[Any]] | Sequence[TorchDataset[Any]],
        *,
        test: ClientData | None = None,
        public: Tensor | None = None,
        info: DataInfo | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """Clients from torch data sets that yield (input, target); samples are stacked when a client is used.

        The clients used last stay in memory. Without `info`, every client is read once to count the classes.
        """
        from parley.data.local_files import TorchSource, scan

        named = clients if isinstance(clients, Mapping) else {str(i): c for i, c in enumerate(clients)}
        source = TorchSource(tuple(named.values()))
        info = info or scan("datasets", source, len(named))
        return cls._held_out(info, tuple(map(str, named)), Cached(source), test, public, test_fraction, seed)

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        target: str | None = None,
        test: ClientData | None = None,
        public: Tensor | None = None,
        info: DataInfo | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """One file per client, its stem being the client's id: .npz or .safetensors with `x` and `y`, or .csv.

        A csv file has a header; `target` names its target column (the last one by default), all other columns are
        numeric inputs. Text targets become class numbers in alphabetical order over all files. The targets are read
        once now, the inputs when a client is used.
        """
        from parley.data.local_files import open_folder

        source, ids, found = open_folder(Path(path), target)
        return cls._held_out(info or found, ids, Cached(source), test, public, test_fraction, seed)

    @classmethod
    def from_function(
        cls,
        count: int,
        make: Callable[[int], ClientData],
        size: int | Callable[[int], int],
        *,
        test: ClientData | None = None,
        public: Tensor | None = None,
        info: DataInfo | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """`count` clients, the i-th being `make(i)` with `size` (or `size(i)`) samples; nothing is kept in memory.

        `make` must give the same samples each time it is asked for the same client. For class labels pass `info`: the
        number of classes cannot be told without making every client.
        """
        source = Made(make, size)
        if count < 1:
            raise InputError(f"a federation needs at least one client, not {count}.")
        if info is None:
            first = source.load(0)
            if not first.y.is_floating_point():
                raise InputError("from_function needs info=DataInfo(...) when targets are class numbers.")
            info = infer_info("function", first, -1)
        return cls._held_out(info, NumberedIds(count), source, test, public, test_fraction, seed)

    @classmethod
    def _held_out(
        cls,
        info: DataInfo,
        ids: Sequence[str],
        source: Source,
        test: ClientData | None,
        public: Tensor | None,
        fraction: float,
        seed: int,
    ) -> Federation:
        check_fraction("test_fraction", fraction)
        if fraction == 0.0:
            return cls(info, ids, source, test=test, public=public)
        key = Key(seed).fold("held out")
        train, rest = (HeldOut(source, fraction, key, side) for side in ("train", "test"))
        return cls(info, ids, train, held_out=rest, test=test, public=public)


def check_fraction(name: str, value: float) -> None:
    """A share that leaves something over."""
    if not 0.0 <= value < 1.0:
        raise InputError(f"{name} must be at least 0 and below 1, not {value}.")


def _client(value: ClientData | tuple[Any, Any], info: DataInfo | None) -> ClientData:
    x, y = (value.x, value.y) if isinstance(value, ClientData) else value
    targets = as_targets(y)
    if info is not None and info.kind != "regression":
        targets = targets.long()
    return ClientData(as_inputs(x), targets)
