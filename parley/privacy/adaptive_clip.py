"""Clipping to a quantile of the clients' norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    client   b_i = 1/2 if ||message|| <= C, else -1/2;  sends the message scaled down to C, and b_i
    server   B = (sum_i b_i + noise) / m + 1/2, about the share of clients within C;  C <- C exp(-eta (B - quantile))

C travels in the server's message. The server's half is in `engine.privacy`, which also accounts for the noisy count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from parley.channels.base import Channel, channel
from parley.core.context import Context
from parley.core.form import Form
from parley.core.message import Message
from parley.core.tree import norm
from parley.privacy.clip import Clip

BOUND = "privacy-bound"
"""The scalar in the server's message that says to which norm clients clip in this round."""
WITHIN = "privacy/within"
"""The number in a client's reply that says whether it was within the bound, +-1/2."""


@channel("adaptive-clip")
@dataclass(frozen=True)
class AdaptiveClip(Channel):
    """Clips to a bound that follows a quantile of the clients' norms; set by `[privacy]` with a quantile."""

    summable: ClassVar[bool] = True
    server_scalars: ClassVar[tuple[str, ...]] = (BOUND,)

    bound: float
    """Largest Euclidean norm of a message in the first round."""

    def __post_init__(self) -> None:
        Clip(self.bound)  # refuses what is no bound

    @property
    def sensitivity(self) -> float:
        return self.bound

    def configured(self, received: Message) -> AdaptiveClip:
        bound = received.scalars.get(BOUND)
        return self if bound is None else replace(self, bound=float(bound))

    def send(self, message: Message, context: Context, trees: Sequence[str]) -> Message:
        if not message.tensors:
            return message
        clipped = Clip(self.bound).send(message, context, trees)
        reals = {name: value for name, value in message.tensors.items() if value.is_floating_point()}
        within = not reals or float(norm(reals)) <= self.bound
        sign = torch.tensor(0.5 if within else -0.5, dtype=torch.float32)
        return Message(clipped.tensors | {WITHIN: sign}, clipped.scalars)

    def receive(self, message: Message, form: Form, *rest: Any) -> Message:
        return Message({name: value for name, value in message.tensors.items() if name != WITHIN}, message.scalars)

    def transmitted(self, form: Form, trees: Sequence[str]) -> Form:
        return form if not form else Form(form | {WITHIN: (torch.float32, ())})
