"""Sealed messages: only the right key, the right sender and the right subject open them."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError, WireError
from parley.core.sealed import KEY, OVERHEAD, KeyPair, about, derived, open_sealed, seal

BOB, EVE, ALICE = (KeyPair.of(bytes([n]) * KEY) for n in (1, 2, 3))
SECRET = bytes(range(KEY))


def test_keys_and_what_they_share_are_x25519_s() -> None:
    """Against scalar multiplication written out as RFC 7748 has it."""
    for a, b in ((ALICE, BOB), (EVE, BOB)):
        assert _ladder(a.private, (9).to_bytes(KEY, "little")) == a.public
        assert a.shared(b.public) == b.shared(a.public) == _ladder(a.private, b.public)


def _ladder(scalar: bytes, point: bytes) -> bytes:
    p = 2**255 - 19
    k = (int.from_bytes(scalar, "little") & ~7 & ((1 << 254) - 1)) | (1 << 254)
    x1 = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for t in reversed(range(255)):
        bit = (k >> t) & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % p, x1 * (da - cb) ** 2 % p
        aa, bb = a * a, b * b
        e = aa - bb
        x2, z2 = aa * bb % p, e * (aa + 121665 * e) % p
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(KEY, "little")


@given(data=st.binary(max_size=2000), sender=st.booleans(), place=st.lists(st.text() | st.integers(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_sealed_is_opened_by_the_right_key_alone(data: bytes, sender: bool, place: list[str | int]) -> None:
    what = about(*place)
    box = seal(data, BOB.public, what, SECRET, ALICE if sender else None)
    assert len(box) == len(data) + OVERHEAD
    whose = ALICE.public if sender else None
    assert open_sealed(box, BOB, what, whose) == data
    wrong = [
        (box, EVE, what, whose),
        (box, BOB, what + b"x", whose),
        (box, BOB, what, EVE.public),
        (box, BOB, what, None if sender else ALICE.public),
        (box[:-1], BOB, what, whose),
    ]
    for arguments in wrong:
        with pytest.raises(WireError, match="sealed"):
            open_sealed(*arguments)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_every_changed_bit_is_noticed(place: int, bit: int) -> None:
    box = bytearray(seal(b"twenty-one rows of it", BOB.public, about("rows", 3), SECRET, ALICE))
    box[place % len(box)] ^= 1 << bit
    if place % len(box) == KEY - 1 and bit == 7:
        return  # X25519 ignores the top bit of a public key, but the key of the box does not
    with pytest.raises(WireError):
        open_sealed(bytes(box), BOB, about("rows", 3), ALICE.public)


def test_a_secret_that_comes_twice_does_not_encrypt_two_things_with_one_key() -> None:
    one, other = (seal(text, BOB.public, b"", SECRET) for text in (b"aaaa", b"aaab"))
    assert one[:KEY] != other[:KEY]
    assert seal(b"aaaa", BOB.public, b"", SECRET) == one


def test_subjects_and_derived_keys_are_told_apart() -> None:
    assert about("a", "bc") != about("ab", "c")
    assert derived(SECRET, "rows", 1) != derived(SECRET, "rows", 2)
    assert SECRET not in repr(KeyPair.of(SECRET)).encode()
    assert repr(SECRET) not in repr(KeyPair.of(SECRET))


def test_keys_that_are_none() -> None:
    with pytest.raises(WireError, match="public key"):
        BOB.shared(bytes(KEY))
    with pytest.raises(WireError, match="at least"):
        open_sealed(b"short", BOB, b"")


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt '\.\[parties\]'"):
        KeyPair.of(SECRET)
