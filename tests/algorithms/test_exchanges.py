"""What methods declare of their exchanges: everybody reads it; rounds, clients and subclasses have to keep to it."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.exchange import Exchange, disclosed, parties
from parley.algorithms.ntk.tct import TCT
from parley.algorithms.protocol import declared
from parley.algorithms.wrappers.ema import EMA
from parley.channels.base import Channels
from parley.cli.main import main
from parley.core.context import Context
from parley.core.errors import InputError, UnsupportedError
from parley.core.failure import Failure
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.runtimes.execute import attempt
from parley.runtimes.protocol import Call, Job
from parley.secure.reading import obstacle
from parley.statistics.method import FederatedStatistics
from parley.study.train import make_task

KernelMethods = tuple(algorithms[f"{kind}-{name}"] for kind in ("kernel", "feature") for name in ("fedavg", "fedprox"))
READS, ASKS = {"nothing", "mean", "sum", "each"}, {"cohort", "everyone"}


def methods() -> dict[str, pl.Algorithm]:
    """Every registered one, and EMA and TCT around each that they take."""
    made: dict[str, pl.Algorithm] = {name: algorithms[name]() for name in algorithms}
    for name, method in list(made.items()):
        for wrapper, argument in ((EMA, "of"), (TCT, "first")):
            try:
                made[f"{wrapper.__name__}({name})"] = wrapper(**{argument: method})
            except InputError as error:
                if "does not train one network" not in str(error):
                    raise
    return made


METHODS = methods()


@pytest.fixture(scope="module")
def federation() -> pl.Federation:
    rng = np.random.default_rng(0)
    sizes = {"a": 4, "b": 5, "c": 6}
    clients = {i: (rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2) for i, n in sizes.items()}
    return pl.Federation.from_arrays(clients).with_public(torch.from_numpy(clients["a"][0]))


@pytest.fixture(scope="module")
def targets() -> pl.Federation:
    rng = np.random.default_rng(0)
    return pl.Federation.from_arrays({i: (rng.normal(size=(5, 3)), rng.normal(size=5)) for i in "abc"})


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))


def test_they_wrap_most_methods():
    assert len([name for name in METHODS if name.startswith("EMA(")]) >= 30
    assert len([name for name in METHODS if name.startswith("TCT(")]) >= 20


@pytest.mark.parametrize("name", METHODS)
def test_what_is_declared_resolves(name: str):
    method = METHODS[name]
    exchanges = method.exchanges()
    assert exchanges
    assert len({each.name for each in exchanges}) == len(exchanges)
    for each in exchanges:
        assert each.reads in READS
        assert isinstance(each.asks, pl.Party) or each.asks in ASKS
        assert each.times >= 1
        assert each.rounds[0] >= 1
        assert set(each.discloses) <= {"inputs", "labels"}
        assert all(isinstance(trees, tuple) for trees in (each.compress, each.reorder, each.discloses))
    assert set(disclosed(exchanges)) == {part for each in exchanges for part in each.discloses}
    assert set(parties(exchanges)) == {each.asks.name for each in exchanges if isinstance(each.asks, pl.Party)}
    assert isinstance(method.needs, pl.Needs)
    assert obstacle(method) is None or obstacle(method).endswith(".")
    assert Channels.of(method, ()).up.stages == ()


@pytest.mark.parametrize("name", METHODS)
def test_the_form_of_a_first_reply_is_known_before_it_comes(
    name: str, federation: pl.Federation, targets: pl.Federation
):
    """Nobody answers here: the method's first message is enough."""
    method = METHODS[name]
    trained = getattr(method, "of", getattr(method, "first", method))
    model: object = network() if method.needs.network else None
    if isinstance(trained, KernelMethods):
        federation = targets
        model = nn.Linear(3, 1).double() if name.startswith(("kernel", "EMA(kernel")) else pl.models.features()
    task = make_task(federation, model, 0)
    cohort = pl.Cohort(federation.ids, (1 / 3,) * 3, everyone=federation.ids)
    try:
        state = method.init(task, Key(0))
    except InputError as error:
        if not re.search("cannot be averaged|does not train one network|must be one number a row", str(error)):
            raise
        return
    question = next(method.round(task, state, cohort, 1, Key(0)))
    each = {each.name: each for each in method.exchanges()}[question.asked]
    assert question.messages
    for message in question.messages.values():
        form = each.form(task, message)
        if isinstance(each.asks, pl.Party):
            continue
        assert isinstance(form, Form)
        trees = {tensor.partition("/")[0] for tensor in form}
        assert set(each.compress) <= trees
        assert not each.reorder or trees & set(each.reorder)


