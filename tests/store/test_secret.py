"""The root of a run's secrets: kept apart from its seed, the same when the run goes on."""

import numpy as np
import pytest
import torch

from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import OneExchange
from parley.core.errors import InputError
from parley.core.message import Message, State
from parley.data import Federation
from parley.models import mlp
from parley.store.runs import RunStore
from parley.study.train import train


class Noisy(OneExchange):
    """Sums of noise that only the client can repeat."""

    def init(self, task, key):
        return State.of(model=task.initial(), sum={"of": torch.zeros(2, dtype=torch.float64)})

    @exchange()
    def client(self, task, message, memory, data, context):
        return Reply(Message.of(noise={"of": torch.from_numpy(context.secrets.key("noise").numpy().normal(size=2))}))

    def aggregate(self, task, state, replies, number, key):
        return state.replace(sum={"of": state["sum"]["of"] + replies.mean_change("noise")["of"]})


@pytest.fixture
def federation():
    random = np.random.default_rng(0)
    return Federation.from_arrays({name: (random.normal(size=(4, 3)), random.normal(size=4)) for name in "ab"})


def test_a_run_goes_on_with_its_secret(federation, tmp_path):
    path, more = tmp_path / "runs.db", {"model": mlp(2), "runtime": "inline"}
    first = train(Noisy(), federation, rounds=1, store=path, **more)
    with RunStore(path) as store:
        file = store.folder(first.id) / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    again = train(Noisy(), federation, rounds=3, store=path, resume=first.id, **more)
    whole = train(Noisy(), federation, rounds=3, secret=file.read_bytes(), **more)
    assert torch.equal(again.state["sum"]["of"], whole.state["sum"]["of"])
    other = train(Noisy(), federation, rounds=3, **more)
    assert not torch.equal(other.state["sum"]["of"], whole.state["sum"]["of"])
    with pytest.raises(InputError, match="another secret"):
        train(Noisy(), federation, rounds=4, store=path, resume=first.id, secret=bytes(16), **more)
    file.unlink()
    with pytest.raises(InputError, match=r"secret of run .* is missing"):
        train(Noisy(), federation, rounds=4, store=path, resume=first.id, **more)
