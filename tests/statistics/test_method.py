"""Federated statistics: those of pooled data over any partition, nothing of few samples; planted mistakes in each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import wraps

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import parley as pl
from parley.algorithms.exchange import disclosed
from parley.core.errors import InputError
from parley.core.wire import encode
from parley.data.sources import InMemory
from parley.runtimes import remote
from parley.runtimes.frame import unpack
from parley.statistics import exact_sums, floors
from parley.statistics import method as module
from parley.statistics.method import SHARES, FederatedStatistics, variance


def table(seed: int = 0, n: int = 120, missing: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Columns that are hard: large and hardly varying, heavy-tailed, constant, whole numbers."""
    rng = np.random.default_rng(seed)
    x = np.stack(
        [1e9 + rng.normal(size=n) * 1e-3, rng.standard_cauchy(n) ** 3, np.full(n, 0.1), rng.integers(0, 9, n)], axis=1
    )
    x[rng.random(x.shape) < missing] = np.nan
    return x, rng.integers(0, 3, n)


def federation(x: np.ndarray, y: np.ndarray, owner: np.ndarray, clients: int | None = None) -> pl.Federation:
    kind = "regression" if y.dtype.kind == "f" else "classification"
    info = pl.DataInfo("table", x.shape[1:], 1 if kind == "regression" else 3, kind, missing=True)
    ids = range(clients or int(owner.max()) + 1)
    parts = tuple(pl.ClientData(*(torch.from_numpy(part[owner == i]) for part in (x, y))) for i in ids)
    return pl.Federation(info, tuple(f"c{i}" for i in ids), InMemory(parts))


def ask(data: pl.Federation, **more) -> pl.Statistics:
    return pl.statistics(data, **({"runtime": "inline"} | more))


# --- what must hold, as checks that a planted mistake must fail ---


def check_pooled(seed: int = 0, clients: int = 4) -> None:
    """Counts, moments, histograms and labels are those of one client with everything, bit for bit."""
    x, y = table(seed)
    owner = np.random.default_rng(seed).integers(0, clients, len(x))
    several, one = (ask(federation(x, y, own, k), floor=1) for own, k in ((owner, clients), (0 * owner, 1)))
    assert several.labels == one.labels == {str(k): int((y == k).sum()) for k in range(3)}
    for a, b, column in zip(several.features, one.features, x.T, strict=True):
        told = [(f.count, f.missing, f.mean, f.std, f.variance, f.edges, f.counts) for f in (a, b)]
        assert told[0] == told[1]
        assert (a.count, a.missing) == ((~np.isnan(column)).sum(), np.isnan(column).sum())
        assert a.left_out == 0


def check_moments() -> None:
    """Mean and variance are the exact ones, rounded once, also where squares about 0 would lose all digits."""
    x, y = table()
    found = ask(federation(x, y, np.arange(len(x)) % 3))
    for one, column in zip(found.features, x.T, strict=True):
        values = [Fraction(float(value)) for value in column[~np.isnan(column)]]
        mean = sum(values) / len(values)
        exact = sum((value - mean) ** 2 for value in values) / len(values)
        assert (one.mean, one.variance) == (float(mean), float(exact))
        assert one.std == pytest.approx(math.sqrt(exact), rel=1e-15)


def check_floor(floor: int = 10) -> None:
    """A client with fewer samples sends the same bytes whatever they are; one with just as many does not."""
    for size, told in ((floor - 1, False), (floor, True)):
        sent = [replies(np.random.default_rng(seed).normal(size=(size, 2)), floor) for seed in (0, 1)]
        assert (sent[0] != sent[1]) == told, size


