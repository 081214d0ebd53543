"""A server that is started again asks the same of the same recipients, or says that it cannot."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Algorithm
from parley.core.errors import ParleyError, QuorumError
from parley.core.failure import Failure
from parley.core.message import Message, State
from parley.data import Federation
from parley.engine.settings import Evaluation
from parley.models import mlp
from parley.runtimes import remote
from parley.runtimes.outbox import Outbox
from parley.store.runs import RunStore
from parley.study.train import train

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes do not know this file


def test_who_answered_counts_once_the_next_exchange_leaves(tmp_path: Path):
    path, late = tmp_path / "outbox.db", Failure("b", "gave no answer within 5 s.", lost=True)
    first = Outbox(path)
    assert first.incarnation == 1
    assert first.leave((1, 0), {"a": "x", "b": "y"}, -1) is None
    first.answered((1, 0), {"a": None, "b": late})
    assert Outbox(path).leave((1, 0), {"a": "x", "b": "y"}, -1) is None  # nobody has seen what came of it
    assert first.leave((1, 1), {"a": "z"}, -1) is None
    again = Outbox(path)
    assert again.incarnation == 3
    assert again.leave((1, 0), {"a": "x", "b": "y"}, -1) == {"a": None, "b": late}
    for other in ({"a": "x", "b": "other"}, {"a": "x"}, {"a": "x", "b": "y", "c": "w"}):
        with pytest.raises(ParleyError, match="something else than before it was started again"):
            again.leave((1, 0), other, -1)
    with pytest.raises(ParleyError, match="something else"):
        again.leave((1, 1), {"a": "other"}, -1)
    assert again.leave((1, 1), {"a": "z", "c": "w"}, -1) is None  # nothing has left since: others may be asked too
    assert again.leave((2, 0), {"a": "v"}, 1) is None
    assert again.leave((1, 0), {"a": "other"}, 1) is None  # durable beyond it, the server never goes back


@dataclass(frozen=True)
class Two(Algorithm):
    """Two questions a round. Client 1 fails in the first, and the server dies after the second, while files say so."""

    place: str

    def init(self, task, key):
        return State.of(total=torch.zeros(1))

    def round(self, task, state, cohort, number, key):
        first = yield ask(self.size, dict.fromkeys(cohort.ids, Message()))
        second = yield ask(self.noise, {i: Message.of(others=len(first)) for i in first})
        if (Path(self.place) / "dies").exists():
            raise RuntimeError("the server died")
        return State.of(total=state.tensor("total") + sum(second[i].tensor("noise") for i in second))

    @exchange()
    def size(self, task, message, memory, data, context):
        if context.id == "1" and (Path(self.place) / "fails").exists():
            raise RuntimeError("not now")
        self._count("size", context)
        return Reply(Message.of(size=len(data)))

    @exchange()
    def noise(self, task, message, memory, data, context):
        self._count("noise", context)
        return Reply(Message.of(noise=torch.from_numpy(context.secrets.key("noise").numpy().normal(size=1)).float()))

    def _count(self, what, context):
        with (Path(self.place) / "worked").open("a") as file:
            file.write(f"{what} {context.id} {context.round}\n")


def test_a_round_that_was_left_in_the_middle_is_played_again_with_its_roll_call(tmp_path: Path, monkeypatch):
    random = np.random.default_rng(0)
    federation = Federation.from_arrays({str(i): (random.normal(size=(4, 2)), np.arange(4) % 2) for i in range(3)})
    more = {
        "model": mlp(2),
        "rounds": 2,
        "runtime": "wire",
        "workers": 1,
        "evaluation": Evaluation(central=False, clients="none"),
        "secret": bytes(16),
    }
    for name in ("fails", "dies"):
        (tmp_path / name).touch()
    with RunStore(tmp_path / "runs.db") as store:
        with pytest.raises(RuntimeError, match="the server died"):
            train(Two(str(tmp_path)), federation, store=store, **more)
        for name in ("fails", "dies"):
            (tmp_path / name).unlink()
        worked = (tmp_path / "worked").read_text()
        (info,) = store.runs()
        run = train(Two(str(tmp_path)), federation, store=store, resume=info.id, **more)
        assert run.status == "finished"
        assert [(r.number, f.client) for r in run.records for f in r.failures] == [(1, "1")]
        redone = (tmp_path / "worked").read_text().removeprefix(worked)
        assert {line.split()[2] for line in redone.splitlines()} == {"2"}  # round 1 was answered with what was kept

        (tmp_path / "dies").touch()
        with pytest.raises(RuntimeError):
            train(Two(str(tmp_path)), federation, store=store, **more)
        (tmp_path / "dies").unlink()
        monkeypatch.setattr(remote, "_PATIENCE", 0.0)
        monkeypatch.setattr(remote, "sleep", lambda seconds: None)
        real = remote._answer
        gone = Failure("2", "is not connected.")
        monkeypatch.setattr(remote, "_answer", lambda name, data: gone if name == "2" else real(name, data))
        with pytest.raises(QuorumError, match="'2' answered before the server was started again, and now it is not"):
            train(Two(str(tmp_path)), federation, store=store, resume=store.runs()[-1].id, **more)
