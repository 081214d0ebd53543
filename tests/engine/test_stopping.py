"""How runs end: patience, listeners that stop them, states no longer finite, clients that never contributed."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.algorithms.protocol import OneExchange
from parley.core.errors import InputError, ParleyError, StopRun
from parley.core.message import Message, State
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults
from parley.engine.stopping import Headline, Stopping
from parley.models import linear
from parley.store.records import Metric, RoundRecord
from parley.store.runs import RunStore
from parley.study.train import train


def federation(bad: str | None = None, narrow: str | None = None) -> Federation:
    """Four clients; one may have NaN in its features, one held-out samples that no model fits."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4)).astype(np.float32)
    y = (x @ random.normal(size=(4, 3))).argmax(1)
    parts = [(torch.from_numpy(x[a : a + 10].copy()), torch.from_numpy(y[a : a + 10])) for a in range(0, 80, 10)]
    own, held_out = [ClientData(*part) for part in parts[:4]], [ClientData(*part) for part in parts[4:]]
    if bad is not None:
        own["abcd".index(bad)].x[:] = math.nan
    if narrow is not None:
        i = "abcd".index(narrow)
        held_out[i] = ClientData(held_out[i].x[:, :2], held_out[i].y)
    info = Federation.from_arrays({"a": (x, y)}).info
    test = ClientData(torch.from_numpy(x[80:]), torch.from_numpy(y[80:]))
    return Federation(info, tuple("abcd"), InMemory(tuple(own)), test=test, held_out=InMemory(tuple(held_out)))


def seen(values: list[float | None], **settings) -> list[int]:
    """The numbers of the records at which a run would have stopped."""
    stopping = Stopping(Headline("central/accuracy"), Evaluation(**settings))
    found = []
    for number, value in enumerate(values):
        stopping.see(RoundRecord(number, {} if value is None else {"central/accuracy": Metric(value)}))
        found += [number] if stopping.reason else []
    return found


def test_patience_counts_evaluations_without_a_new_best():
    assert seen([0.1, 0.5, 0.4, 0.5, 0.6, 0.6, 0.2], patience=2) == [3, 6]
    assert seen([0.1, None, 0.1, None, None, 0.1], patience=2) == [5]
    assert seen([0.1, math.nan, math.nan], patience=2) == [2]
    assert seen([math.nan, math.nan], patience=2) == [1]
    assert seen([0.1, 0.2, 0.3, 0.4], patience=1) == []


def test_min_delta_is_what_counts_as_better():
    assert seen([0.5, 0.51, 0.52, 0.53], patience=3) == []
    assert seen([0.5, 0.51, 0.52, 0.53], patience=3, min_delta=0.1) == [3]
    assert seen([0.5, 0.55, 0.61, 0.62], patience=2, min_delta=0.1) == []
    stopping = Stopping(Headline("central/loss", smaller=True), Evaluation(patience=1))
    for number, value in enumerate([3.0, 2.0, 1.0]):
        stopping.see(RoundRecord(number, {"central/loss": Metric(value)}))
        assert stopping.reason is None
    stopping.see(RoundRecord(3, {"central/loss": Metric(1.5)}))
    assert stopping.reason == "central/loss was best in round 2 (1) and no better in 1 evaluations since"


@dataclass(frozen=True)
class Rising(OneExchange):
    """Its server counts rounds, and says so."""

    peak: int = 3

    def init(self, task, key):
        return State.of(model=task.initial(), t=torch.zeros(()))

    def broadcast(self, task, state, number):
        return Message.of(model=state["model"])

    @exchange()
    def client(self, task, message, memory, data, context):
        return Reply(Message.of(n=torch.tensor(float(len(data)))))

    def aggregate(self, task, state, replies, number, key):
        return state.replace(t=state.tensor("t") + 1), {"height": -abs(number - self.peak), "cost": number**2}


class Notes(Listener):
    def __init__(self) -> None:
        self.notes, self.warnings, self.ended = [], [], []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def end(self, run: Run) -> None:
        self.ended.append(run.status)