def check_small_parts(floor: int = 10) -> None:
    """Counts that are told, and those that follow by subtraction, are 0 or not below the floor."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        x, y = rng.normal(size=(int(rng.integers(floor, 60)), 2)), None
        y = np.minimum(rng.geometric(0.5, len(x)) - 1, 2)
        found = ask(federation(x, y, np.zeros(len(x), int)), floor=floor)
        rows = [(f.counts, f.count) for f in found.features] + [(tuple(found.labels.values()), len(x))]
        for counts, total in rows:
            assert all(count == 0 or count >= floor for count in counts)
            assert total == sum(counts) or total - sum(counts) >= floor


def check_blocks(floor: int = 10) -> None:
    """No block has fewer values than the floor, and none of its means is a value of the client."""
    x = np.random.default_rng(0).normal(size=(57, 2))
    tensors = answers(x, floor)[2]
    means, weights = tensors["blocks/means"].numpy(), tensors["blocks/weights"].numpy()
    assert ((weights == 0) | (weights >= floor)).all()
    assert not np.isin(means[weights > 0], x).any()
    assert (weights.sum(axis=1) == 57).all()


def check_only_the_sum() -> None:
    """Clients with the same sums send the same bytes: digits have their carries done."""
    a, b = (np.array([[v, 2.0 * v] for v in values]) for values in ([5.0, 1e16, -1e16, 3.0], [4.0, 0.0, 0.0, 4.0]))
    assert np.array_equal(*(answers(x, 1)[0]["sums/first"].numpy() for x in (a, b)))


CHECKS = [check_pooled, check_moments, check_floor, check_small_parts, check_blocks, check_only_the_sum]


@pytest.mark.parametrize("check", CHECKS)
def test_what_must_hold(check: Callable[[], None]):
    check()


def answers(x: np.ndarray, floor: int) -> list[dict[str, torch.Tensor]]:
    """What a client with these rows answers to the three questions about cells of its own."""
    method = FederatedStatistics(floor=floor)
    y = np.zeros(len(x), np.int64)
    info = pl.DataInfo("table", x.shape[1:], 3, "classification", missing=True)
    data = pl.ClientData(torch.from_numpy(x), torch.from_numpy(y))
    task, context = pl.Task(None, torch.nn.functional.cross_entropy, info, 1), pl.Context.alone(pl.Key(0))
    edges = torch.linspace(-3, 3, 9, dtype=torch.float64).repeat(x.shape[1], 1)
    asked = (("client", pl.Message()), ("cells", pl.Message.of(edges=edges)), ("neighbours", pl.Message()))
    found = []
    for name, message in asked:
        declared = next(each for each in method.exchanges() if each.name == name)
        reply = declared.answer(task, message, pl.Memory(), data, context).message
        form = declared.form(task, message)
        assert form is not None
        form.check(reply.tensors)
        found.append(reply.tensors)
    return found


def replies(x: np.ndarray, floor: int) -> list[bytes]:
    return [encode(pl.Message(tensors)) for tensors in answers(x, floor)]


# --- planted mistakes ---


def rounds_sums(patch: pytest.MonkeyPatch) -> None:
    honest = exact_sums.exact_sums

    def both(values, power):
        return honest(values if power == 2 else np.nansum(values, axis=1, keepdims=True), power)

    patch.setattr(module, "exact_sums", both)


def about_zero_in_floats(patch: pytest.MonkeyPatch) -> None:
    def rounded(count, first, second):
        mean = float(exact_sums.exact_value(first, 1) / count)
        return Fraction(max(float(exact_sums.exact_value(second, 2) / count) - mean * mean, 0.0))

    patch.setattr("parley.statistics.run.variance", rounded)


def divides_by_one_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("parley.statistics.run.variance", lambda n, a, b: variance(n, a, b) * n / (n - 1))


def off_by_one(patch: pytest.MonkeyPatch) -> None:
    honest = FederatedStatistics.client

    @wraps(honest)
    def client(self, *rest):
        return honest(FederatedStatistics(floor=self.floor - 1), *rest)

    patch.setattr(FederatedStatistics, "client", client)


def tells_cells_of_few(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(floors, "above_floor", lambda counts, *rest: counts)


def leaves_differences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(floors, "above_floor", lambda counts, least, *_: np.where(counts < least, 0, counts))


def sends_values(patch: pytest.MonkeyPatch) -> None:
    honest = floors.Blocks.of
    patch.setattr(floors.Blocks, "of", lambda values, blocks, least: honest(values, blocks, 1))


def keeps_carries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exact_sums, "_carry", lambda total: None)


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (rounds_sums, check_pooled), (rounds_sums, check_moments), (about_zero_in_floats, check_moments),
        (divides_by_one_less, check_moments), (off_by_one, check_floor), (tells_cells_of_few, check_small_parts),
        (leaves_differences, check_small_parts), (sends_values, check_blocks), (keeps_carries, check_only_the_sum),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(mistake, check, monkeypatch: pytest.MonkeyPatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check()


# --- properties ---


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 7))
def test_federated_is_pooled_over_random_partitions(seed: int, clients: int):
    """Clients without a sample among them."""
    check_pooled(seed, clients)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(1, 5),
    floor=st.integers(2, 12),
    quantiles=st.sampled_from(["blocks", "cells"]),
)
def test_quantiles_keep_to_their_bound(seed: int, clients: int, floor: int, quantiles):
    x, y = table(seed)
    owner = np.random.default_rng(seed).integers(0, clients, len(x))
    found = ask(federation(x, y, owner, clients), floor=floor, blocks=9, quantiles=quantiles)
    for one, column in zip(found.features, x.T, strict=True):
        parts = [column[(owner == i) & ~np.isnan(column)] for i in range(clients)]
        pooled = np.concatenate([np.empty(0), *(part for part in parts if len(part) >= floor)])
        assert one.count == len(pooled)
        assert (one.rank_error is None) == (sum(one.counts if quantiles == "cells" else [len(pooled)]) == 0)
        for share, value in one.quantiles.items():
            off = one.rank_error * len(pooled) + 1e-9
            assert (pooled <= value).sum() >= share * len(pooled) - off
            assert (pooled < value).sum() <= share * len(pooled) + off


def test_targets_of_a_regression_and_quantiles_from_cells():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 2)), rng.normal(size=3000) * 5 + 100
    found = ask(federation(x, y, np.arange(3000) % 3), quantiles="cells", bins=60)
    assert [one.name for one in found.features] == ["x0", "x1", "target"]
    assert found["target"].target
    assert found.labels == {}
    for share in (0.25, 0.5, 0.75):
        assert found["target"].quantiles[share] == pytest.approx(np.quantile(y, share), abs=0.5)
    assert 0 < found["target"].rank_error < 0.2
    assert tuple(found["target"].quantiles) == SHARES


def test_images_are_seen_by_channel():
    """A client with fewer pictures than the floor has many pixels, and tells nothing all the same."""
    x, y = np.random.default_rng(0).normal(size=(40, 2, 3, 3)), np.arange(40) % 3
    found = ask(federation(x, y, np.arange(40) // 35))
    assert (found.contributed, found.samples) == (1, 35)
    assert [one.name for one in found.features] == ["channel 0", "channel 1"]
    np.testing.assert_allclose([one.mean for one in found.features], x[:35].mean(axis=(0, 2, 3)), rtol=1e-13)
    assert found.features[0].count == 35 * 9
    assert found.features[0].left_out < 35
    answered = answers(x[:9], 10)
    assert all(not value.any() for tensors in answered for value in tensors.values())


# --- odd data ---


def test_empty_clients_constant_and_missing_columns():
    x = np.stack([np.full(40, 7.5), np.full(40, np.nan), np.where(np.arange(40) < 5, 1.0, np.nan)], axis=1)
    found = ask(federation(x, np.zeros(40, np.int64), np.zeros(40, int), clients=3))
    assert (found.clients, found.contributed, found.samples) == (3, 1, 40)
    constant, absent, few = found.features
    assert (constant.mean, constant.std, constant.quantiles[0.5]) == (7.5, 0.0, 7.5)
    assert sum(constant.counts) == 40
    assert (absent.count, absent.missing, absent.mean, absent.quantiles) == (0, 0, None, {})
    assert (few.count, few.missing, few.withheld) == (0, 0, 1)
    with pytest.raises(InputError, match="column 'x1' has no values that clients may report"):
        found.preprocessing()
    assert found.preprocessing("none").classes == ("0", "1", "2")


# --- few different values ---


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    share=st.floats(0.0, 1.0),
    quantiles=st.sampled_from(["blocks", "cells"]),
    small=st.booleans(),
)
def test_quantiles_of_zeros_and_ones_are_exact(seed: int, share: float, quantiles: str, small: bool):
    """From the sums alone, however few samples a client has above the floor."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(5), rng.integers(10, 19 if small else 80, 5))
    x = (rng.random((len(owner), 1)) < share).astype(np.float32)
    x[rng.random(len(x)) < 0.1] = np.nan
    found = ask(federation(x, np.zeros(len(x), np.int64), owner), quantiles=quantiles, floor=5)
    values = np.sort(x[~np.isnan(x)])
    for level, value in found["x0"].quantiles.items():
        assert value == values[max(math.ceil(level * len(values)), 1) - 1]
    assert found["x0"].rank_error == 0
    assert found.preprocessing("none", "median").fill == (found["x0"].quantiles[0.5],)


