"""Shamir's secret sharing (1979): any `threshold` of the shares give the secret, fewer say nothing about it.

    f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}  mod p,  share_i = f(i), i = 1 ... n;   secret = f(0), interpolated

p is the smallest prime above 2^256, so that every secret of 32 bytes is a number below it.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.core.errors import InputError, WireError

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33
"""Bytes of a secret and of a share."""
_WIDE = 48
"""Random bytes for a coefficient: taken modulo p they are uniform but for 2^-127."""


def random_bytes(threshold: int) -> int:
    """How many random bytes `split` needs."""
    return _WIDE * (threshold - 1)


def split(secret: bytes, holders: int, threshold: int, random: bytes) -> list[bytes]:
    """The shares of the holders 0 ... holders - 1."""
    if not 1 <= threshold <= holders or len(secret) != SECRET or len(random) < random_bytes(threshold):
        raise InputError(f"a secret of {len(secret)} bytes cannot be shared by {holders}, {threshold} of them enough.")
    drawn = [int.from_bytes(random[_WIDE * i : _WIDE * (i + 1)]) % PRIME for i in range(threshold - 1)]
    coefficients = [int.from_bytes(secret), *drawn]
    shares = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret from shares by holder, as many as the threshold; a WireError if they cannot be shares of one."""
    points = {holder + 1: int.from_bytes(share) for holder, share in shares.items()}
    secret = 0
    for x, value in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret = (secret + value * above * pow(below, -1, PRIME)) % PRIME
    if secret >> 8 * SECRET:
        raise WireError("shares do not fit together.")
    return secret.to_bytes(SECRET)