@pytest.mark.parametrize("name", METHODS)
def test_a_wrapper_passes_on_all_that_is_declared(name: str):
    method = METHODS[name]
    if isinstance(method, EMA):
        assert _facts(method.exchanges()) == _facts(method.of.exchanges())
        assert method.needs == method.of.needs
    if isinstance(method, TCT):
        own = {each.name: each for each in method.exchanges()}
        for each in method.first.exchanges():
            nested = own[f"first.{each.name}"]
            assert _facts([nested])[0][1:] == _facts([each])[0][1:]
            assert window(nested) == window(each) & {*range(1, method.rounds + 1)}
        assert own["moments"].rounds == own["second.client"].rounds == (method.rounds + 1, None)


@pytest.mark.parametrize("name", list(algorithms))
def test_what_is_declared_for_stacks_is_answered_in_stacks(name: str, federation: pl.Federation):
    method = algorithms[name]()
    if not method.needs.network or isinstance(method, KernelMethods):
        pytest.skip("it trains no such network")
    alone = next((e for e in method.exchanges() if not e.stack and not isinstance(e.asks, pl.Party)), None)
    if alone is not None:
        with pytest.raises(UnsupportedError, match=f"{method.title} asks each client by itself \\('{alone.name}'\\)"):
            pl.train(method, federation, model=network(), rounds=1, runtime="stacked")
    else:
        assert pl.train(method, federation, model=network(), rounds=1, runtime="stacked").status == "finished"


def around(name: str) -> list[tuple[pl.Algorithm, pl.Algorithm]]:
    """Every wrapper around a method, with what it wraps: any, and then these again."""
    pairs, level = [], [METHODS[name]]
    for _ in range(2):
        made = []
        for method in level:
            for wrapper, argument in ((EMA, "of"), (TCT, "first"), (pl.RichardsonRomberg, "of")):
                with suppress(InputError):
                    made.append((wrapper(**{argument: method}), method))
        pairs, level = [*pairs, *made], [wrapped for wrapped, _ in made]
    return pairs


@pytest.mark.parametrize("name", list(algorithms))
def test_wrappers_and_wrappers_of_them_declare_what_they_wrap(name: str):
    pairs = around(name)
    assert len(pairs) >= 2
    for wrapped, method in pairs:
        before, now = method.exchanges(), wrapped.exchanges()
        assert disclosed(now) == disclosed(before)
        assert parties(now) == parties(before)
        assert {each.name.rpartition(".")[2] for each in before} <= {each.name.rpartition(".")[2] for each in now}
        assert len({each.name for each in now}) == len(now)
        assert wrapped.needs.cpu == method.needs.cpu
        assert wrapped.needs.pooled == method.needs.pooled
        if not isinstance(wrapped, TCT):
            assert wrapped.needs == method.needs


def window(each: Exchange) -> set[int]:
    """The rounds that may ask it, of the first hundred."""
    first, last = each.rounds
    return {*range(first, (last or 100) + 1)}


def _facts(exchanges) -> list[tuple[object, ...]]:
    return [
        (e.name, e.reads, e.asks, e.times, e.compress, e.reorder, e.feedback, e.fixed, e.grid, e.discloses, e.floor)
        for e in exchanges
    ]


@pytest.mark.parametrize("name", list(algorithms))
def test_listing_a_method_trains_nothing(name: str, monkeypatch: pytest.MonkeyPatch, capsys):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a round was played")

    for kind in {kind for each in algorithms for kind in algorithms[each].__mro__ if issubclass(kind, pl.Algorithm)}:
        for function in {"init", "round"} & vars(kind).keys():
            monkeypatch.setattr(kind, function, never)
    start = time.process_time()
    with pytest.raises(SystemExit) as ended:
        main(["list", "algorithms", name])
    assert ended.value.code == 0
    assert time.process_time() - start < 1
    assert "Secure sums: " in capsys.readouterr().out


