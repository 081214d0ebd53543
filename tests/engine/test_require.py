"""`faults.require` and `faults.at_least`: a run that would go on without somebody stops at its checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.core.errors import InputError, QuorumError
from parley.data import Federation
from parley.engine.settings import Faults, Sampling
from parley.models import models
from parley.study.train import train


class Fails(FedAvg):
    """Client b answers in the first round only."""

    @exchange(like=FedAvg.client)
    def client(self, task, message, memory, data, context) -> Reply:
        if context.id == "b" and context.round > 1:
            raise RuntimeError("away")
        return super().client(task, message, memory, data, context)


@pytest.fixture
def clients() -> Federation:
    random = np.random.default_rng(0)
    return Federation.from_arrays({name: (random.normal(size=(9, 3)), np.arange(9) % 2) for name in "abc"})


def trained(clients: Federation, tmp_path, **faults):
    method = Fails(lr=0.1, steps=1)
    return train(
        method,
        clients,
        model=models["linear"](),
        rounds=3,
        faults=Faults(quorum=0.0, **faults),
        runtime="inline",
        store=tmp_path / "runs.db",
        cohort=faults.pop("cohort", None),
        checkpoint=0.0,
    )


def test_without_them_a_run_goes_on(clients, tmp_path):
    assert trained(clients, tmp_path).status == "finished"


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"require": ("b",)}, "client 'b', which faults.require names, raised RuntimeError: away"),
        ({"at_least": 3}, "only 2 of 3 clients answered, faults.at_least is 3"),
    ],
)
def test_a_missing_client_stops_the_run_where_it_is_needed(clients, tmp_path, faults, said):
    with pytest.raises(QuorumError, match=said):
        trained(clients, tmp_path, **faults)
    from parley.store.runs import RunStore

    with RunStore(tmp_path / "runs.db") as store:
        (run,) = store.runs()
        assert run.status == "stopped"
        assert [record.number for record in store.records(run.id)] == [1]
        assert said in run.summary["ended"]


def test_others_may_be_missing(clients, tmp_path):
    assert trained(clients, tmp_path, require=("a", "c"), at_least=2).status == "finished"


def test_a_cohort_that_is_too_small_is_told(clients):
    with pytest.raises(QuorumError, match=r"only 2 clients were asked, but faults\.at_least is 3"):
        train(
            FedAvg(lr=0.1), clients, model=models["linear"](), rounds=1, faults=Faults(at_least=3), cohort=Sampling(2)
        )


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match=r"faults\.at_least must be at least 1"):
        Faults(at_least=0)
