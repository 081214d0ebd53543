"""A server that names other members of one sum to every client, all clients being honest: what it can read of it.

The attacks are played with the clients' own code; what any choice of members could yield is counted in a model of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import parley as pl
from parley.core.context import Secrets
from parley.core.errors import InputError, WireError
from parley.core.message import Message
from parley.secure import SecureSum, secure_sum
from parley.secure.channel import GROUP, KEYS, SHARES, UNMASK, raw, rows
from parley.secure.masks import ROW, ClientKeys, Terms, _rebuilt, opened_shares
from tests.secure.test_nodes import NAMES, Server

SIZES = [(n, t) for n in range(3, 11) for t in range(n // 2 + 1, n + 1)]


class Lied:
    """One sum of n clients, each of whom may be told something else."""

    def __init__(self, n: int, t: int) -> None:
        self.n, self.t = n, t
        self.owns = [ClientKeys.of(Secrets(bytes([i + 1]) * 16), (1, 0)) for i in range(n)]
        self.terms = Terms((1, 0), tuple(own.row for own in self.owns), (1.0,) * n, t)
        self.boxes = [own.boxes(self.terms) for own in self.owns]

    def told(self, client: int, there: set[int], summed: set[int]) -> dict[int, bytes]:
        boxes = {i: self.boxes[i][client] for i in there}
        return self.owns[client].revealed_shares(self.terms, there, summed, boxes)

    def readable(self, told: dict[int, dict[int, bytes]]) -> bool:
        """Some client's share can be read, with the answers of any t clients put together."""
        true = {i: {both[33:] for both in self.given(i)} | {both[:33] for both in self.given(i)} for i in told}
        for few in itertools.combinations(told, self.t):
            try:
                found = opened_shares(self.terms, {i: told[i] for i in few})
            except WireError:  # what comes out is no key
                continue
            if any(share in true[i] for i, shares in found.items() for share in shares.values()):
                return True
        return False

    def given(self, client: int) -> list[bytes]:
        return [own.shares(self.terms)[client] for own in self.owns]


def missing_for_each(n: int, t: int, victim: int = 0) -> tuple[list[int], list[list[int]]] | None:
    """The victim's partners, and whom each client must call missing so that t call every partner so: greedily."""
    partners = [i for i in range(n) if i != victim][: t - 1]
    wanted, named = dict.fromkeys(partners, t), {}
    for teller in sorted(range(n), key=lambda i: i not in partners):
        chosen = sorted((v for v in partners if v != teller), key=lambda v: -wanted[v])[: n - t]
        named[teller] = chosen
        for v in chosen:
            wanted[v] -= 1
    return (partners, [named[i] for i in range(n)]) if max(wanted.values()) <= 0 else None


@pytest.mark.parametrize(("n", "t"), SIZES)
def test_members_that_differ_from_client_to_client_show_no_share(n: int, t: int):
    """The greedy attack, and what comes closest to it where that is not enough."""
    lied, everybody = Lied(n, t), set(range(n))
    plan = missing_for_each(n, t)
    named = plan[1] if plan else [[(i + k) % n for k in range(1, n - t + 1)] for i in range(n)]
    told = {i: lied.told(i, everybody, everybody - set(missing)) for i, missing in enumerate(named)}
    views = [frozenset(missing) for missing in named]
    same = max(views.count(view) for view in views)
    assert lied.readable(told) == (same >= t)
    honest = {i: lied.told(i, everybody, everybody) for i in range(n)}
    assert lied.readable({i: honest[i] for i in range(t)})
    assert not lied.readable({i: honest[i] for i in range(t - 1)} | {t - 1: told[t - 1]}) or not named[t - 1]


def test_the_attack_that_read_a_reply_of_three_honest_nodes(tmp_path: Path):
    """Sums of three with default settings: a is told that it has one partner, then each is told of another missing."""
    check_nodes_refuse(Server(tmp_path, NAMES[:3]))


def test_the_same_with_four_and_a_threshold_of_just_above_a_half(tmp_path: Path):
    check_nodes_refuse(Server(tmp_path, NAMES, secure_sum(threshold=0.51)))


