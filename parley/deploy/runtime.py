"""The runtime of a deployment: the same frames as `wire`, carried by Flower."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from parley.core.errors import UnsupportedError
from parley.core.failure import Failure
from parley.data import DataInfo
from parley.deploy.answering import work
from parley.deploy.carrier import Carrier
from parley.deploy.node_data import info_to_json
from parley.deploy.roster import signature_of
from parley.runtimes.protocol import Answer, Call, Job, Stamp
from parley.runtimes.remote import Named, Remote

_LONGEST = 500
"""Characters of a reason that a node gives."""


@dataclass(frozen=True)
class Engagement:
    """What the nodes of a run have been told."""

    run: str
    study: str
    """The hash that owners approved."""
    info: DataInfo
    wait: float
    """Seconds after which an answer is given up where the study says nothing."""
    parties: Mapping[str, str] = field(default_factory=dict)
    """Party -> the node that it is."""


class Flower(Remote):
    """Nodes on other machines."""

    name = "flower"

    def __init__(self, job: Job, carrier: Carrier, engagement: Engagement) -> None:
        super().__init__(job)
        self._carrier, self._engagement, self._step = carrier, engagement, ""
        self._signed: dict[str, Any] = {}
        """What nodes signed last, for the others to check."""
        self._common = json.dumps(info_to_json(engagement.info)).encode()
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        self._step = f"{stamp.round}-{stamp.exchange}"
        # What a node says may end its own part in a round, never the run.
        return [
            _bounded(answer) if isinstance(answer, Failure) else answer
            for answer in super().run(calls, stamp, deadline)
        ]

    def ask(
        self, named: Sequence[Named], frame: Callable[[int], bytes], deadline: float | None
    ) -> list[bytes | Failure]:
        engagement, population = self._engagement, len(self.job.federation)
        nodes = [engagement.parties[name.removeprefix("party:")] if party else name for name, party in named]

        def framed(number: int) -> Callable[[], bytes]:
            name = nodes[number]
            return lambda: work(
                name, engagement.run, engagement.study, population, self._common, frame(number), self._signed
            )

        frames = {name: framed(number) for number, name in enumerate(nodes)}
        if len(frames) < len(named):
            raise UnsupportedError("a deployment asks each node once in an exchange; sample without replacement.")
        answers = self._carrier.ask(frames, deadline or engagement.wait, self._step)
        for name, reply in answers.items():
            if not isinstance(reply, Failure) and (signature := signature_of(reply)) is not None:
                self._signed[name] = signature
        return [answers[name] for name in nodes]

    def close(self) -> None:
        torch.set_num_threads(self._before)


def _bounded(failed: Failure) -> Failure:
    return replace(failed, reason=failed.reason[:_LONGEST], fatal=False)