def test_sums_that_look_like_zeros_and_ones_by_chance():
    x = np.repeat([0.5, 2.0], [160, 20])[:, None]  # sum = sum of squares = 120
    found = ask(federation(x, np.zeros(180, np.int64), np.arange(180) % 2), quantiles="cells")
    assert found["x0"].quantiles[1.0] > 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 8))
def test_few_different_values_are_filled_by_one_of_them(seed: int, count: int):
    rng = np.random.default_rng(seed)
    levels = np.sort(rng.normal(size=count) * 10)
    owner = np.repeat(np.arange(4), rng.integers(40, 200, 4))
    x = np.stack([rng.choice(levels, len(owner), p=rng.dirichlet(np.ones(count))), rng.normal(size=len(owner))], axis=1)
    found = ask(federation(x, np.zeros(len(x), np.int64), owner))
    most = max((x[owner == i, 0] == level).sum() for i in range(4) for level in levels)
    if found["x0"].fill is None:
        assert most < 30  # of a value, three times the floor; ten on each side may be of blocks with others
        return
    fill = found.preprocessing("standard", "median").fill
    assert fill[0] in levels
    assert fill[1] == found["x1"].quantiles[0.5]
    # Within the error that is stated, as every other quantile.
    below, upto = (x[:, 0] < found["x0"].quantiles[0.5]).mean(), (x[:, 0] <= found["x0"].quantiles[0.5]).mean()
    assert below - 0.5 <= found["x0"].rank_error + 1e-9
    assert 0.5 - upto <= found["x0"].rank_error + 1e-9


