"""The checks find what a channel does not keep, and pass ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from parley.channels.base import Channel
from parley.channels.ef21 import ef21
from parley.channels.projection import projection
from parley.channels.quantise import QSGD, fedcom, fedpaq, qsgd
from parley.channels.random_k import RandomK, random_k
from parley.channels.shuffle import shuffle
from parley.channels.sign import Sign, sign
from parley.channels.top_k import TopK, top_k
from parley.conformance import check_channel, load_channel
from parley.core.errors import InputError
from parley.core.message import Message
from parley.privacy.clip import Clip, clip

OURS = [
    top_k(0.1), random_k(0.2), random_k(0.2, True), projection(0.2), qsgd(1), qsgd(3, "l2"), fedcom(), ef21(),
    fedpaq(4), sign(), clip(1.0), shuffle(),
]  # fmt: skip


@pytest.mark.parametrize("channel", OURS, ids=str)
def test_ours_keep_what_they_promise(channel: Channel):
    missed = [check for check in check_channel(channel) if not check.passed]
    assert not missed


class Rounds(QSGD):
    """Rounds to the nearest level, which is biased."""

    def compress(self, vector, layout, key):
        from parley.channels.packing import pack

        norms = torch.stack([piece.abs().max() for piece in vector.split(layout.sizes)])
        scaled = [p / n if n else p for p, n in zip(vector.split(layout.sizes), norms, strict=True)]
        codes = (torch.cat(scaled) * self.levels).round().add(self.levels).to(torch.uint8)
        return {"codes": pack(codes, self.bits), "norms": norms}


class Unscaled(RandomK):
    """Forgets to scale up."""

    def compress(self, vector, layout, key):
        return {"values": super().compress(vector, layout, key)["values"] * self.share}


class Smallest(TopK):
    """Sends the smallest entries."""

    def compress(self, vector, layout, key):
        from parley.channels.top_k import largest
        from parley.channels.vector import share_of

        places = largest(1 / (vector.abs() + 1e-9), share_of(self.share, len(vector)))
        return {"values": vector[places], "places": places.to(torch.int32)}


class Larger(Clip):
    """Clips to twice the bound."""

    def send(self, message, context, trees):
        return Clip(2 * self.bound).send(message, context, trees)


class OtherSize(Sign):
    """States a size that it does not have."""

    def sizes(self, layout):
        return super().sizes(layout) | {"bits": (torch.uint8, (layout.entries,))}


class Summed(Sign):
    """Sends the sum of the sizes where their mean belongs."""

    def compress(self, vector, layout, key):
        made = super().compress(vector, layout, key)
        return made | {"sizes": made["sizes"] * 3}


@pytest.mark.parametrize(
    ("channel", "statement"),
    [
        (Rounds(3), "unbiased, dense"), (Unscaled(0.25), "unbiased, dense"), (Smallest(0.25), "lost beyond 1 - delta"),
        (Larger(1.0), "norm / sensitivity"), (Summed(False), "lost beyond 1 - delta"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Channel) else value,
)  # fmt: skip
def test_a_planted_mistake_is_found(channel: Channel, statement: str):
    assert any(statement in check.name for check in check_channel(channel) if not check.passed)


def test_a_wrong_size_is_found():
    with pytest.raises(InputError, match="bits"):
        check_channel(OtherSize())


MINE = '''
from dataclasses import dataclass
from parley import Channel, Message

@dataclass(frozen=True)
class Halved(Channel):
    """Sends half of everything."""

    factor: float = 0.5
    """What everything is multiplied by."""

    def contraction(self, entries):
        return 1 - (1 - self.factor) ** 2

    def send(self, message, context, trees):
        return Message({name: value * self.factor for name, value in message.tensors.items()}, message.scalars)
'''


def test_a_channel_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    for text in ("mine.py:Halved", "mine.py:Halved(0.25)"):
        assert all(check.passed for check in check_channel(load_channel(text)))
    assert load_channel("qsgd(2)") == qsgd(2)
    with pytest.raises(InputError, match="no channel"):
        load_channel("mine.py:dataclass")


@dataclass(frozen=True)
class Crashes(Channel):
    def receive(self, message, form, trees, key):
        return Message({name: message.tensors[name] / 1 for name in form}, message.scalars)

    def send(self, message, context, trees):
        return message


def test_what_promises_nothing_is_checked_for_its_form():
    assert all(check.passed for check in check_channel(Crashes()))
