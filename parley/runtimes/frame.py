"""Frames: a small JSON head and a few parts of bytes, as one piece of bytes. Nothing in it is unpickled."""

from __future__ import annotations

import json
from typing import Any

from parley.core.errors import WireError

_PREFIX = 4
_LARGEST_HEAD = 2**20


def pack(head: dict[str, Any], *parts: bytes) -> bytes:
    """The head and the parts; `unpack` gives them back."""
    text = json.dumps({"head": head, "sizes": [len(part) for part in parts]}, separators=(",", ":")).encode()
    if len(text) > _LARGEST_HEAD:
        raise WireError(f"an envelope of {len(text)} bytes is over the limit of {_LARGEST_HEAD}.")
    return b"".join((len(text).to_bytes(_PREFIX, "little"), text, *parts))


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Head and parts, or a WireError that says what is wrong with the bytes."""
    start = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if not _PREFIX < start <= min(len(data), _PREFIX + _LARGEST_HEAD):
        raise WireError(f"{len(data)} bytes are not a frame: its head is cut short or too long.")
    try:
        header = json.loads(data[_PREFIX:start])
        head, sizes = header["head"], header["sizes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"{len(data)} bytes are not a frame: {type(error).__name__} ({error}).") from None
    if not isinstance(head, dict) or not isinstance(sizes, list) or any(type(size) is not int for size in sizes):
        raise WireError(f"{len(data)} bytes are not a frame: its head is none.")
    if any(size < 0 for size in sizes) or sum(sizes) != len(data) - start:
        raise WireError(f"{len(data)} bytes are not a frame: its parts do not add up.")
    parts = []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return head, parts
