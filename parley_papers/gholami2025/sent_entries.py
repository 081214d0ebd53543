"""Counting the numbers that a method sends, from its messages: Table 2's traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import parley as pl

_GROUPS = {"down": "model", "up": "update"}


class SentEntries(pl.Listener):
    """Metrics `entries/down`, `entries/up` and `entries/buffers`: numbers sent in a round by all clients together.

    Down and up are entries of trainable weights; the statistics of normalisations are counted apart.
    """

    def __init__(self) -> None:
        self._entries: Counter[str] = Counter()

    def exchange(
        self, number: int, index: int, asked: str, sent: Mapping[Any, pl.Message], replies: Mapping[Any, pl.Message]
    ) -> None:
        for way, messages in (("down", sent), ("up", replies)):
            for message in messages.values():
                self._entries[way] += _entries(message, _GROUPS[way])
                self._entries["buffers"] += _entries(message, "buffers")

    def observe(self, number: int, observed: Mapping[str, Mapping[str, Tensor]]) -> dict[str, pl.Metric]:
        counted = {f"entries/{way}": pl.Metric(self._entries[way]) for way in (*_GROUPS, "buffers")}
        self._entries.clear()
        return counted


def _entries(message: pl.Message, group: str) -> int:
    return sum(value.numel() for value in message.get(group).values())