def test_early_stopping_on_a_number_of_the_servers_own(tmp_path: Path):
    """The numbers beside a round's state are metrics, and patience can go by them."""
    notes = Notes()
    evaluation = Evaluation(headline="server/height", patience=2, every=100)
    settings = {"model": linear(), "evaluation": evaluation, "store": tmp_path / "runs.db"}
    run = train(Rising(), federation(), rounds=20, listeners=[notes], **settings)
    assert run.series("server/height")[1].tolist() == [-2, -1, 0, -1, -2]
    assert run.series("server/cost")[1].tolist() == [1, 4, 9, 16, 25]
    assert (run.status, run.best_round, run.best_value) == ("finished", 3, 0)
    assert any("stopped after round 5 of 20: server/height was best in round 3" in note for note in notes.notes)
    assert notes.ended == ["finished"]
    with RunStore(tmp_path / "runs.db") as store:
        assert store.info("last").status == "finished"
        assert len(store.records(store.info("last").id)) == len(run.records)
    again = train(Rising(), federation(), rounds=20, resume=True, **settings)
    assert again.records[-1].number == 5  # patience is over still
    more = {**settings, "evaluation": replace(evaluation, patience=None)}
    longer = train(Rising(), federation(), rounds=8, resume=True, **more)
    assert longer.series("server/height")[0].tolist() == list(range(1, 9))


def test_smaller_is_better_where_the_headline_says_so():
    run = train(
        Rising(), federation(), model=linear(), rounds=9, evaluation=Evaluation(headline="-server/cost", patience=2)
    )
    assert (run.best_round, run.best_value, run.records[-1].number) == (1, 1, 3)
    assert run.best("server/cost") == 1


def test_patience_survives_resuming(tmp_path: Path):
    evaluation = Evaluation(headline="server/height", patience=3)
    whole = train(Rising(), federation(), model=linear(), rounds=20, evaluation=evaluation)
    settings = {"model": linear(), "evaluation": evaluation, "store": tmp_path / "runs.db"}
    train(Rising(), federation(), rounds=5, **settings)
    resumed = train(Rising(), federation(), rounds=20, resume=True, **settings)
    assert resumed.records[-1].number == whole.records[-1].number == 6


class StopAt(Listener):
    def __init__(self, number: int, what: Exception) -> None:
        self.number, self.what = number, what

    def round(self, record: RoundRecord) -> None:
        if record.number == self.number:
            raise self.what


def test_a_listener_ends_a_run_well(tmp_path: Path):
    notes, settings = Notes(), {"model": linear(), "store": tmp_path / "runs.db", "rounds": 6}
    whole = train(FedAvg(), federation(), model=linear(), rounds=6)
    run = train(FedAvg(), federation(), listeners=[StopAt(2, StopRun("enough")), notes], **settings)
    assert run.status == "stopped"
    assert [record.number for record in run.records] == [0, 1, 2]
    assert notes.ended == ["stopped"]
    assert "stopped by a listener after round 2: enough" in notes.notes
    with RunStore(tmp_path / "runs.db") as store:
        assert (store.info("last").status, store.info("last").rounds) == ("stopped", 2)
    resumed = train(FedAvg(), federation(), resume=True, **settings)
    assert resumed.status == "finished"
    assert resumed.last("loss") == whole.last("loss")


@pytest.mark.parametrize("hook", ["exchange", "observe"])
def test_stopping_in_the_middle_of_a_round_leaves_the_round_before(hook: str):
    class Stop(Listener):
        def exchange(self, number, index, asked, sent, replies):
            if hook == "exchange" and number == 3:
                raise StopRun

        def observe(self, number, observed):
            if hook == "observe" and number == 3:
                raise StopRun

    run = train(FedAvg(), federation(), model=linear(), rounds=6, listeners=[Stop()])
    assert (run.status, run.records[-1].number) == ("stopped", 2)


def test_a_listener_that_raises_fails_the_run_but_nothing_is_lost(tmp_path: Path):
    settings = {"model": linear(), "store": tmp_path / "runs.db", "rounds": 4}
    with pytest.raises(ZeroDivisionError):
        train(FedAvg(), federation(), listeners=[StopAt(2, ZeroDivisionError())], **settings)
    with RunStore(tmp_path / "runs.db") as store:
        assert (store.info("last").status, len(store.records(store.info("last").id))) == ("failed", 3)
        assert store.info("last").summary["ended"].startswith("failed after round 2: ")
    assert train(FedAvg(), federation(), resume=True, **settings).records[-1].number == 4