def check_nodes_refuse(server: Server) -> None:
    names, channel = server.names, server.channel
    n = len(names)
    t = channel.needed(n)
    keys = torch.stack([server.ask(name, KEYS, Message())[1].tensor("keys") for name in names])
    common = {"keys": keys, "factors": torch.ones(n, dtype=torch.float64)}
    shared = [server.ask(name, SHARES, Message.of(**{GROUP: common}))[1] for name in names]
    tickets = torch.stack([each.tensor("ticket") for each in shared])
    few = torch.arange(n) < t
    first = {}
    for name in names:  # a is told that it has t - 1 partners, the others that all are there
        there = few if name == "a" else torch.ones(n, dtype=torch.bool)
        tree = {**common, "there": there, "tickets": tickets}
        first[name] = server.ask(name, "client", Message.of(model=server.state["model"], **{GROUP: tree}))[1]
    whole, told = torch.ones(n, dtype=torch.bool), {}
    for i, name in enumerate(names):
        ticket = first[name].tensor("ticket") if "ticket" in first[name].tensors else tickets[i]
        boxes = torch.stack([each.tensor("boxes")[i] for each in shared])
        summed = whole.clone()
        summed[(i + 1) % n] = False
        tree = {**common, "there": whole, "summed": summed, "ticket": ticket, "boxes": boxes}
        head, reply = server.ask(name, UNMASK, Message.of(**{GROUP: tree}))
        if name == "a":
            assert head["kind"] == "failure"
            assert "not those that it began with" in head["reason"]
        else:
            told[i] = dict(enumerate(raw(row) for row in reply.tensor("shares")))
    if len(told) >= t:  # each was told of another sum, so nothing that they told can be put together
        terms = Terms((1, 0), tuple(rows(keys, n, ROW)), (1.0,) * n, t)
        with pytest.raises(WireError, match="shares do not"):
            _rebuilt(terms, 0, {i: shares[0] for i, shares in opened_shares(terms, told).items()}, seed=True)


# --- a model of all that a server can do ---

Members = frozenset[int]
View = tuple[Members, Members, Members | None]
"""Who has shared, as a client was told with the method's question and again at the end, and who is in the sum (None: it
was not asked for shares)."""


def more_can_be_read(n: int, t: int, views: Sequence[View], without: str = "") -> bool:
    """Whether the server can read anything but one sum of at least t replies; `without` one of the protections."""
    tellers = [i for i, view in enumerate(views) if view[2] is not None]
    if without != "ticket":
        tellers = [i for i in tellers if views[i][0] == views[i][1]]
    if without != "closing key":
        tellers = [i for i in tellers if sum(views[j][1:] == views[i][1:] for j in tellers) >= t]
    seeds, masks = set(), set()
    for u in range(n):
        told = [u in (views[i][2] or ()) for i in tellers if u in views[i][1]]
        if sum(told) >= t:
            seeds.add(u)
        if len(told) - sum(told) >= t:
            masks.add(u)
    # A column for each mask that the server does not know, with its sign in each reply: sums that it can read are those
    # of rows that give 0.
    columns: dict[object, dict[int, int]] = {u: {u: 1} for u in range(n) if u not in seeds}
    for u, (there, _, _) in enumerate(views):
        for v in there - {u}:
            if not {u, v} & masks:
                columns.setdefault((frozenset((u, v)), there), {})[u] = 1 if u < v else -1
    matrix = np.zeros((len(columns), n))
    for k, column in enumerate(columns.values()):
        for u, sign in column.items():
            matrix[k, u] = sign
    _, sizes, rows = np.linalg.svd(matrix) if len(columns) else (None, np.zeros(0), np.eye(n))
    null = rows[int((sizes > 1e-9).sum()) :]
    if len(null) == 0:
        return False
    one = null[0] / null[0][np.abs(null[0]).argmax()]
    summed = {i for i in range(n) if abs(one[i]) > 1e-9}
    return not (len(null) == 1 and len(summed) >= t and np.allclose(one, [float(i in summed) for i in range(n)]))