def test_a_value_that_nobody_may_tell_fills_nothing():
    """Three values, none of which ten samples of a client share."""
    x = np.tile([1.0, 2.0, 5.0], 20)[:, None]
    found = ask(federation(x, np.zeros(60, np.int64), np.arange(60) // 15))
    assert found["x0"].fill is None
    with pytest.raises(InputError, match="column 'x0' has few different values, and none with enough samples"):
        found.preprocessing("standard", "median")
    assert found.preprocessing("standard", "mean").fill == (found["x0"].mean,)
    assert ask(federation(x, np.zeros(60, np.int64), np.arange(60) // 15), floor=5)["x0"].fill == 2.0


def test_nobody_has_enough():
    found = ask(federation(np.ones((12, 1)), np.zeros(12, np.int64), np.arange(12) // 6))
    assert (found.contributed, found.samples, found.features[0].mean) == (0, 0, None)


def test_infinite_numbers_are_refused_by_the_client_that_has_them():
    info = pl.DataInfo("made", (1,), 1, "regression")
    data = pl.ClientData(torch.full((20, 1), math.inf), torch.zeros(20))
    method = FederatedStatistics()
    task = pl.Task(None, torch.nn.functional.mse_loss, info, 1)
    with pytest.raises(InputError, match="infinite"):
        method.client(task, pl.Message(), pl.Memory(), data, pl.Context.alone(pl.Key(0)))


def test_texts_are_refused():
    tokens = {"a": (np.zeros((4, 3), np.int64), np.zeros(4, np.int64))}
    with pytest.raises(InputError, match="token ids, of which there are no statistics"):
        ask(pl.Federation.from_arrays(tokens))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_numbers_that_a_client_made_up_are_just_wrong(seed: int):
    """Whole numbers of the right form that no samples have: the statistics are spoilt, and nothing else happens."""
    rng = np.random.default_rng(seed)

    class Liar(FederatedStatistics):
        def exchanges(self):
            return tuple(replace(each, answer=lying(each.answer)) for each in super().exchanges())

    def lying(honest):
        def lie(task, message, memory, data, context):
            reply = honest(task, message, memory, data, context)
            if context.id != "c1":
                return reply
            size = int(rng.integers(1, 63))
            made = {
                name: value
                if value.is_floating_point()
                else torch.from_numpy(rng.integers(-(2**size), 2**size, value.shape)).to(value.dtype)
                for name, value in reply.message.tensors.items()
            }
            return pl.Reply(pl.Message(made))

        return lie

    x, y = table()
    run = pl.train(
        Liar(),
        federation(x, y, np.arange(len(x)) % 2),
        rounds=1,
        runtime="inline",
        evaluation=pl.Evaluation(central=False, clients="none"),
    )
    assert not run.failures()
    found = pl.Statistics.of(run)
    assert len(found.rows()) == 4


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [({"floor": 0}, "floor must lie"), ({"bins": 0}, "bins must lie"), ({"ranges": ((2.0, 1.0),)}, "low must be below"),
     ({"ranges": ((0.0, 1.0),) * 3}, "3 ranges but 4 columns")],
)  # fmt: skip
def test_bad_settings(settings_, sentence: str):
    x, y = table()
    with pytest.raises(InputError, match=sentence):
        ask(federation(x, y, np.zeros(len(x), int)), **settings_)


def test_public_ranges_put_the_cells():
    x, y = table(missing=0.0)
    found = ask(federation(x, y, np.zeros(len(x), int)), bins=8, floor=1, ranges=[(0.0, 8.0)])
    expected = [((x[:, 3] > k - 1) & (x[:, 3] <= k)).sum() for k in range(9)]
    assert found.features[3].edges == tuple(range(9))
    assert found.features[3].counts == (*expected, 0)


def test_only_a_floor_of_one_hands_out_samples():
    assert disclosed(FederatedStatistics().exchanges()) == ()
    assert disclosed(FederatedStatistics(floor=1).exchanges()) == ("inputs", "labels")


# --- on the wire ---


def test_below_the_floor_nothing_leaves_the_node(monkeypatch: pytest.MonkeyPatch):
    """The bytes that a node of the wire runtime sends are those of nothing, whatever it has."""
    sent: dict[str, list[bytes]] = {}
    read = remote._answer

    def answered(recipient, data):
        sent.setdefault(recipient, []).append(unpack(data)[1][0])
        return read(recipient, data)

    monkeypatch.setattr(remote, "_answer", answered)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(49, 2)) + 3, rng.integers(0, 3, 49)
    found = ask(federation(x, y, (np.arange(49) >= 40).astype(int)), runtime="wire", workers=1)
    assert (found.contributed, found.samples) == (1, 40)
    assert len(sent["c1"]) == 3
    for data, of_nothing in zip(sent["c1"], replies(np.zeros((0, 2)), 10), strict=True):
        assert data == of_nothing
    everything = b"".join(sent["c1"]) + b"".join(sent["c0"])
    for value in x.reshape(-1):
        assert value.tobytes() not in everything
    inline = ask(federation(x, y, (np.arange(49) >= 40).astype(int)))
    assert inline == found
