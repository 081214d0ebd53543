"""DataShare: who has which samples, what is sent, and that nothing else differs from FedAvg."""

from functools import wraps

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms.averaging.datashare import DataShare
from parley.algorithms.averaging.local_update import FedAvg
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.wire import wire_size
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener


def numbered(sizes=(7, 20, 3, 30)) -> Federation:
    """Clients whose samples are numbers, all different."""
    ends = np.cumsum(sizes)
    data = tuple(
        ClientData(torch.arange(end - n, end, dtype=torch.float32)[:, None] / 60, torch.zeros(n))
        for n, end in zip(sizes, ends, strict=True)
    )
    return Federation(DataInfo("numbers", (1,), 1, "regression"), tuple("abcd"), InMemory(data), test=data[0])


class Heard(Listener):
    def __init__(self) -> None:
        self.asked, self.sent, self.replies = [], [], []

    def exchange(self, number, index, asked, sent, replies) -> None:
        self.asked.append((number, asked))
        self.sent.append(dict(sent))
        self.replies.append(dict(replies))


def trained(monkeypatch, share: float, rounds: int = 4, cohort: int = 2, seed: int = 0, draw: int = 0):
    """What clients trained on, by round, and everything that was sent."""
    seen, heard = {}, Heard()
    client = FedAvg.client

    @wraps(client)
    def spy(self, task, message, memory, data, context):
        seen[context.round, context.id] = sorted((60 * data.x).round().flatten().int().tolist())
        return client(self, task, message, memory, data, context)

    monkeypatch.setattr(FedAvg, "client", spy)
    method = DataShare(share=share, draw=draw, lr=0.01)
    run = pl.train(
        method,
        numbered(),
        model=pl.models.linear(),
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        runtime="inline",
        listeners=[heard],
    )
    return run, seen, heard


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_every_client_trains_on_what_it_has_left_and_the_global_set(monkeypatch, share):
    run, seen, heard = trained(monkeypatch, share)
    common = sorted((60 * run.state["common"]["x"]).round().flatten().int().tolist())
    sent = [row for reply in heard.replies[0].values() for row in (60 * reply["rows"]["x"]).round().flatten().tolist()]
    assert sorted(sent) == common
    assert len(common) == len(set(common))
    for (_, client), rows in seen.items():
        own = (60 * numbered().client(client).x).round().flatten().int().tolist()
        assert rows == sorted(set(own) | set(common))
        assert len(rows) == len(set(rows))


def test_the_global_set_is_gathered_once_and_sent_to_each_client_once(monkeypatch):
    run, _, heard = trained(monkeypatch, 0.3, rounds=8)
    assert heard.asked == [(1, "shared_rows"), *[(number, "client") for number in range(1, 9)]]
    assert set(heard.sent[0]) == set("abcd")
    received: dict[str, int] = {}
    for sent in heard.sent[1:]:
        for client, message in sent.items():
            received[client] = received.get(client, 0) + ("common" in message)
    assert set(received.values()) == {1}
    first = heard.sent[1]
    client = next(iter(first))
    whole = run.records[1].metrics["down/bytes"].clients[client]
    assert whole == wire_size(first[client]) + wire_size(heard.sent[0][client])


def test_the_set_follows_from_the_settings_and_not_from_what_the_server_may_choose(monkeypatch):
    sets = [trained(monkeypatch, 0.3, seed=s, draw=d)[0].state["common"]["x"] for s, d in ((0, 0), (1, 0), (0, 1))]
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[0], sets[2])


def test_no_message_brings_other_rows():
    """A seed in the message, another round and another key of the round would have brought them all, bit by bit."""
    method, data = DataShare(share=0.1), numbered().client("d")
    rows = set()
    for number in range(1, 30):
        context = Context.alone(Key(number), "d", number)
        reply = method.shared_rows(None, Message.of(seed=number), Memory(), data, context)
        rows |= set((60 * reply.message.get("rows")["x"]).round().flatten().tolist())
    assert len(rows) <= 0.3 * len(data)


def test_rows_are_drawn_uniformly_over_all_samples():
    counts, data = np.zeros(60), numbered()
    for draw in range(400):
        method = DataShare(share=0.1, draw=draw)
        for client in data.ids:
            context = Context.alone(Key(0), client)
            reply = method.shared_rows(None, Message(), Memory(), data.client(client), context)
            counts[(60 * reply.message.get("rows")["x"]).round().flatten().long().numpy()] += 1
    assert np.all(np.abs(counts - 40) < 5 * np.sqrt(40 * 0.9))


def test_it_lifts_accuracy_where_clients_have_one_class():
    federation = pl.data.digits().split(pl.Sorted(), clients=10, seed=0)
    runs = [
        pl.train(method, federation, model=pl.models.linear(), rounds=10, evaluation=pl.Evaluation(every=10))
        for method in (pl.DataShare(lr=0.1, steps=20), pl.FedAvg(lr=0.1, steps=20))
    ]
    accuracy = [run.records[-1].metrics["central/accuracy"].value for run in runs]
    assert accuracy[0] > accuracy[1] + 0.03
    up = [run.records[-1].metrics["up/bytes"].value for run in runs]
    assert up[0] == up[1]


def test_settings_that_make_no_sense():
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="share"):
            DataShare(share=share)