# --- a class that says nothing of what it overrides ---


def test_an_override_without_a_declaration_is_refused():
    with pytest.raises(InputError, match=r"Silent\.client overrides the answer to an exchange; declare it"):

        class Silent(pl.FedAvg):
            def client(self, task, message, memory, data, context):
                return super().client(task, message, memory, data, context)

    class Between(pl.FedAvg):
        pass

    with pytest.raises(InputError, match=r"Deeper\.client overrides"):

        class Deeper(Between):
            client = None

    class Mixin:
        def client(self, *given):
            return None

    mixed = type("Mixed", (Mixin, pl.FedAvg), {})()
    with pytest.raises(InputError, match=r"Mixed\.client overrides"):
        mixed.exchanges()


def test_like_takes_what_is_not_said_from_another():
    class Chatty(pl.FedAvg):
        @pl.exchange(like=pl.FedAvg.client, reads="each")
        def client(self, task, message, memory, data, context):
            return super().client(task, message, memory, data, context)

    (before,), (now,) = pl.FedAvg().exchanges(), Chatty().exchanges()
    assert (now.reads, now.compress) == ("each", before.compress)
    assert [each.name for each in declared(Chatty())] == ["client"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: pl.exchange(read="mean"), "an exchange has no 'read'; it has form, accepts, reads"),
        (lambda: pl.exchange(like=pl.FedAvg.round), r"FedAvg\.round|OneExchange\.round declares no exchange"),
        (lambda: pl.ask(pl.FedAvg.broadcast, {}), "answers an exchange; say so with @exchange"),
    ],
)
def test_declarations_that_make_no_sense(wrong, says: str):
    with pytest.raises(InputError, match=says):
        wrong()


# --- questions that break their declaration ---

NOTARY = pl.Party("notary")


@dataclass(frozen=True)
class Toy(pl.Algorithm):
    """Asks as it is told to, whatever it declares."""

    breaks: str = ""

    def init(self, task, key):
        return State.of(model=task.initial())

    def exchanges(self):
        return tuple(each for each in super().exchanges() if each.name != "hidden")

    def round(self, task, state, cohort, number, key):
        clients = dict.fromkeys(cohort.ids, Message())
        yield pl.ask(self.count, clients)
        if self.breaks == "undeclared":
            yield pl.ask(self.hidden, clients)
        if self.breaks == "often":
            yield pl.ask(self.count, clients)
        if self.breaks == "some often":
            yield pl.ask(self.count, {cohort.ids[0]: Message()})
        if self.breaks == "early" and number == 1:
            yield pl.ask(self.later, clients)
        if self.breaks == "late" and number == 3:
            yield pl.ask(self.first, clients)
        if self.breaks == "others":
            yield pl.ask(self.twice, dict.fromkeys(cohort.everyone, Message()))
        if self.breaks == "party":
            yield pl.ask(self.twice, {NOTARY: Message()})
        if self.breaks == "client as party":
            yield pl.ask(self.note, clients)
        if self.breaks == "other party":
            yield pl.ask(self.note, {pl.Party("clerk"): Message()})
        if self.breaks == "both":
            yield pl.ask(self.note, {NOTARY: Message(), **clients})
        if self.breaks == "mapping":
            yield clients
        if not self.breaks:
            yield pl.ask(self.twice, clients)
            yield pl.ask(self.twice, clients)
            yield pl.ask(self.anybody, dict.fromkeys(cohort.everyone, Message()))
            yield pl.ask(self.note, {NOTARY: Message()})
            if number == 2:
                yield pl.ask(self.later, clients)
                yield pl.ask(self.first, clients)
        return state

    @pl.exchange()
    def count(self, task, message, memory, data, context):
        return pl.Reply(Message.of(count=len(data)))

    @pl.exchange(like=count)
    def hidden(self, *given):
        return self.count(*given)

    @pl.exchange(like=count, times=2)
    def twice(self, *given):
        return self.count(*given)

    @pl.exchange(like=count, rounds=(2, None))
    def later(self, *given):
        return self.count(*given)

    @pl.exchange(like=count, rounds=(1, 2))
    def first(self, *given):
        return self.count(*given)

    @pl.exchange(like=count, asks="everyone")
    def anybody(self, *given):
        return self.count(*given)

    @pl.exchange(asks=NOTARY)
    def note(self, task, message, memory, context):
        return pl.Reply(Message.of(noted=1))


