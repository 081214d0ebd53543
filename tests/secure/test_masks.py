"""Masks cancel in the sum and hide everything else, whoever goes away and when; planted mistakes are found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.context import Secrets
from parley.core.errors import InputError, ParleyError, UnsupportedError, WireError
from parley.core.form import Form
from parley.core.sealed import KeyPair
from parley.secure import fixed_point, masks
from parley.secure.fixed_point import FixedPoint, Layout
from parley.secure.masks import SHARE, ClientKeys, Terms, opened_shares, unmasked
from parley.secure.shamir import PRIME, combine, random_bytes, split

Vectors = list[np.ndarray]


class Sum:
    """One sum among n clients whose secrets are known."""

    def __init__(self, n: int, threshold: int, place: tuple[int, int] = (1, 0)) -> None:
        self.owns = [ClientKeys.of(Secrets(bytes([i + 1]) * 16), place) for i in range(n)]
        self.terms = Terms(place, tuple(own.row for own in self.owns), (1.0,) * n, threshold)

    def total(
        self,
        vectors: list[Vectors],
        unshared: Collection[int] = (),
        missing: Collection[int] = (),
        mute: Collection[int] = (),
    ) -> tuple[Vectors, set[int]]:
        """The sum, and of whom; clients go away before they share keys, send their masked reply or tell shares."""
        there = set(range(len(self.owns))) - set(unshared)
        boxes = {i: self.owns[i].boxes(self.terms) for i in there}
        masked = {i: self.owns[i].masked(self.terms, there, vectors[i]) for i in sorted(there - set(missing))}
        shares = {
            i: self.owns[i].revealed_shares(self.terms, there, set(masked), {j: boxes[j][i] for j in there})
            for i in masked
            if i not in mute
        }
        self.masked, self.shares, self.there = masked, shares, there
        return unmasked(self.terms, there, masked, shares), set(masked)


def drawn(n: int, seed: int = 0) -> list[Vectors]:
    rng = np.random.default_rng(seed)
    return [[rng.integers(0, 2**32, 50, dtype=np.uint32), rng.integers(0, 2**64, 7, dtype=np.uint64)] for _ in range(n)]


def check_the_sum(n: int = 5, threshold: int = 3, **gone: Collection[int]) -> None:
    vectors = drawn(n)
    total, summed = Sum(n, threshold).total(vectors, **gone)
    for k in (0, 1):
        expected = np.zeros_like(vectors[0][k])
        for i in summed:
            expected += vectors[i][k]
        assert np.array_equal(total[k], expected)


def check_masks_are_used_once() -> None:
    """The same numbers masked in another round, or another exchange, have nothing in common with the first time."""
    vectors, seen = drawn(3), []
    for place in ((1, 0), (2, 0), (1, 1)):
        one = Sum(3, 2, place)
        one.total(vectors)
        seen.append(one.masked[0][0])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (seen[a] == seen[b]).mean() < 0.1


def check_nobody_tells_both() -> None:
    """What the server is told never gives the other half of a client's secrets."""
    one = Sum(5, 3)
    one.total(drawn(5), missing=[4])
    for client in one.there:
        told = {teller: shares[client] for teller, shares in opened_shares(one.terms, one.shares).items()}
        assert all(len(share) == SHARE for share in told.values())
        secret = combine(told)
        is_mask = KeyPair.of(secret).public == one.terms.public(client)[1]
        assert is_mask == (client == 4)


def check_nothing_overflows() -> None:
    for n, bits in ((2, 24), (200, 24), (5, 30), (3, 48)):
        layout = Layout(Form(x=(torch.float64, (2,)), k=(torch.int64, (1,))), FixedPoint(bits, 8.0))
        most = torch.iinfo(torch.int64).max // n
        tensors = {"x": torch.tensor([8.0, -8.0]).double(), "k": torch.tensor([-most])}
        total = [np.zeros(count, kind) for count, kind in zip(layout.counts, layout.kinds(n), strict=True)]
        for _ in range(n):
            masks.add(total, layout.encode(tensors, 1.0, n))
        found = layout.decode(total)
        assert found["x"].tolist() == [8.0 * n, -8.0 * n]
        assert found["k"].tolist() == [-most * n]