def choices(n: int, t: int, client: int, honest: bool = True) -> list[View]:
    """All that one client can be told and answers; `honest`: the same of who has shared at both times."""

    def subsets(of: Members) -> list[Members]:
        others, sizes = sorted(of - {client}), range(t - 1, len(of))
        return [frozenset(some) | {client} for size in sizes for some in itertools.combinations(others, size)]

    shared = subsets(frozenset(range(n)))
    return [
        (there, again, summed)
        for there in shared
        for again in ([there] if honest else shared)
        for summed in (None, *subsets(again))
    ]


@pytest.mark.parametrize(("n", "t"), [(2, 2), (3, 2), (3, 3), (4, 3), (4, 4)])
def test_whatever_each_client_is_told_one_sum_of_t_is_all_that_can_be_read(n: int, t: int):
    for views in itertools.product(*(choices(n, t, i) for i in range(n))):
        assert not more_can_be_read(n, t, views), views


def test_without_the_ticket_a_reply_can_be_read():
    told = list(itertools.product(*(choices(3, 2, i, honest=False) for i in range(3))))
    assert any(more_can_be_read(3, 2, views, without="ticket") for views in told)
    assert not any(more_can_be_read(3, 2, views) for views in told)


def test_without_the_closing_key_a_sum_of_three_can_be_read_where_four_are_needed():
    everybody = frozenset(range(6))
    missing = [{3, 4}, {4, 5}, {3, 5}, {4, 5}, {3, 5}, {3, 4}]  # each of the last three is called so four times
    views = [(everybody, everybody, everybody - some) for some in missing]
    assert more_can_be_read(6, 4, views, without="closing key")
    assert not more_can_be_read(6, 4, views)


@given(data=st.data(), size=st.sampled_from([size for size in SIZES if size[0] > 4]))
@settings(max_examples=150, deadline=None)
def test_the_same_of_more_clients(data: st.DataObject, size: tuple[int, int]):
    """Most clients are told one of two stories, as an attack has to."""
    n, t = size
    stories: list[tuple[Members, Members]] = []
    for _ in range(2):
        there = data.draw(st.sets(st.integers(0, n - 1), min_size=t))
        stories.append((frozenset(there), frozenset(data.draw(st.sets(st.sampled_from(sorted(there)), min_size=t)))))
    views: list[View] = []
    for i in range(n):
        fits = [story for story in stories if i in story[1]]
        kind = data.draw(st.sampled_from(["story", "story", "story", "half", "other"]))
        if fits and kind != "other":
            shared, summed = data.draw(st.sampled_from(fits))
            views.append((shared, shared, summed if kind == "story" else None))
        else:
            some = frozenset(data.draw(st.sets(st.integers(0, n - 1), min_size=t - 1))) | {i}
            some = some if len(some) >= t else frozenset(range(n))
            views.append((some, some, None))
    assert not more_can_be_read(n, t, views)


def test_two_unmaskings_never_have_enough_clients():
    for n in range(2, 200):
        for threshold in (math.nextafter(0.5, 1), 0.51, 2 / 3, 1.0):
            assert 2 * SecureSum(threshold=threshold).needed(n) > n


# --- weights ---


def test_a_weight_near_nothing_is_refused(tmp_path: Path):
    """It would leave the other replies out of the sum, so that the last one could be read off it."""
    server = Server(tmp_path, NAMES)
    keys = torch.stack([server.ask(name, KEYS, Message())[1].tensor("keys") for name in NAMES])
    for name, least in zip(NAMES, (1e-9, 0.005, float("nan"), 0.0), strict=True):
        factors = torch.tensor([1.0, least, least, least], dtype=torch.float64)
        head, _ = server.ask(name, SHARES, Message.of(**{GROUP: {"keys": keys, "factors": factors}}))
        assert head["kind"] == "failure"
        assert "weight" in head["reason"]


def test_clients_of_very_different_size_are_told_of_before_anybody_is_asked():
    random = np.random.default_rng(0)
    data = {name: (random.normal(size=(size, 2)), np.arange(size) % 2) for name, size in (("a", 2), ("b", 300))}
    federation = pl.Federation.from_arrays(data)
    settings = {"model": pl.models.linear(), "rounds": 1}
    with pytest.raises(InputError, match="smallest"):
        pl.train(pl.FedAvg(lr=0.1), federation, channels=secure_sum(), **settings)
    pl.train(pl.FedAvg(lr=0.1), federation, channels=secure_sum(smallest=0.001), **settings)
