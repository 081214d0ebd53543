"""Finished trials as a small file per study, so that hours of training travel with the repository.

    parley_papers/trials/004/table2.json         comes with the package
    parley reproduce 004/table2 --keep FOLDER    takes from and adds to FOLDER/004/table2.json

A file holds the curves that a study is judged by, and no weights. A trial is used again where its fingerprint, its seed
and its rounds are the same; its full settings are written down too, and one whose settings read otherwise than today's
(a default has changed) is trained anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import parley as pl
from parley_papers.arrays import Array
from parley_papers.trials.settings import agree

PACKAGED = Path(__file__).parent
"""Where the trials that come with the package are."""
Key = tuple[str, int, int]
"""Fingerprint, seed and rounds."""


@dataclass(frozen=True, eq=False)
class KeptTrial:
    """What a finished trial is known by and what it showed."""

    settings: Mapping[str, Any]
    rounds: Array
    accuracy: Array
    loss: Array
    metrics: Mapping[str, Array]


class KeptTrials:
    """The finished trials of a study: those that come with the package, and those of a folder that is added to."""

    def __init__(self, study: str, folder: Path | None = None, packaged: Path = PACKAGED) -> None:
        self.file = None if folder is None else folder / f"{study}.json"
        self._trials = _read(packaged / f"{study}.json")
        self._added = {} if self.file is None else _read(self.file)

    def find(self, key: Key, settings: Mapping[str, Any]) -> KeptTrial | None:
        """The trial with this key; None if there is none, or if a default has changed since."""
        trial = self._added.get(key) or self._trials.get(key)
        return trial if trial is not None and agree(trial.settings, settings) else None

    def add(self, key: Key, trial: KeptTrial) -> None:
        """Keep it, in the folder's file at once, where there is a folder."""
        self._added[key] = trial
        if self.file is not None:
            lines = ",\n".join(
                json.dumps(_plain(*item), allow_nan=False)
                for item in sorted(self._added.items(), key=lambda item: item[0])
            )
            pl.core.write_atomically(self.file, f"[\n{lines}\n]\n".encode())


def _read(file: Path) -> dict[Key, KeptTrial]:
    if not file.exists():
        return {}
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return {(entry["fingerprint"], entry["seed"], entry["until"]): _trial(entry) for entry in listed}
    except (ValueError, KeyError, TypeError) as error:
        raise pl.InputError(f"{file} is no file of kept trials ({error}); remove it, or name another folder.") from None


def _trial(plain: Mapping[str, Any]) -> KeptTrial:
    rounds, accuracy, loss = (_array(plain[name]) for name in ("rounds", "accuracy", "loss"))
    metrics = {name: _array(values) for name, values in plain["metrics"].items()}
    return KeptTrial(plain["settings"], rounds, accuracy, loss, metrics)


def _plain(key: Key, trial: KeptTrial) -> dict[str, Any]:
    """With null for what diverged."""
    fingerprint, seed, until = key
    curves = {"rounds": trial.rounds, "accuracy": trial.accuracy, "loss": trial.loss}
    return {
        "fingerprint": fingerprint,
        "seed": seed,
        "until": until,
        "settings": trial.settings,
        **{name: _list(values) for name, values in curves.items()},
        "metrics": {name: _list(values) for name, values in trial.metrics.items()},
    }


def _array(values: list[float | None]) -> Array:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _list(values: Array) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]
