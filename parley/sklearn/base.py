"""What the estimators share: rows and their clients become a federation, `train` a fit, a run's outputs predictions."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from parley.algorithms import Algorithm, algorithms
from parley.algorithms.protocol import as_algorithm
from parley.core.errors import InputError, ParleyWarning
from parley.core.registry import Registry
from parley.core.text import shown
from parley.data import DataInfo, Federation, Pooled
from parley.data.client import Kind
from parley.models import models
from parley.sklearn.nested import changed, made, nested
from parley.store.memories import Memories
from parley.study.train import train

Array = NDArray[Any]
_FLOATS = (np.float64, np.float32)
_REGISTRIES: dict[str, Registry[Any]] = {"algorithm": algorithms, "model": models}


class Federated(BaseEstimator):
    """fit, outputs, settings of settings, and copies without training rows."""

    # With metadata routing, folds' groups name the clients of fits; scores are of the common model.
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": False}
    __metadata_request__predict_proba: ClassVar = {"groups": False}
    __metadata_request__score: ClassVar = {"groups": False}

    rounds: int
    random_state: Any
    kind: Kind

    def method(self) -> Algorithm:
        """The algorithm that is trained."""
        raise NotImplementedError

    def settings(self, network: bool) -> dict[str, Any]:
        """What `train` is given besides algorithm, data, rounds and seed; a model where a network is trained."""
        raise NotImplementedError

    def targets(self, y: Array) -> Array:
        """Class numbers, or numbers to predict, with what they mean kept in attributes."""
        raise NotImplementedError

    def width(self, targets: torch.Tensor) -> int:
        """Outputs per sample."""
        raise NotImplementedError

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """What a row is made into; None leaves it as it is."""
        return None

    @property
    def standardises(self) -> bool:
        """Whether inputs and numbers to predict get mean 0 and deviation 1 over all clients."""
        return False

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on rows [n, features] with targets [n]; row i is a sample of `groups[i]`."""
        method = as_algorithm(self.method())
        missing = method.needs.missing
        checks = {"ensure_all_finite": "allow-nan" if missing else True, "dtype": _FLOATS, "order": "C"}
        rule = {"y_numeric": True, "multi_output": True} if self.kind == "regression" else {}
        rows, given = validate_data(self, X, y, **checks, **rule)
        x, targets = torch.from_numpy(self._shaped(rows)), torch.from_numpy(self.targets(given))
        targets = targets.to(x.dtype) if self.kind == "regression" else targets.long()
        columns = tuple(map(str, getattr(self, "feature_names_in_", ())))
        info = DataInfo(
            "rows",
            tuple(x.shape[1:]),
            self.width(targets),
            self.kind,
            columns=columns if x.ndim == 2 else (),
            missing=missing,
        )
        ids, index, offsets = _dealt(groups, len(x))
        federation = Federation(info, ids, Pooled(x, targets, index, offsets))
        if self.standardises and not missing:
            federation = federation.standardised()
        self.run_ = train(
            method, federation, rounds=self.rounds, seed=_seed(self.random_state), **self.settings(method.needs.network)
        )
        self.clients_ = np.array(ids)
        return self

    def _shaped(self, rows: Array) -> Array:
        shape, rows = self.sample_shape or rows.shape[1:], np.require(rows, requirements=["C", "W"])
        if prod(shape) != rows.shape[1]:
            raise InputError(f"shape {tuple(shape)} has {prod(shape)} numbers, but X has {rows.shape[1]} columns.")
        return rows.reshape(len(rows), *shape)

    def outputs(self, X: ArrayLike, groups: ArrayLike | None) -> Array:
        """Logits or values [n, ...] in float64; with `groups`, each row by the model of its client."""
        check_is_fitted(self, "run_")
        finite = "allow-nan" if self.run_.task.info.missing else True
        x = self._shaped(validate_data(self, X, reset=False, dtype=_FLOATS, order="C", ensure_all_finite=finite))
        if groups is None:
            return np.asarray(self.run_.predict(x).double().numpy())
        ids, index, offsets = _dealt(groups, len(x))
        parts = [
            self.run_.predict(x[index[begin:end].numpy()], client=client).double()
            for client, begin, end in zip(ids, offsets[:-1], offsets[1:], strict=True)
        ]
        return np.asarray(torch.cat(parts)[index.argsort()].numpy())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name; `deep` adds those of the algorithm and of the model, `algorithm__lr`."""
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for name in [name for name in _REGISTRIES if name in params]:
                with suppress(InputError):  # an unknown name is told by `fit`
                    params |= nested(made(_REGISTRIES[name], params[name]), name)
        return params

    def set_params(self, **params: Any) -> Self:
        """Change settings, `algorithm__lr` among them; `algorithm` and `model` before what is in them."""
        inner: dict[str, dict[str, Any]] = {name: {} for name in _REGISTRIES}
        for path in [path for path in params if path.partition("__")[0] in _REGISTRIES and "__" in path]:
            name, _, rest = path.partition("__")
            inner[name][rest] = params.pop(path)
        super().set_params(**params)
        for name, settings in inner.items():
            if settings:
                setattr(self, name, changed(_REGISTRIES[name], getattr(self, name), settings, name))
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies go without training rows: a run leaves its federation behind, and here what clients keep of rows."""
        state: dict[str, Any] = super().__getstate__()
        run = state.get("run_")
        if run is not None and not run.learned.personal:
            state = state | {"run_": replace(run, memories=Memories())}
        return state


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _dealt(clients: ArrayLike | None, count: int) -> tuple[tuple[str, ...], torch.Tensor, torch.Tensor]:
    """Ids in order of first appearance, the rows of each one after the other, and where each begins and ends."""
    if clients is None:
        warnings.warn(
            "no clients were named, so all rows are taken for those of one; give fit(X, y, groups=...).",
            ParleyWarning,
            stacklevel=3,
        )
        return ("all",), torch.arange(count), torch.tensor([0, count])
    names = [_name(client) for client in np.asarray(clients, dtype=object).ravel()]
    if len(names) != count:
        raise InputError(f"X has {count} rows, but there are {len(names)} clients; name the client of every row.")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    owner = torch.tensor([numbers[name] for name in names])
    ends = torch.bincount(owner).cumsum(0)
    return tuple(numbers), owner.argsort(stable=True), torch.cat([torch.zeros(1, dtype=torch.int64), ends])


def _name(client: Any) -> str:
    text = "" if client is None or client != client or "NA" in type(client).__name__ else str(client).strip()
    if not text or not text.isprintable():
        raise InputError(f"'{shown(client)}' is no client; every row needs the name of one.")
    return text
