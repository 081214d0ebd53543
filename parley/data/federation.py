"""Federation: many clients, each with its own samples, loaded only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.core.text import shown
from parley.data.checks import SampleForm, check_form, check_info, check_inputs, check_values, infer_info
from parley.data.client import ClientData, DataInfo
from parley.data.convert import Precision, as_inputs
from parley.data.encoding import Encoding
from parley.data.fingerprint import SIZE, Digests, data_digest, info_digest, text_digest
from parley.data.ids import NumberedIds
from parley.data.scaling import Scaling, pooled_scaling
from parley.data.sources import Cached, Elsewhere, HeldOut, InMemory, Made, Source, Step

__all__ = ["ClientData", "DataInfo", "Federation", "NumberedIds"]

CHUNK = 4096
Task = Literal["classification", "regression"]
OnError = Literal["refuse", "skip"]


_REMEMBERED = 20_000
"""Clients made on demand that are known to have been looked at; of a larger federation, the first so many."""


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
        self._form: SampleForm | None = None
        self._seen: set[int] = set()
        """Which clients made on demand have been looked at."""
        self._digests: dict[int, bytes] = {}
        self._fingerprint = ""
        if len(ids) == 0:
            raise InputError(f"the federation '{info.name}' has no clients.")
        if test is not None:
            check_form(test, self.form, "the test set")
        if public is not None and (public.shape[1:] != self.form.shape or public.dtype != self.form.dtype):
            raise InputError(
                f"the public inputs have shape {tuple(public.shape[1:])} and {public.dtype}, but the clients' inputs "
                f"have {tuple(self.form.shape)} and {self.form.dtype}."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def here(self) -> bool:
        """Whether its clients' samples can be loaded; of a deployment they are on other machines."""
        return not isinstance(self.source, Elsewhere)

    @property
    def form(self) -> SampleForm:
        """Shape and dtype of every client's samples, told from the first client if need be."""
        if self._form is None:
            form = self.source.form()
            check_info(form, self.info)
            self._form = form
        return self._form

    @property
    def dtype(self) -> torch.dtype | None:
        """The precision of the inputs; None where the samples are on other machines and nobody has said."""
        try:
            return self.form.dtype
        except InputError:
            if self.here:
                raise
            return None

    def client(self, id: str) -> ClientData:
        """Training samples of one client."""
        return self._checked(self.source, self.number(id), id)

    def client_test(self, id: str) -> ClientData | None:
        """The client's own held-out samples; None where it has none."""
        i = self.number(id)
        if self.held_out is None or self.held_out.size(i) == 0:
            return None
        return self._checked(self.held_out, i, id)

    def size(self, id: str) -> int:
        """Training samples of one client, without loading them."""
        return self.source.size(self.number(id))

    def test_size(self, id: str) -> int:
        """The client's own held-out samples, without loading them."""
        return 0 if self.held_out is None else self.held_out.size(self.number(id))

    def sizes(self, ids: Sequence[str] | None = None) -> np.ndarray:
        """Training samples per client, int64; all clients if `ids` is None."""
        return self.source.sizes(range(len(self)) if ids is None else [self.number(id) for id in ids])

    def with_public(self, inputs: Tensor) -> Federation:
        """The same clients, and these unlabelled inputs [m, ...] for everybody."""
        return Federation(self.info, self.ids, self.source, held_out=self.held_out, test=self.test, public=inputs)

    def fingerprint(self) -> str:
        """A digest of ids, sizes, what the data say of themselves, and every sample: other data, another digest.

        Clients made on demand are not made for it: there the ids, the sizes and the declared recipe count.
        """
        if not self._fingerprint:
            digest = blake2b(info_digest(self.info), digest_size=SIZE)
            numbered = isinstance(self.ids, NumberedIds)
            digest.update(text_digest(str(len(self))) if numbered else text_digest(*self.ids))
            for begin in range(0, len(self), CHUNK):
                digest.update(self.source.sizes(range(begin, min(begin + CHUNK, len(self)))).tobytes())
            once = Digests()
            stored = [source.tensors() for source in (self.source, self.held_out) if source is not None]
            if self.source.recipe is not None:
                digest.update(text_digest(self.source.recipe))
            elif all(stored):  # the pool as it lies there: nothing is copied out
                for tensor in chain.from_iterable(stored):
                    digest.update(once.of(tensor))
            else:
                for i in range(len(self)):
                    digest.update(self._digest(i))
            for tensor in (self.test.x, self.test.y) if self.test is not None else ():
                digest.update(once.of(tensor))
            digest.update(once.of(self.public) if self.public is not None else bytes(SIZE))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def client_fingerprint(self, id: str) -> str:
        """A digest of one client's samples, held-out ones included; the client is loaded for it."""
        return self._digest(self.number(id)).hex()

    def standardised(self) -> Federation:
        """The federation with inputs of mean 0 and deviation 1 per column, by statistics of all training samples.

        The statistics, sums that clients could send (see `parley.data.scaling`), are kept as `info.scaling`. Images are
        standardised per channel. Constant columns and regression targets are left alone.
        """
        if self.info.kind == "text":
            raise InputError(f"'{self.info.name}' holds token ids, which cannot be standardised.")
        if self.info.categories:
            raise InputError(
                f"'{self.info.name}' has columns of texts: leave standardise out, and normalise with "
                "'parley stats STUDY --freeze FILE'."
            )
        if self.info.missing:
            raise InputError(f"'{self.info.name}' has missing values, so it cannot be standardised; see parley stats.")
        return self.scaled(pooled_scaling(lambda: (self.client(id).x for id in self.ids), self.info.shape))

    def scaled(self, scaling: Scaling | Encoding) -> Federation:
        """The federation with inputs to which this was done, the test set and public inputs included."""
        if self.info.scaling is not None:
            raise InputError(f"'{self.info.name}' is standardised already.")
        known: dict[int, Tensor] = {}
        step = Step(scaling, self.info.categories, self.info.levels)
        info = replace(self.info, scaling=scaling, missing=self.info.missing and not scaling.fills)
        if isinstance(scaling, Encoding):
            names = scaling.inputs
            info = replace(info, shape=(len(names),), columns=names, categories=(), levels=(), dates=())
        return Federation(
            info,
            self.ids,
            self.source.transformed(step, known),
            held_out=None if self.held_out is None else self.held_out.transformed(step, known),
            test=None if self.test is None else ClientData(step.apply(self.test.x), self.test.y),
            public=None if self.public is None else step.apply(self.public),
        )

    def __repr__(self) -> str:
        return f"Federation('{shown(self.info.name)}', {len(self)} client{'s' * (len(self) != 1)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_numbers": None, "_digests": {}}

    def _checked(self, source: Source, i: int, id: str) -> ClientData:
        data = source.load(i)
        form = self._form or self.form
        if not form.fits(data):
            check_form(data, form, f"client '{shown(id)}' of '{self.info.name}'")
        # Clients made on demand are looked at once; all others were when the federation was made.
        if source.recipe is not None and i not in self._seen:
            check_values(data, self.info, f"client '{shown(id)}' of '{self.info.name}'")
            if source is self.source and len(self._seen) < _REMEMBERED:
                self._seen.add(i)
        return data

    def _digest(self, i: int) -> bytes:
        if i not in self._digests:
            id = self.ids[i]
            both = data_digest(self.client(id)) + data_digest(self.client_test(id))
            self._digests[i] = blake2b(both, digest_size=SIZE).digest()
        return self._digests[i]

    def number(self, id: str) -> int:
        """The place of a client among the ids, which is what its samples go by."""
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
        dtype: Precision | None = None,
        missing: bool = False,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """Clients from NumPy arrays or tensors in memory: id -> (x, y).

        Integer `y` means classification with max + 1 classes, floating `y` regression; `info` overrides. Integer `x`
        (but not uint8) are taken for token ids. Floats keep their precision, and a model of Parley's takes it over;
        `dtype` ("float32" or "float64") converts all inputs, integers that are measurements too. With `missing`, NaN
        among the inputs stands for a missing value, which boosted trees take.
        """
        from parley.data.local.arrays import arrays_in_memory

        data, central, completed = arrays_in_memory(clients, test, info, dtype, missing)
        inputs = None if public is None else as_inputs(public, dtype)
        return cls._held_out(
            completed, tuple(data), InMemory(tuple(data.values())), central, inputs, test_fraction, seed
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str,
        test: Any = None,
        kind: Task | None = None,
        dtype: Precision | None = None,
        missing: bool = False,
        categories: Sequence[str] = (),
        dates: Sequence[str] = (),
        on_error: OnError = "refuse",
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """Clients from one data frame (pandas, polars, pyarrow, or a dictionary of columns), one sample per row.

        It may also be the path of a .csv or .parquet file, and so may `test`. The column `client` says whose sample a
        row is, `target` what to predict, and all others are numeric inputs. Clients come in the order in which they
        first appear. Whole numbers or texts as targets mean classes, other numbers regression; `kind` overrides. `test`
        has the same columns but for the clients. With `missing`, empty cells are missing values (boosted trees).
        Columns among `categories` hold texts, those among `dates` dates; `Preprocessing.table` encodes them. With
        on_error="skip" rows that cannot be read are left out, with a warning.
        """
        from parley.data.local.frames import federation_of_frame
        from parley.data.local.tables import cells_of

        cells = cells_of(missing, categories, dates, on_error)
        data, central, info = federation_of_frame(frame, client, target, test, kind, dtype, cells)
        return cls._held_out(info, tuple(data), InMemory(tuple(data.values())), central, None, test_fraction, seed)

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[str, TorchDataset[Any]] | Sequence[TorchDataset[Any]],
        *,
        test: ClientData | None = None,
        public: Tensor | None = None,
        info: DataInfo | None = None,
        dtype: Precision | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
        draw_once: bool = False,
    ) -> Federation:
        """Clients from torch data sets that yield (input, target); samples are stacked when a client is used.

        The clients used last stay in memory. Without `info`, every client is read once to count the classes and to
        check it. Items must be the same whenever they are read, so random augmentation is refused; with
        `draw_once=True` each item is drawn once, from `seed` and the client, and stays as it is in all rounds.
        """
        from parley.data.local.torch_sets import open_datasets

        named = clients if isinstance(clients, Mapping) else {str(i): c for i, c in enumerate(clients)}
        source, completed = open_datasets(named, info, dtype, Key(seed).fold("items"), draw_once)
        return cls._held_out(completed, tuple(map(str, named)), Cached(source), test, public, test_fraction, seed)

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        target: str | None = None,
        test: ClientData | None = None,
        public: Tensor | None = None,
        info: DataInfo | None = None,
        kind: Task | None = None,
        dtype: Precision | None = None,
        missing: bool = False,
        categories: Sequence[str] = (),
        dates: Sequence[str] = (),
        on_error: OnError = "refuse",
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """One file per client, its stem being the client's id: a table (.csv, .parquet) or arrays (.npz, .safetensors).

        A table has named columns, matched by name across files; `target` names the target column (the last one by
        default), all others are numeric inputs, float32 unless `dtype` says otherwise. Arrays are called `x` and `y`.
        Whole numbers as targets mean classes, texts too (numbered alphabetically over all files), other numbers
        regression; `kind` overrides. Every file is read and checked once now, and again when its client is used.
        With `missing`, empty cells and NaN are missing values, which boosted trees take. Columns among `categories`
        hold texts, those among `dates` dates; `Preprocessing.table` encodes them. With on_error="skip" rows of tables
        that cannot be read are left out, with a warning.
        """
        from parley.data.local.folder import open_folder
        from parley.data.local.tables import cells_of

        cells = cells_of(missing, categories, dates, on_error)
        source, ids, completed = open_folder(Path(path), target, kind, dtype, info, cells)
        return cls._held_out(completed, ids, Cached(source), test, public, test_fraction, seed)

    @classmethod
    def from_image_folders(
        cls,
        path: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        grey: bool = False,
        test: ClientData | None = None,
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """One folder per client with a sub-folder of images per class: `path/hospital/class/scan.png`.

        Images become float32 [channels, height, width] between 0 and 1, in colour unless `grey`; they must be of one
        size, or are resized to `size` (height and width). Reading them needs Pillow.
        """
        from parley.data.local.images import open_image_folders

        source, ids, info = open_image_folders(Path(path), size, grey)
        return cls._held_out(info, ids, Cached(source), test, None, test_fraction, seed)

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
        recipe: str = "",
        test_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """`count` clients, the i-th being `make(i)` with `size` (or `size(i)`) samples; nothing is kept in memory.

        `make` must give the same samples each time it is asked for the same client. For class labels pass `info`: the
        number of classes cannot be told without making every client. `recipe` says what `make` does (its version, its
        settings): it stands for the samples in the federation's fingerprint.
        """
        source = Made(make, size, recipe)
        if count < 1:
            raise InputError(f"a federation needs at least one client, not {count}.")
        if info is None:
            form = source.form()
            if not form.target_dtype.is_floating_point:
                raise InputError("from_function needs info=DataInfo(...) when targets are class numbers.")
            info = infer_info("function", form, -1)
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
        if test is not None:
            check_values(test, info, "the test set")
        if public is not None:
            check_inputs(public, info, "the public set")
        if fraction == 0.0:
            return cls(info, ids, source, test=test, public=public)
        key = Key(seed).fold("held out")
        train, rest = (HeldOut(source, fraction, key, side) for side in ("train", "test"))
        return cls(info, ids, train, held_out=rest, test=test, public=public)


def check_fraction(name: str, value: float) -> None:
    """A share that leaves something over."""
    if not 0.0 <= value < 1.0:
        raise InputError(f"{name} must be at least 0 and below 1, not {value}.")