CHECKS: dict[str, Callable[[], None]] = {
    "the sum of all": check_the_sum,
    "one goes away before the masked reply": lambda: check_the_sum(missing=[1]),
    "the first and the last go away": lambda: check_the_sum(missing=[0, 4]),
    "masks are used once": check_masks_are_used_once,
    "nobody tells both shares": check_nobody_tells_both,
    "nothing overflows": check_nothing_overflows,
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_secure_sum(name: str):
    CHECKS[name]()


def _no_sign(patch: pytest.MonkeyPatch) -> None:
    def flipped(self: ClientKeys, terms: Terms, there: Any, vectors: Vectors) -> Vectors:
        me, found = self.number(terms), [vector.copy() for vector in vectors]
        shape = [(len(vector), vector.dtype) for vector in vectors]
        masks.add(found, masks.expanded(self.seed, shape))
        for other in there:
            if other != me:
                masks.add(found, masks.pairwise(self.mask, terms, terms.among(there), me, other, shape))
        return found

    patch.setattr(ClientKeys, "masked", flipped)


def _server_sign(patch: pytest.MonkeyPatch) -> None:
    plain, repaired = masks.pairwise, masks._rebuilt
    made: set[bytes] = set()

    def negated(own: KeyPair, terms: Terms, agreed: str, me: int, other: int, shape: Any) -> Vectors:
        found = plain(own, terms, agreed, me, other, shape)
        return [np.zeros_like(one) - one for one in found] if own.private in made else found

    def noted(*args: Any) -> bytes:
        made.add(secret := repaired(*args))
        return secret

    patch.setattr(masks, "_rebuilt", noted)
    patch.setattr(masks, "pairwise", negated)


def _same_keys(patch: pytest.MonkeyPatch) -> None:
    original = ClientKeys.of.__func__  # type: ignore[attr-defined]
    patch.setattr(ClientKeys, "of", classmethod(lambda cls, secrets, place: original(cls, secrets, (0, 0))))
    patch.setattr(Terms, "digest", property(lambda self: "always the same"))


def _small_ring(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fixed_point.FixedPoint, "ring", lambda self, clients: torch.int32)


def _other_modulus(patch: pytest.MonkeyPatch) -> None:
    def modulo(total: Vectors, vectors: Vectors, subtract: bool = False) -> None:
        for own, other in zip(total, vectors, strict=True):
            np.copyto(own, (own - other if subtract else own + other) % own.dtype.type(2**31 - 1))

    patch.setattr(masks, "add", modulo)


def _both_shares(patch: pytest.MonkeyPatch) -> None:
    def both(self: ClientKeys, terms: Terms, there: set[int], summed: set[int], boxes: Any) -> dict[int, bytes]:
        return {client: self.opened(terms, client, boxes[client]) for client in there}

    patch.setattr(ClientKeys, "revealed_shares", both)
    for where in (masks, sys.modules[__name__]):
        patch.setattr(where, "opened_shares", lambda terms, told: {i: told[i] for i in sorted(told)[: terms.threshold]})
    patch.setattr(
        masks,
        "_rebuilt",
        lambda terms, client, shares, seed: combine(
            {i: share[SHARE:] if seed else share[:SHARE] for i, share in shares.items()}
        ),
    )


def _wrong_share(patch: pytest.MonkeyPatch) -> None:
    opened = ClientKeys.opened
    patch.setattr(ClientKeys, "opened", lambda *args: (both := opened(*args))[SHARE:] + both[:SHARE])


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a flipped mask sign": (_no_sign, "the sum of all"),
    "a flipped sign where masks are rebuilt": (_server_sign, "one goes away before the masked reply"),
    "keys that serve in every round": (_same_keys, "masks are used once"),
    "a ring that is too small": (_small_ring, "nothing overflows"),
    "another modulus": (_other_modulus, "the sum of all"),
    "both shares are told": (_both_shares, "nobody tells both shares"),
    "the wrong share is told": (_wrong_share, "the sum of all"),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch):
    plant, found_by = PLANTED[mistake]
    plant(monkeypatch)
    with pytest.raises((AssertionError, WireError)):
        CHECKS[found_by]()