def played(federation: pl.Federation, breaks: str) -> pl.Run:
    return pl.train(Toy(breaks), federation, model=network(), rounds=3, cohort=2, runtime="inline")


def test_a_method_that_keeps_to_its_declarations(federation: pl.Federation):
    assert played(federation, "").status == "finished"


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ("undeclared", "Toy asks 'hidden', which its exchanges do not declare with these settings."),
        ("often", "Toy asks 'count' more often in a round than the 1 times it declares."),
        ("some often", "Toy asks 'count' more often in a round than the 1 times it declares."),
        ("early", "Toy asks 'later' in round 1, outside of the rounds it declares."),
        ("late", "Toy asks 'first' in round 3, outside of the rounds it declares."),
        ("others", "Toy asks 'twice' of others than it declares (asks)."),
        ("party", "Toy asks 'twice' of others than it declares (asks)."),
        ("client as party", "Toy asks 'note' of others than it declares (asks)."),
        ("other party", "Toy asks 'note' of others than it declares (asks)."),
        ("both", "Toy asks clients and parties in one exchange; make it two."),
        ("mapping", "a round of Toy yields dict where `yield ask(self.client, messages)` was expected."),
    ],
)
def test_a_question_that_breaks_its_declaration_is_refused(federation: pl.Federation, breaks: str, says: str):
    with pytest.raises(InputError) as refused:
        played(federation, breaks)
    assert str(refused.value) == says


# --- a client that is asked what was not declared ---


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        (FederatedStatistics(quantiles="cells"), "neighbours"),
        (pl.FedAvg(), "round"),
        (pl.FedAvg(), "__init__"),
        (EMA(pl.FedAvg()), "of.client"),
        (TCT(), "client"),
        (TCT(), "second.round"),
        (Toy(), "hidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.title,
)
def test_a_client_does_not_answer_what_is_not_declared(
    federation: pl.Federation, monkeypatch: pytest.MonkeyPatch, method: pl.Algorithm, asked: str
):
    task = make_task(federation, network() if method.needs.network else None, 0)
    job = Job(method, task, federation)
    context = Context.alone(Key(0), "a", asked=asked)
    read: list[str] = []
    monkeypatch.setattr(type(federation), "client", lambda self, client: read.append(client))
    answer = attempt(job, Call("a", Message(), Memory(), context))
    assert isinstance(answer, Failure)
    assert f"{method.title} declares no exchange '{asked}' with these settings." in answer.reason
    assert not read, "its samples were not even looked at"


def test_the_same_exchange_is_answered_where_the_settings_declare_it():
    def names(method: pl.Algorithm) -> set[str]:
        return {each.name for each in method.exchanges()}

    assert "neighbours" in names(FederatedStatistics(quantiles="blocks"))
    assert "neighbours" not in names(FederatedStatistics(quantiles="cells"))
    assert disclosed(FederatedStatistics(floor=1).exchanges()) == ("inputs", "labels")
    assert disclosed(FederatedStatistics().exchanges()) == ()


def test_exchanges_meet_in_rounds_that_both_may_ask():
    def over(first: int, last: int | None) -> Exchange:
        return Exchange("e", lambda *_: None, lambda *_: None, lambda *_: None, rounds=(first, last))  # type: ignore[arg-type, return-value]

    for one in ((1, None), (1, 3), (3, 5), (4, None)):
        for other in ((1, None), (1, 3), (3, 5), (4, None)):
            assert over(*one).meets(over(*other)) == bool(window(over(*one)) & window(over(*other)))