def test_the_exchange_hook_sees_what_was_sent_and_what_came_back():
    class Heard(Listener):
        def __init__(self) -> None:
            self.seen = []

        def exchange(self, number, index, asked, sent, replies):
            self.seen.append((number, index, asked, sorted(sent), sorted(replies)))
            assert all("model" in message for message in sent.values())
            assert all("update" in message for message in replies.values())

    heard = Heard()
    train(FedAvg(), federation(bad="b"), model=linear(), rounds=2, listeners=[heard])
    assert heard.seen == [(n, 0, "client", list("abcd"), list("acd")) for n in (1, 2)]


@dataclass(frozen=True)
class Diverging(Rising):
    """The server's state is no longer finite in the third round."""

    def aggregate(self, task, state, replies, number, key):
        t = state.tensor("t") + (1 if number < 3 else math.inf)
        return state.replace(t=t)


@dataclass(frozen=True)
class Cured(Diverging):
    def aggregate(self, task, state, replies, number, key):
        return state.replace(t=state.tensor("t") + 1)


def test_a_state_that_is_not_finite_never_reaches_a_checkpoint(tmp_path: Path):
    settings = {"model": linear(), "store": tmp_path / "runs.db", "checkpoint": 0.0, "rounds": 5}
    with pytest.raises(ParleyError, match=r"round 3: the server's state is no longer finite \('t'\)"):
        train(Diverging(), federation(), **settings)
    with RunStore(tmp_path / "runs.db") as store:
        info = store.info("last")
        assert (info.status, info.rounds) == ("failed", 2)
        assert [record.number for record in store.records(store.info("last").id)] == [0, 1, 2]
    with pytest.raises(ParleyError, match="round 3"):  # the checkpoint of round 2 is intact
        train(Diverging(), federation(), resume="last", **settings)
    with pytest.raises(InputError, match="was started with"):
        train(Cured(), federation(), resume="last", **settings)
    allowed = {**settings, "rounds": 2, "faults": Faults(quorum=0.1)}
    assert train(Diverging(), federation(), resume="last", **allowed).state.tensor("t") == 2


@pytest.mark.parametrize("runtime", ["inline", "stacked", "pool"])
def test_a_client_that_never_contributed_is_named_at_the_end(runtime: str, tmp_path: Path, caplog):
    """NaN in one client's features: the run finished without it, visible only in a count."""
    notes = Notes()
    run = train(
        FedAvg(),
        federation(bad="c"),
        model=linear(),
        rounds=3,
        listeners=[notes],
        runtime=runtime,
        workers=2,
        store=tmp_path / "runs.db",
    )
    (text,) = notes.warnings
    assert text.startswith("1 client never contributed: 'c' (3 rounds: sent NaN or infinite numbers in its message")
    assert run.status == "finished"
    assert run.summary()["never contributed"].startswith("'c' (3 rounds: sent NaN")
    with RunStore(tmp_path / "runs.db") as store:
        assert store.info("last").summary == run.summary()
    assert not caplog.records
    train(FedAvg(), federation(bad="c"), model=linear(), rounds=1)  # nobody listens
    assert "1 client never contributed: 'c'" in caplog.text


def test_who_answered_once_is_not_named():
    run = train(FedAvg(), federation(), model=linear(), rounds=12, faults=Faults(dropout=0.4, quorum=0), seed=1)
    assert run.summary()["failures"] > 0
    assert "never contributed" not in run.summary()


@pytest.mark.parametrize("runtime", ["inline", "stacked", "pool"])
def test_a_client_that_cannot_be_evaluated_does_not_end_the_run(runtime: str):
    """Its held-out samples have another width than the model takes."""
    run = train(
        FedAvg(),
        federation(narrow="b"),
        model=linear(),
        rounds=2,
        runtime=runtime,
        workers=2,
        evaluation=Evaluation(clients="all"),
    )
    assert run.status == "finished"
    for record in run.records:
        assert set(record.metrics["clients/accuracy"].clients) == set("acd")
        (failure,) = record.failures
        assert failure.client == "b"
        assert failure.reason.startswith("could not be evaluated: client 'b' of")
    assert run.summary()["never contributed"].startswith("'b' (3 rounds: could not be evaluated")


def test_data_that_cannot_even_be_looked_at_do_not_end_the_run(monkeypatch):
    made, sizes = federation(), Federation.test_size
    monkeypatch.setattr(Federation, "test_size", lambda self, id: 1 / 0 if id == "a" else sizes(self, id))
    run = train(FedAvg(), made, model=linear(), rounds=1, evaluation=Evaluation(clients="all"))
    assert set(run.clients("clients/loss")) == set("bcd")
    assert {failure.client for failure in run.records[-1].failures} == {"a"}
