"""DataShare: who has which samples, and that nothing else differs from FedAvg."""

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms.datashare import DataShare, Shared, shared_bytes
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory


def numbered(sizes=(7, 20, 3, 30)) -> Federation:
    """Clients whose samples are numbers, all different."""
    ends = np.cumsum(sizes)
    data = tuple(
        ClientData(torch.arange(end - n, end, dtype=torch.float32)[:, None], torch.zeros(n))
        for n, end in zip(sizes, ends, strict=True)
    )
    info = DataInfo("numbers", (1,), 1, "regression")
    return Federation(info, tuple("abcd"), InMemory(data), test=data[0], public=torch.zeros(2, 1))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_every_client_has_its_own_samples_and_the_global_set(share):
    before = numbered()
    after = DataShare(share=share).prepare(before, Key(1))
    assert isinstance(after.source, Shared)
    common = set(after.source.common.x.flatten().tolist())
    assert len(common) == max(1, round(share * 60))
    for client in before.ids:
        own = before.client(client).x.flatten().tolist()
        now = after.client(client).x.flatten().tolist()
        assert sorted(now) == sorted(set(own) | common)
        assert after.size(client) == len(now)
    assert after.sizes().tolist() == [after.size(client) for client in after.ids]
    assert (after.test, after.public, after.info) == (before.test, before.public, before.info)


def test_the_set_follows_from_the_key():
    sets = [
        DataShare(share=0.3).prepare(numbered(), Key(seed)).source.common.x.flatten().tolist() for seed in (0, 0, 1)
    ]
    assert sets[0] == sets[1] != sets[2]


def test_the_global_set_is_drawn_over_all_samples():
    counts = np.zeros(60)
    for seed in range(400):
        common = DataShare(share=0.1).prepare(numbered(), Key(seed)).source.common.x.flatten().long()
        counts[common.numpy()] += 1
    assert np.all(np.abs(counts - 40) < 5 * np.sqrt(40 * 0.9))


def test_it_trains_and_lifts_accuracy_where_clients_have_one_class():
    data = pl.data.digits()
    federation = data.split(pl.Sorted(), clients=10, seed=0)
    runs = [
        pl.train(method, federation, model=pl.models.linear(), rounds=10, evaluation=pl.Evaluation(every=10))
        for method in (pl.DataShare(lr=0.1, steps=20), pl.FedAvg(lr=0.1, steps=20))
    ]
    accuracy = [run.records[-1].metrics["central/accuracy"].value for run in runs]
    assert accuracy[0] > accuracy[1] + 0.03
    up = [run.records[-1].metrics["up/bytes"].value for run in runs]
    assert up[0] == up[1]
    assert shared_bytes(runs[0].federation) > 100 * 64 * 4
    assert shared_bytes(federation) == 0


def test_settings_that_make_no_sense():
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="share"):
            DataShare(share=share)


def test_it_travels_to_worker_processes():
    federation = DataShare(share=0.3).prepare(numbered(), Key(1))
    import cloudpickle

    back = cloudpickle.loads(cloudpickle.dumps(federation))
    assert torch.equal(back.client("b").x, federation.client("b").x)
