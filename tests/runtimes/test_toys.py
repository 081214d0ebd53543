"""The protocol itself, in every runtime: several exchanges, own messages, parties, growing states, memories.

One toy method uses all of it. Client i has the number a_i (the mean of its inputs) and trains nothing, so everything it
says can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Party, Reply, ask, exchange
from parley.algorithms.protocol import Algorithm, Cohort, Learned, Questions
from parley.core.errors import InputError, QuorumError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.wire import wire_size
from parley.data import ClientData, DataInfo, Federation
from parley.engine.listeners import Listener
from parley.engine.sampling import Sampler
from parley.engine.settings import Faults, Sampling
from parley.study.train import train

VALUES = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0, "e": 16.0}
SEED = 3
RUNTIMES = ["inline", "pool"]


def federation() -> Federation:
    return Federation.from_arrays(
        {
            name: (np.full((3 + i, 2), value, np.float32), np.zeros(3 + i, np.float32))
            for i, (name, value) in enumerate(VALUES.items())
        }
    )


NOTARY = Party("notary")


def toy() -> Algorithm:
    """Made in a function, so that workers get the class by value."""

    class Toy(Algorithm):
        """Round n, first exchange: each client is told a bonus of its own and sends (its number + bonus); it remembers
        the sum of all it ever sent and how often. Second exchange: those that answered send what they remember. Then a
        notary, who is not a client, is told the total and answers with how many rounds it has seen.
        """

        def init(self, task, key: Key) -> State:
            return State.of(total=torch.zeros(1))

        def round(self, task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
            bonus = {c: torch.tensor([100.0 * number + place]) for place, c in enumerate(cohort.ids)}
            if number == 2 and "c" in bonus:
                bonus["c"] = torch.tensor([float("nan")])  # this one cannot be accepted
            first = yield ask(self.client, {c: Message.of(bonus=own) for c, own in bonus.items()})
            second = yield ask(self.recall, dict.fromkeys(first, Message()))
            total = state.tensor("total") + sum(first[c].tensor("number") for c in first)
            last = yield ask(self.note, {NOTARY: Message.of(total=total)})
            summed = torch.stack([second[c].tensor("sent") for c in second])
            trail = {**state.get("trail"), f"{number:03d}": summed}
            rounds = int(last[NOTARY].number("rounds"))
            mean = first.mean_change("wrapped")["x"]
            return State.of(total=total, trail=trail, rounds=rounds, mean=mean), {"answers": len(second)}

        @exchange()
        def client(self, task, message: Message, memory: Memory, data, context) -> Reply:
            kept, own = memory.get("kept"), data.x.mean().unsqueeze(0)
            number = own + message.tensor("bonus")
            sent, times = kept.get("sent", torch.zeros(1)) + number, kept.get("times", torch.zeros(1)) + 1
            return Reply(
                Message.of(number=number, wrapped={"x": own}),
                Memory.of(kept={"sent": sent, "times": times}),
                {"number": number},
            )

        @exchange()
        def recall(self, task, message: Message, memory: Memory, data, context) -> Reply:
            return Reply(Message.of(**memory["kept"]))

        @exchange(asks=NOTARY)
        def note(self, task, message: Message, memory: Memory, context) -> Reply:
            rounds = int(memory.scalars.get("rounds", 0)) + 1
            return Reply(Message.of(rounds=rounds), Memory.of(rounds=rounds, last=message.tensor("total")))

        def learned(self, task):
            return Untrained(task)

    return Toy()


class Untrained(Learned):
    def outputs(self, message, memory, x, before=None):
        return self.task.predictor(self.task.initial())(x)


class Heard(Listener):
    def __init__(self) -> None:
        self.numbers: dict[int, dict[str, float]] = {}

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.numbers[number] = {client: float(seen["number"]) for client, seen in observed.items() if "number" in seen}


def by_hand(rounds: int, sampling: Sampling, faults: Faults):
    """The same in plain Python: what each client remembers after each round, and what the server ends with."""
    sampler = Sampler(federation(), sampling, faults, Key(SEED).fold("sampling"))
    memory = dict.fromkeys(VALUES, 0.0)
    total, trail, failed, means = 0.0, {}, [], []
    for number in range(1, rounds + 1):
        cohort = sampler.draw(number)
        away = sampler.absences(cohort, number)
        absent = {c for c in cohort.ids if away(c)}
        refused = {"c"} if number == 2 and "c" in cohort.ids else set()
        there = [c for c in cohort.ids if c not in absent and c not in refused]
        for c in there:
            sent = VALUES[c] + 100.0 * number + cohort.ids.index(c)
            memory[c] += sent
            total += sent
        trail[f"{number:03d}"] = [memory[c] for c in there]
        weights = dict(zip(cohort.ids, cohort.weights, strict=True))
        means.append(sum(weights[c] * VALUES[c] for c in there) / sum(weights[c] for c in there))
        failed.append([c for c in cohort.ids if c not in there])
    return total, trail, failed, means


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exchanges_own_messages_parties_and_memories(runtime: str):
    rounds, sampling = 6, Sampling(size=4)
    faults = Faults(dropout=0.3, quorum=0.1)
    total, trail, failed, means = by_hand(rounds, sampling, faults)
    assert any(failed)
    assert "c" in failed[1]
    heard = Heard()
    run = train(
        toy(),
        federation(),
        model=lambda: nn.Linear(2, 1),
        rounds=rounds,
        cohort=sampling,
        seed=SEED,
        faults=faults,
        runtime=runtime,
        workers=2,
        listeners=[heard],
    )
    assert float(run.state.tensor("total")) == total
    assert {name: value.flatten().tolist() for name, value in run.state["trail"].items()} == trail
    assert run.state.scalars["rounds"] == rounds
    assert float(run.state.tensor("mean")) == pytest.approx(means[-1], rel=1e-6)
    assert [sorted(f.client for f in record.failures) for record in run.records] == [sorted(f) for f in failed]
    assert all(
        set(heard.numbers[r.number]) == set(r.metrics["up/bytes"].clients) - {"party:notary"} for r in run.records
    )
    # The bytes of the last round, message by message.
    last = run.records[-1].metrics
    answered = [c for c in last["up/bytes"].clients if c != "party:notary"]
    question = wire_size(Message.of(bonus=torch.ones(1)))
    again = wire_size(Message())
    for client, size in last["down/bytes"].clients.items():
        if client == "party:notary":
            assert size == wire_size(Message.of(total=torch.ones(1)))
        else:
            assert size == question + (again if client in answered else 0)
    reply = wire_size(Message.of(number=torch.ones(1), wrapped={"x": torch.ones(1)}))
    told = wire_size(Message.of(sent=torch.ones(1), times=torch.ones(1)))
    assert all(last["up/bytes"].clients[c] == reply + told for c in answered)
    assert last["up/bytes"].clients["party:notary"] == wire_size(Message.of(rounds=rounds))
    assert last["cohort"].value == len(answered) == last["server/answers"].value
    assert run.memory(NOTARY).scalars == {"rounds": rounds}


def test_a_method_that_looks_at_samples_cannot_be_stacked():
    with pytest.raises(UnsupportedError, match="Toy looks at a client's samples"):
        train(toy(), federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="stacked")
    run = train(toy(), federation(), model=lambda: nn.Linear(2, 1), rounds=1)
    assert "looks at a client's samples" in run.note


def test_a_party_that_fails_is_asked_again_and_then_stops_the_run():
    method = toy()
    written, tries, ink = type(method).note, [], 3

    @exchange(like=written)
    def note(*args: object) -> Reply:
        tries.append(1)
        if len(tries) < ink:
            raise ValueError("no ink")
        return written(*args)

    type(method).note = note  # type: ignore[method-assign]
    run = train(method, federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline")
    assert (run.status, len(tries)) == ("finished", 3)
    ink = 100
    with pytest.raises(QuorumError, match=r"round 1: party 'notary' raised ValueError.* asked 3 times"):
        train(method, federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline")


def test_a_client_that_fails_later_in_a_round_keeps_nothing_of_it():
    method = toy()
    remembered = type(method).recall

    @exchange(like=remembered)
    def recall(self, task, message, memory, data, context) -> Reply:
        if context.id == "b" and context.round == 2:
            raise OSError("gone")
        return remembered(self, task, message, memory, data, context)

    type(method).recall = recall  # type: ignore[method-assign]
    run = train(method, federation(), model=lambda: nn.Linear(2, 1), rounds=3, runtime="inline", cohort=Sampling())
    times = {client: float(run.memory(client)["kept"]["times"]) for client in VALUES}
    assert times == {"a": 3, "b": 2, "c": 2, "d": 3, "e": 3}  # c sent NaN in round 2
    assert {f.client for f in run.records[1].failures} == {"b", "c"}


def test_samples_that_nobody_looks_at_are_not_loaded():
    loaded: list[int] = []

    def made(number: int) -> ClientData:
        loaded.append(number)
        return ClientData(torch.full((3, 2), float(number)), torch.zeros(3))

    class Odd(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            if context.id in ("1", "3"):
                return super().client(task, message, memory, data, context)
            return Reply(Message.of(update={name: torch.zeros_like(v) for name, v in message["model"].items()}))

    info = DataInfo("made", (2,), 1, "regression")
    data = Federation.from_function(4, made, 3, info=info)
    train(Odd(steps=2), data, model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline", cohort=Sampling())
    assert loaded.count(1) == loaded.count(3) == loaded.count(2) + 1


@pytest.mark.parametrize("write", [lambda data: data.x.add_(1.0), lambda data: data.y.zero_()], ids=["x", "y"])
def test_samples_must_not_be_changed_in_place(write):
    class Spoiler(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            write(data)
            return super().client(task, message, memory, data, context)

    with pytest.raises(UnsupportedError, match="changed the message or its data in place"):
        train(Spoiler(), federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline")


@pytest.mark.parametrize("fail", [False, True])
def test_what_is_shared_must_not_be_changed_in_place(fail: bool):
    class Spoiler(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            message["model"]["bias"].add_(1.0)
            if fail:
                raise OSError("too late")
            return super().client(task, message, memory, data, context)

    for runtime in ("inline", "pool"):
        with pytest.raises(UnsupportedError, match="changed the message or its data in place"):
            train(Spoiler(), federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime=runtime, workers=1)

    class Careless(FedAvg):
        def aggregate(self, task, state, replies, number, key) -> State:
            state["model"]["bias"].zero_()
            return super().aggregate(task, state, replies, number, key)

    with pytest.raises(UnsupportedError, match="changed the server's state in place"):
        train(Careless(), federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline")


def test_torch_s_own_random_numbers_follow_from_the_key():
    class Noisy(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            x = message["model"]
            return Reply(Message.of(update={n: torch.rand_like(v) for n, v in x.items()}))

    before = torch.get_rng_state()
    runs = [
        train(Noisy(), federation(), model=lambda: nn.Linear(2, 1), rounds=2, runtime=runtime, workers=2)
        for runtime in ("inline", "inline", "pool")
    ]
    assert torch.equal(before, torch.get_rng_state())
    for run in runs[1:]:
        assert all(torch.equal(value, run.state.tensors[name]) for name, value in runs[0].state.tensors.items())


def test_a_method_of_which_only_the_functions_are_written():
    class Bare(Algorithm):
        def init(self, task, key) -> State:
            return State.of(model=task.initial())

        def round(self, task, state, cohort, number, key) -> Questions:
            replies = yield ask(self.client, dict.fromkeys(cohort.ids, Message.of(model=state["model"])))
            counts = yield ask(self.count, dict.fromkeys(replies, Message()))
            return State.of(model=replies.mean("model"), samples=sum(int(r.number("n")) for r in counts.values()))

        @exchange()
        def client(self, task, message, memory, data, context) -> Reply:
            return Reply(Message.of(model={n: v + 1 for n, v in message["model"].items()}))

        @exchange()
        def count(self, task, message, memory, data, context) -> Reply:
            return Reply(Message.of(n=len(data)))

    run = train(Bare(), federation(), model=lambda: nn.Linear(2, 1), rounds=2, runtime="inline")
    assert run.state.scalars["samples"] == sum(3 + i for i in range(5))
    assert torch.equal(run.module().bias, run.task.initial()["bias"] + 2)
    alike = type("Alike", (), {"init": Bare.init, "round": Bare.round, "client": Bare.client, "count": Bare.count})
    with pytest.raises(InputError, match=r"is not an algorithm: it does not derive from parley\.Algorithm"):
        train(alike(), federation(), model=nn.Linear(2, 1), rounds=1)
    with pytest.raises(InputError, match="make an instance"):
        train(Bare, federation(), model=nn.Linear(2, 1), rounds=1)


def test_a_recipient_nobody_knows_is_a_failure():
    class Lost(type(toy())):  # type: ignore[misc]
        @exchange(like=type(toy()).client, asks="everyone")
        def client(self, *given) -> Reply:
            return super().client(*given)

        def round(self, task, state, cohort, number, key) -> Questions:
            replies = yield ask(self.client, {c: Message.of(bonus=torch.zeros(1)) for c in [*cohort.ids, "nobody"]})
            return State.of(total=replies.mean_change("wrapped")["x"])

    run = train(Lost(), federation(), model=lambda: nn.Linear(2, 1), rounds=1, runtime="inline")
    (failure,) = run.records[-1].failures
    assert failure.client == "nobody"
    assert "no client 'nobody'" in failure.reason


def test_a_method_without_exchanges_or_clients_with_history(tmp_path):
    """A round may ask nobody; and what clients send must not drag their computations along."""

    class Quiet(Algorithm):
        def init(self, task, key) -> State:
            return State.of(x=torch.ones(1))

        def round(self, task, state, cohort, number, key) -> Questions:
            if number == 1:
                return State.of(x=state.tensor("x") * 2)
            replies = yield ask(self.client, dict.fromkeys(cohort.ids, Message(state.tensors)))
            return State.of(x=replies.mean_change("kept")["x"])

        @exchange()
        def client(self, task, message, memory, data, context) -> Reply:
            x = message.tensor("x").clone().requires_grad_()
            return Reply(Message.of(kept={"x": x * 3}), Memory.of(x=x), {"seen": x + 1})

        def learned(self, task):
            return Untrained(task)

    run = train(Quiet(), federation(), model=lambda: nn.Linear(2, 1), rounds=3, runtime="inline")
    assert float(run.state.tensor("x")) == pytest.approx(18.0)
    assert not run.state.tensor("x").requires_grad
    assert run.records[0].metrics["down/bytes"].value == 0
