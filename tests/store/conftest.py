"""Runs that are cheap to train again and again, and what is compared of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAdam
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.protocol import Algorithm
from parley.core.errors import ParleyError
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.models import mlp
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.study.train import train

METHODS: dict[str, Callable[[], Algorithm]] = {
    "fedadam": lambda: FedAdam(lr=0.1, batch=5),
    "local-only": lambda: LocalOnly(lr=0.1, batch=5),
    "scaffold": lambda: Scaffold(lr=0.1, steps=2, batch=5),
    "fedals": lambda: FedALS(lr=0.1, steps=2, batch=5),
}
"""A state with momentum, memories alone, both, and both with parts that are averaged at times only."""


def federation() -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 7)).astype(np.float32)
    y = (x @ random.normal(size=(7, 3))).argmax(1)
    clients = {f"c{i}": (x[20 * i : 20 * i + 13 + i], y[20 * i : 20 * i + 13 + i]) for i in range(5)}
    return Federation.from_arrays(clients, test=(x[110:], y[110:]), test_fraction=0.2)


class Copies(Listener):
    """Copies of the store's folder: `folder/<n>` is as the checkpoint after round n left it."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.store, self.folder = store, folder

    def round(self, record) -> None:
        if record.number:  # listeners hear of a round before it is saved
            shutil.copytree(self.store.parent, self.folder / str(record.number - 1))

    def end(self, run: Run) -> None:
        shutil.copytree(self.store.parent, self.folder / str(run.records[-1].number))


class Lab:
    """Trains the runs of these tests, with a checkpoint after every round."""

    def __init__(self, rounds: int = 6) -> None:
        self.rounds = rounds
        self._whole: dict[str, dict[str, object]] = {}

    def train(
        self, method: str, store: Path | None, resume: str | None = None, listeners: Sequence[Listener] = ()
    ) -> Run:
        return train(
            METHODS[method](),
            federation(),
            model=mlp(6),
            rounds=self.rounds,
            cohort=3,
            seed=4,
            runtime="inline",
            evaluation=Evaluation(clients="all"),
            store=store,
            checkpoint=0.0,
            resume=resume,
            listeners=listeners,
        )

    def copies(self, method: str, folder: Path) -> None:
        """Train in `folder/live` and keep the store as it was after round n in `folder/n`."""
        self.train(method, folder / "live" / "runs.db", listeners=[Copies(folder / "live" / "runs.db", folder)])

    def whole(self, method: str) -> dict[str, object]:
        """What an undisturbed run gives."""
        if method not in self._whole:
            self._whole[method] = self.outcome(self.train(method, None))
        return self._whole[method]

    def resume(self, method: str, store: Path) -> dict[str, object] | str:
        """What the run in the store comes to when it is resumed: its outcome, or the sentence that refuses it."""
        try:
            with RunStore(store, create=False) as runs:
                run = runs.info("last").id
            result = self.outcome(self.train(method, store, resume=run))
            with RunStore(store, create=False) as runs:
                assert self.metrics(runs.records(run)) == result["metrics"]
            return result
        except ParleyError as error:
            return str(error)

    def outcome(self, run: Run) -> dict[str, object]:
        """Everything a user could read from a run, apart from times."""
        return {
            "metrics": self.metrics(run.records),
            "best": (run.best_round, run.best_value),
            "failures": [record.failures for record in run.records],
            "state": {name: value.tolist() for name, value in run.state.tensors.items()},
            "memories": {
                client: {name: value.tolist() for name, value in run.memory(client).tensors.items()}
                for client in run.federation.ids
            },
        }

    def metrics(self, records: list[RoundRecord]) -> dict[tuple[int, str], object]:
        return {
            (record.number, name): (metric.value, metric.clients)
            for record in records
            for name, metric in record.metrics.items()
            if "seconds" not in name
        }


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
