"""Limits on what a file may do to the reader: how far it may unpack, and that it fails in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley.core.errors import InputError, ParleyError
from parley.core.text import shown

HARMLESS = 256 << 20
"""Bytes that any file may unpack to."""
RATIO = 200
"""Times its own size that a larger one may unpack to; measurements hardly ever shrink that much."""


def check_expansion(unpacked: int, packed: int, title: str) -> None:
    """Refuse a file that would fill the memory."""
    if unpacked > max(HARMLESS, RATIO * packed):
        raise InputError(
            f"{title} would unpack from {packed / 1e6:,.1f} MB to {unpacked / 1e6:,.0f} MB, which no real data do; "
            "write it without compression if they are."
        )


@contextmanager
def parsed(title: str, kind: str) -> Iterator[None]:
    """Whatever a parser raises about bytes it cannot make sense of, as one sentence."""
    try:
        yield
    except ParleyError:
        raise
    except Exception as error:  # parsers raise what they like on damaged bytes
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{title} cannot be read: {error.strerror}.") from None
        reason = shown(str(error).strip().split("\n")[0].rstrip(".")) or type(error).__name__
        raise InputError(f"{title} is not a usable {kind} file ({reason}).") from None