@given(data=st.data(), n=st.integers(2, 7))
@settings(max_examples=25, deadline=None)
def test_whoever_goes_away_the_sum_is_exact_or_refused(data: st.DataObject, n: int):
    threshold = data.draw(st.integers(n // 2 + 1, n))
    stages = data.draw(st.lists(st.sampled_from(["stays", "unshared", "missing", "mute"]), min_size=n, max_size=n))
    gone = {stage: [i for i, own in enumerate(stages) if own == stage] for stage in ("unshared", "missing", "mute")}
    summed = n - len(gone["unshared"]) - len(gone["missing"])
    if summed - len(gone["mute"]) >= threshold:
        check_the_sum(n, threshold, **gone)
    else:
        with pytest.raises(ParleyError):
            check_the_sum(n, threshold, **gone)


def test_a_masked_reply_says_nothing_by_itself():
    """Bits of a masked vector of zeros are as often set as not, in the sum of any but all clients too."""
    zeros = [[np.zeros(4000, np.uint32), np.zeros(0, np.uint64)] for _ in range(4)]
    one = Sum(4, 3)
    total, _ = one.total(zeros)
    assert not total[0].any()
    for some in ([0], [0, 1], [1, 2, 3]):
        part = np.zeros(4000, np.uint32)
        for i in some:
            part += one.masked[i][0]
        share = np.unpackbits(part.view(np.uint8)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(4000 * 32)


def test_clients_refuse_to_unmask_what_would_show_too_much():
    one = Sum(5, 3)
    there = set(range(5))
    boxes = {j: one.owns[j].boxes(one.terms)[0] for j in there}
    for summed, sentence in (
        ({0, 1}, "fewer than 3 are too few"),
        ({1, 2, 3}, "without this client's reply"),
        ({0, 1, 2, 7}, "shared no keys"),
    ):
        with pytest.raises(WireError, match=sentence):
            one.owns[0].revealed_shares(one.terms, there, summed, boxes)


def test_other_terms_than_those_agreed_on_are_refused():
    one = Sum(4, 3)
    own = one.owns[0]
    ticket = own.ticket(one.terms.digest)
    own.check_ticket(one.terms.digest, ticket)
    stranger = ClientKeys.of(Secrets(b"?" * 16), (1, 0)).row
    for other in (
        replace(one.terms, factors=(1.0, 0.5, 1.0, 1.0)),
        replace(one.terms, rows=(*one.terms.rows[:3], stranger)),
        replace(one.terms, position=(2, 0)),
        replace(one.terms, threshold=4),
    ):
        with pytest.raises(WireError, match="not those that it began with"):
            own.check_ticket(other.digest, ticket)
        with pytest.raises(WireError, match="cannot be opened"):  # nor can shares of other terms be opened
            own.opened(other, 1, one.owns[1].boxes(one.terms)[0])
    with pytest.raises(WireError, match="own keys are not among"):
        own.number(replace(one.terms, rows=one.terms.rows[1:]))
    with pytest.raises(WireError, match="same keys"):
        replace(one.terms, rows=(own.row, own.row)).check()
    with pytest.raises(WireError, match="weight"):
        replace(one.terms, factors=(1.0, 0.0, 1.0, 1.0)).check()


def test_a_wrong_share_is_noticed():
    one = Sum(4, 3)
    one.total(drawn(4), missing=[3])
    for whose in (0, 3):
        shares = {i: dict(told) for i, told in one.shares.items()}
        shares[1][whose] = bytes(SHARE - 1) + b"\x05" + shares[1][whose][SHARE:]
        with pytest.raises(WireError, match="shares do not"):
            unmasked(one.terms, one.there, one.masked, shares)


def test_a_box_that_was_changed_cannot_be_opened():
    one = Sum(3, 2)
    box = bytearray(one.owns[1].boxes(one.terms)[0])
    box[7] ^= 1
    with pytest.raises(WireError, match="cannot be opened"):
        one.owns[0].opened(one.terms, 1, bytes(box))


# --- Shamir's shares ---


def test_the_modulus_is_the_smallest_prime_above_every_secret():
    def is_prime(number: int) -> bool:
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 60):
            power = pow(base, odd, number)
            if power not in (1, number - 1) and all(
                (power := power * power % number) != number - 1 for _ in range(twos - 1)
            ):
                return False
        return True

    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256 + 1, PRIME, 2))


@given(secret=st.binary(min_size=32, max_size=32), n=st.integers(1, 9), data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_threshold_of_shares_give_the_secret_and_fewer_any_other(secret: bytes, n: int, data: st.DataObject):
    threshold = data.draw(st.integers(1, n))
    random = data.draw(st.binary(min_size=random_bytes(threshold), max_size=random_bytes(threshold)))
    shares = split(secret, n, threshold, random)
    chosen = data.draw(st.permutations(range(n)))[:threshold]
    assert combine({i: shares[i] for i in chosen}) == secret
    if threshold > 1:  # with one share made up, every secret is as possible as the true one
        other = data.draw(st.binary(min_size=32, max_size=32))
        few = chosen[:-1]
        points = {0: int.from_bytes(other), **{i + 1: int.from_bytes(shares[i]) for i in few}}
        x = chosen[-1] + 1
        made_up = 0
        for a, value in points.items():
            above = below = 1
            for b in points:
                if b != a:
                    above, below = above * (x - b) % PRIME, below * (a - b) % PRIME
            made_up = (made_up + value * above * pow(below, -1, PRIME)) % PRIME
        assert combine({**{i: shares[i] for i in few}, chosen[-1]: made_up.to_bytes(33)}) == other


# --- fixed point ---


@given(
    values=st.lists(st.floats(-8, 8), min_size=1, max_size=20),
    factor=st.floats(0.01, 1),
    bits=st.integers(2, 48),
    n=st.integers(2, 1000),
)
@settings(max_examples=60, deadline=None)
def test_rounding_is_by_less_than_a_step_and_never_longer(values: list[float], factor: float, bits: int, n: int):
    code = FixedPoint(bits, 8.0)
    layout = Layout(Form(x=(torch.float64, (len(values),))), code)
    x = torch.tensor(values, dtype=torch.float64)
    found = layout.decode(layout.encode({"x": x}, factor, n))["x"]
    assert bool(((found - x * factor).abs() <= code.step * (1 + 1e-9)).all())
    assert bool((found.abs() <= x.abs() * factor * (1 + 1e-15)).all())


@given(values=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9))
@settings(max_examples=30, deadline=None)
def test_whole_numbers_stay_as_they_are(values: list[int]):
    layout = Layout(Form(k=(torch.int64, (len(values),))), FixedPoint(24, 8.0))
    assert layout.decode(layout.encode({"k": torch.tensor(values)}, 1.0, 9))["k"].tolist() == values


def test_numbers_that_are_too_large_are_refused():
    code = FixedPoint(24, 8.0)
    for value in (8.1, -9.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="none above 8"):
            Layout(Form(x=(torch.float32, (1,))), code).encode({"x": torch.tensor([value])}, 1.0, 3)
    with pytest.raises(InputError, match="cannot add up"):
        Layout(Form(k=(torch.int32, (1,))), code).encode({"k": torch.tensor([2**30], dtype=torch.int32)}, 1.0, 3)
    with pytest.raises(InputError, match="overflow"):
        FixedPoint(48, 8.0).ring(2**20)
    for spec in (None, (None, (2,)), (torch.float32, (None,)), (torch.uint8, (2,)), (torch.bool, (2,))):
        with pytest.raises(UnsupportedError):
            Layout(Form(x=spec), code)
